"""Errors of trials that the packer has given up, as Tune is told them."""

from __future__ import annotations

import pytest

pytest.importorskip("ray")

from ray.exceptions import RayTaskError
from ray.tune.experiment import Trial

from cotune.packer import ConcludeTrial
from cotune.ray_tune.refusals import refusal_of
from cotune.trial import Outcome


@pytest.mark.parametrize("allowed", [-1, 0, 3])
def test_a_trial_that_fits_no_device_is_not_recovered_by_tune_however_many_failures_are_allowed(allowed):
    too_large = Trial("train", stub=True)
    too_large.max_failures = allowed
    reason = ConcludeTrial(0, Outcome.FAILED, error="TrialTooLarge", reason="needs 9 GiB")
    error = refusal_of(too_large, reason)
    too_large.run_metadata.num_failures += 1
    assert isinstance(error, RayTaskError)
    assert not too_large.should_recover()
