"""What a lane shows, and how long it has come to no boundary."""

import time
from array import array

import pytest

from cotune.sharing.page import BOUNDARY, HOLDER, READ, Page


def test_what_is_excused_is_left_out_of_the_iteration_under_way_only():
    page = memoryview(array("d", [7.0, time.monotonic() - 100, 0.0, 0.0]))
    shown = Page(page)
    shown.excuse(60)
    shown.excuse(30)
    assert shown.quiet == pytest.approx(10, abs=5)
    page[BOUNDARY] = time.monotonic() - 50
    assert shown.quiet == pytest.approx(50, abs=5)
    shown.excuse(1000)
    assert shown.quiet < 5
    assert shown._excused[1] == pytest.approx(50, abs=5), "it has begun since, and may yet hang"


def test_a_lane_without_a_trial_is_not_quiet():
    shown = Page(memoryview(array("d", [-1.0, 0.0, 7.0, 0.0])))
    assert (shown.holder, shown.quiet, shown.held, shown.age) == (None, 0.0, 7, 0.0)


def test_a_lane_rests_while_no_trial_has_the_turn():
    page = memoryview(array("d", [-1.0, time.monotonic() - 100, 0.0, 0.0]))
    shown = Page(page)
    assert shown.rests == pytest.approx(100, abs=5)
    page[HOLDER] = 7.0
    assert shown.rests == 0.0


def test_what_is_held_is_as_old_as_its_reading():
    page = memoryview(array("d", [7.0, time.monotonic() - 100, 0.0, 0.0]))
    page[READ] = time.monotonic() - 30
    assert Page(page).age == pytest.approx(30, abs=5)
