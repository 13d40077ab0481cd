"""What other programs take of a GPU, told from what our lanes hold."""

from __future__ import annotations

import pytest

from cotune.demand import GIB, MIB
from cotune.engines.others import CAPACITY_STEP, SETTLE, OthersOnGpu

RESERVE = 256 * MIB


@pytest.fixture
def others():
    settled = OthersOnGpu(16 * GIB, 16 * GIB - RESERVE, lambda free: free - RESERVE)
    for _ in range(SETTLE):
        assert settled.changed_capacity(12 * GIB, 0) is None, "a run has just begun"
    return settled


def twice(others, used, ours):
    assert others.changed_capacity(used, ours) is None, "one look"
    return others.changed_capacity(used, ours)


def test_what_others_take_is_no_longer_ours_and_is_told_once(others):
    assert twice(others, used=9 * GIB, ours=5 * GIB) == 12 * GIB - RESERVE
    assert others.changed_capacity(used=9 * GIB, ours=5 * GIB) is None
    assert twice(others, used=5 * GIB, ours=5 * GIB) == 16 * GIB - RESERVE


def test_little_changes_are_not_worth_telling_until_they_add_up(others):
    assert twice(others, used=CAPACITY_STEP - 1, ours=0) is None
    assert others.changed_capacity(used=CAPACITY_STEP, ours=0) == 16 * GIB - RESERVE - CAPACITY_STEP


def test_what_a_trial_of_ours_has_just_taken_is_not_taken_for_others(others):
    assert others.changed_capacity(used=0, ours=0) is None
    assert others.changed_capacity(used=10 * GIB, ours=0) is None
    # Its lane says nothing while the trial is being set up, then what it holds.
    for _ in range(3):
        others.unsettled()
        assert others.changed_capacity(used=10 * GIB, ours=0) is None
    for _ in range(SETTLE + 2):
        assert others.changed_capacity(used=10 * GIB, ours=10 * GIB) is None


def test_bytes_that_are_ours_and_not_yet_in_use_are_nobody_elses(others):
    assert others.changed_capacity(used=GIB, ours=2 * GIB) is None


def test_while_a_lane_goes_its_bytes_are_not_taken_for_those_of_others(others):
    others.unsettled()
    for _ in range(SETTLE):
        assert others.changed_capacity(used=8 * GIB, ours=0) is None
    assert twice(others, used=8 * GIB, ours=0) == 8 * GIB - RESERVE


def test_nothing_is_concluded_where_the_gpu_says_nothing(others):
    assert others.changed_capacity(used=None, ours=0) is None


def test_where_a_lane_cannot_come_up_what_others_have_taken_is_no_longer_ours_at_once(others):
    others.unsettled()
    assert others.refused(used=9 * GIB, ours=5 * GIB) == 12 * GIB - RESERVE
    assert others.refused(used=9 * GIB, ours=5 * GIB) is None
    for _ in range(SETTLE):
        assert others.changed_capacity(used=5 * GIB, ours=5 * GIB) is None
    assert twice(others, used=5 * GIB, ours=5 * GIB) == 16 * GIB - RESERVE
