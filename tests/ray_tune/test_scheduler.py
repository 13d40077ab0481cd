"""What `colocate` does with Tune's trials before any of them runs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("ray")

from ray.tune import PlacementGroupFactory

from cotune.ray_tune.scheduler import admit


@pytest.mark.parametrize("bundles", [[{"CPU": 1, "license": 1}], [{"CPU": 1}, {"CPU": 1}], [{}, {"CPU": 1}]])
def test_what_lanes_cannot_give_is_left_to_ray(bundles):
    request = PlacementGroupFactory(bundles)
    trial = SimpleNamespace(placement_group_factory=request)
    admit(None, trial, None)
    assert trial.placement_group_factory is request
