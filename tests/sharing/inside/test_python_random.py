"""The state of Python's global generator, moved raw and the long way."""

import random

import pytest

from cotune.sharing.inside import python_random
from cotune.sharing.inside.python_random import PythonRandom


@pytest.fixture(autouse=True)
def restored():
    state = random.getstate()
    yield
    random.setstate(state)


def test_this_python_lets_itself_be_moved_raw():
    assert python_random._words is not None


@pytest.mark.parametrize("is_raw", [True, False])
def test_two_trials_by_turns_draw_what_each_draws_alone(monkeypatch, is_raw):
    if not is_raw:
        monkeypatch.setattr(python_random, "_words", None)
    alone = [random.Random(seed) for seed in (1, 2)]
    states = [PythonRandom(seed) for seed in (1, 2)]
    # One `gauss` leaves half of a pair, and many draws go round the words.
    for count in (1, 2, 1, 1300, 3):
        for own, state in zip(alone, states, strict=True):
            state.apply()
            assert [random.gauss(0, 1) for _ in range(count)] == [own.gauss(0, 1) for _ in range(count)]
            assert random.choices(range(99), k=count) == own.choices(range(99), k=count)
            state.capture()
            assert random.getstate() == own.getstate()
