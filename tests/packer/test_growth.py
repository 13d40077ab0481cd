"""How much more trials come to need than in their first iterations."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from world import MIB

from cotune.packer.growth import Growth
from cotune.packer.prediction import Changes


def test_trials_that_ran_out_of_memory_do_not_outvote_those_that_came_to_more() -> None:
    growth = Growth(Changes())
    for trial in range(10):
        growth.observe(trial, 10 * MIB, 40 * MIB, is_all=False)
    assert growth.later(10 * MIB) == 40 * MIB
    growth.observe(0, 10 * MIB, 90 * MIB, is_all=False)
    assert growth.later(10 * MIB) == 90 * MIB
    growth.observe(0, 10 * MIB, 70 * MIB, is_all=True)
    assert growth.later(10 * MIB) == 70 * MIB


def test_what_most_came_to_need_in_the_end_is_expected_of_the_next() -> None:
    growth = Growth(Changes())
    for trial, peak in enumerate((20, 20, 30, 90)):
        growth.observe(trial, 10 * MIB, peak * MIB, is_all=True)
    assert growth.later(10 * MIB) == 30 * MIB


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        pytest.param(lambda early: 3 * early, 1200, id="as many times as much"),
        pytest.param(lambda early: early + 300, 700, id="as much more"),
    ],
)
def test_a_large_trial_grows_in_the_way_in_which_others_have(later: Callable[[int], int], expected: int) -> None:
    changes = Changes()
    growth = Growth(changes)
    for trial, early in enumerate((200, 40, 60, 20)):
        before, told = growth.later(400 * MIB), changes.count
        growth.observe(trial, early * MIB, later(early) * MIB, is_all=True)
        assert growth.later(400 * MIB) == before or changes.count > told
    assert growth.later(400 * MIB) == expected * MIB


def test_with_one_that_has_grown_the_lesser_growth_is_expected() -> None:
    growth = Growth(Changes())
    growth.observe(0, 20 * MIB, 60 * MIB, is_all=True)
    assert (growth.later(10 * MIB), growth.later(40 * MIB)) == (30 * MIB, 80 * MIB)
