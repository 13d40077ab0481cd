"""What is expected of devices beforehand."""

from __future__ import annotations

import pytest

from cotune.demand import GIB
from cotune.driver.expectations import Expectations
from cotune.driver.profile import Profile
from cotune.packer import DeviceFound

CPU = DeviceFound(0.0, "cpu:0", GIB, max_width=2, idle_width=32)


@pytest.mark.parametrize(("most", "idle"), [(None, 32), (5, 5), (125, 32), (0, 0)])
def test_an_idle_device_has_no_more_lanes_than_the_search_may_have(most, idle):
    found = Expectations(None, Profile(None), [], most).of_device(CPU)
    assert (found.max_width, found.idle_width) == (2, idle)
