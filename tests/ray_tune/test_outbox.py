"""What a lane tells its driver, and when."""

from __future__ import annotations

import time

from cotune.ray_tune import outbox as module
from cotune.ray_tune.outbox import Outbox
from cotune.sharing import wire
from cotune.sharing.wire import Kind
from cotune.trial import Outcome

NEVER = 600.0
PROGRESS = wire.encode_object(Kind.PROGRESS, (1, 1, 0.1, 0, 0, 0.5, 0, 1))
ENDED = wire.encode_object(Kind.ENDED, (1, Outcome.DONE))


def test_measurements_wait_for_company_and_come_with_it(monkeypatch):
    monkeypatch.setattr(module, "PROGRESS_WITHIN", NEVER)
    outbox = Outbox()
    outbox.put(PROGRESS)
    assert outbox.take(0.0) == [PROGRESS]
    outbox.put(PROGRESS)
    outbox.put(ENDED)
    assert outbox.take(NEVER) == [PROGRESS, ENDED]


def test_measurements_without_company_come_soon():
    outbox = Outbox()
    began = time.monotonic()
    outbox.put(PROGRESS)
    assert outbox.take(NEVER) == [PROGRESS]
    assert time.monotonic() - began >= module.PROGRESS_WITHIN
