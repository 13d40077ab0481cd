"""The indexed line and the pool of devices answer what a walk through all would."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.packer import queue
from cotune.packer.queue import Queue
from cotune.packer.trial import Trial


def trial(number: int) -> Trial:
    return Trial(number, number, "", {}, 0.0, None)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "BLOCK", 3)


@given(st.integers(0, 1 << 30), st.integers(1, 60))
def test_first_is_what_a_walk_would_find(seed: int, count: int) -> None:
    dice = random.Random(seed)
    line, entries = Queue(), {}
    for number in range(count):
        if entries and dice.random() < 0.4:
            gone = dice.choice(list(entries))
            key, _, _, _ = entries.pop(gone)
            line.remove((key, gone))
        else:
            key, size = (float(dice.randint(0, 5)),), dice.randint(0, 9)
            one = trial(number)
            entries[number] = (key, number, size, one)
            line.add(key, size, one)
        ordered = sorted(entries.values(), key=lambda entry: entry[:2])
        assert bool(line) == bool(ordered)
        assert line.least == min((entry[2] for entry in ordered), default=0)
        limit = dice.randint(-1, 9)
        after = dice.choice([None, ((float(dice.randint(0, 5)),), dice.randint(0, count))])
        fits = [e for e in ordered if e[2] <= limit and (after is None or e[:2] > after)]
        assert line.first(limit, after) == (fits[0] if fits else None)
