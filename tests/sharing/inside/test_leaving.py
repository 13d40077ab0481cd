"""How a trainable whose stop rule is met is asked to leave."""

from types import SimpleNamespace

import pytest

from cotune.session import TrialStopped
from cotune.sharing.inside import leaving
from cotune.sharing.inside.leaving import LEAVE_HEARD, LEAVE_WITHIN, Leaving


@pytest.fixture
def clock(monkeypatch):
    made = SimpleNamespace(now=100.0)
    monkeypatch.setattr(leaving, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def asks(asked, times):
    for _ in range(times):
        with pytest.raises(TrialStopped):
            asked.ask()


def test_asking_is_in_vain_once_a_trainable_has_heard_it_often(clock):
    asked = Leaving()
    asks(asked, LEAVE_HEARD - 1)
    clock.now += 2 * LEAVE_WITHIN
    asks(asked, 1)
    asked.ask()


def test_asking_is_in_vain_once_a_trainable_had_time(clock):
    asked = Leaving()
    asks(asked, 3 * LEAVE_HEARD)
    clock.now += LEAVE_WITHIN
    asks(asked, 1)
    clock.now += 0.1
    asked.ask()


def test_what_a_trainable_raises_is_how_it_leaves_only_after_it_was_asked():
    asked = Leaving()
    assert asked.has_led_to(TrialStopped())
    assert not asked.has_led_to(RuntimeError("its own"))
    asks(asked, 1)
    assert asked.has_led_to(RuntimeError("of a library that was told"))
    assert not asked.has_led_to(MemoryError())
