"""How long a lane has come to no boundary."""

import time
from array import array

import pytest

from cotune.sharing.quiet import Quiet


def test_what_is_excused_is_left_out_of_the_iteration_under_way_only():
    page = memoryview(array("d", [7.0, time.monotonic() - 100]))
    quiet = Quiet(page)
    quiet.excuse(60)
    quiet.excuse(30)
    assert quiet.seconds() == pytest.approx(10, abs=5)
    page[1] = time.monotonic() - 50
    assert quiet.seconds() == pytest.approx(50, abs=5)
    quiet.excuse(1000)
    assert quiet.seconds() < 5
    assert quiet._excused[1] == pytest.approx(50, abs=5), "it has begun since, and may yet hang"


def test_a_lane_without_a_trial_is_not_quiet():
    assert Quiet(memoryview(array("d", [-1.0, 0.0]))).seconds() == 0.0
