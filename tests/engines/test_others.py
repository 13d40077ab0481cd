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


def test_what_others_take_is_no_longer_ours_and_is_told_once(others):
    assert others.changed_capacity(used=9 * GIB, ours=5 * GIB) == 12 * GIB - RESERVE
    assert others.changed_capacity(used=9 * GIB, ours=5 * GIB) is None
    assert others.changed_capacity(used=5 * GIB, ours=5 * GIB) == 16 * GIB - RESERVE


def test_little_changes_are_not_worth_telling_until_they_add_up(others):
    assert others.changed_capacity(used=CAPACITY_STEP - 1, ours=0) is None
    assert others.changed_capacity(used=CAPACITY_STEP, ours=0) == 16 * GIB - RESERVE - CAPACITY_STEP


def test_bytes_that_are_ours_and_not_yet_in_use_are_nobody_elses(others):
    assert others.changed_capacity(used=GIB, ours=2 * GIB) is None


def test_while_a_lane_goes_its_bytes_are_not_taken_for_those_of_others(others):
    others.unsettled()
    for _ in range(SETTLE):
        assert others.changed_capacity(used=8 * GIB, ours=0) is None
    assert others.changed_capacity(used=8 * GIB, ours=0) == 8 * GIB - RESERVE


def test_nothing_is_concluded_where_the_gpu_says_nothing(others):
    assert others.changed_capacity(used=None, ours=0) is None
