"""Tasks and actors that trials start on Ray, which get the CPUs that lanes leave; warns if those do not suffice."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import ray
from ray.util import placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cotune.ray_tune import _private
from cotune.ray_tune.sessions import current_trial

log = logging.getLogger(__name__)


def watch_launches() -> None:
    """Sets Ray's launch hooks for tasks and actors in this process, as Tune does in its own trial processes."""
    _private.actor._actor_launch_hook = _private.remote_function._task_launch_hook = _launched


def _launched(function: Any, resources: Mapping[str, float], strategy: Any) -> None:
    """Warns of a launch that will wait. Tune would refuse it, but CPUs may become free, or nodes be added."""
    asked, trial = resources.get("CPU", 0.0), current_trial()
    if not asked or trial is None or trial.has_launched or isinstance(strategy, PlacementGroupSchedulingStrategy):
        return
    trial.has_launched = True
    groups = [group for group in placement_group_table().values() if group["state"] == "CREATED"]
    held = sum(bundle.get("CPU", 0.0) for group in groups for bundle in group["bundles"].values())
    total = ray.cluster_resources().get("CPU", 0.0)
    if asked > total - held + 1e-6:
        log.warning(
            "trial %d asks Ray for %g CPUs, and lanes and placement groups hold %g of the cluster's %g: it waits until "
            'some are free. Have trials that start tasks or actors ask for {"CPU": 0.01} themselves, or bound lanes=',
            *(trial.trial, asked, held, total),
        )
