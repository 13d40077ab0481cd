"""What is expected of devices beforehand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from cotune.demand import GIB, MIB, Demand, Estimate
from cotune.driver.expectations import Expectations
from cotune.driver.profile import Profile
from cotune.packer import DeviceFound, Measures
from cotune.record import Record
from cotune.trial import TrialState

CPU = DeviceFound(0.0, "cpu:0", GIB, max_width=2, idle_width=32)


@pytest.mark.parametrize(("most", "idle"), [(None, 32), (5, 5), (125, 32), (0, 0)])
def test_an_idle_device_has_no_more_lanes_than_the_search_may_have(most, idle):
    found = Expectations(None, Profile(None), [], most).of_device(CPU)
    assert (found.max_width, found.idle_width) == (2, idle)


@pytest.mark.parametrize(("state", "are_calibrated"), [(TrialState.DONE, True), (TrialState.FAILED, False)])
def test_estimates_are_not_calibrated_by_trials_that_failed_before_their_peak(state, are_calibrated):
    found = Expectations(SimpleNamespace(features=lambda params: {}), Profile(None), [], None)
    for trial in range(8):
        record = Record(trial, {}, {}, 0, Path(), state, estimate=Estimate(100 * MIB, 50 * MIB, 10))
        record.measures = Measures(Demand(200 * MIB, 100 * MIB))
        found.learn(record)
    assert found.are_calibrated == are_calibrated
