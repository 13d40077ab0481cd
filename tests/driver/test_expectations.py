"""What is expected of devices beforehand."""

from __future__ import annotations

import pytest

from cotune.demand import GIB
from cotune.driver.expectations import TRIALS, Expectations, lanes_that_learn
from cotune.driver.profile import Profile
from cotune.packer import DeviceFound

CPU = DeviceFound(0.0, "cpu:0", GIB, max_width=2, idle_width=32)


@pytest.mark.parametrize(("trials", "lanes"), [(4, 0), (40, 5), (1000, 125), (None, TRIALS // 8)])
def test_a_search_that_learns_has_eight_trials_for_each_lane_of_an_idle_device(trials, lanes):
    assert lanes_that_learn(trials) == lanes


@pytest.mark.parametrize(("most", "idle"), [(None, 32), (5, 5), (125, 32), (0, 0)])
def test_an_idle_device_has_no_more_lanes_than_the_search_may_have(most, idle):
    found = Expectations(None, Profile(None), [], most).of_device(CPU)
    assert (found.max_width, found.idle_width) == (2, idle)
