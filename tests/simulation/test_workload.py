"""What a workload says of its jobs."""

from __future__ import annotations

import math

import cotune
from cotune.search.spaces import Space
from cotune.simulation.workload import features


def test_hyperparameters_are_features_as_they_are_in_a_run() -> None:
    space = Space({"rate": cotune.uniform(0, 1), "flag": cotune.choice([False, True]), "size": cotune.choice(["16"])})
    params = {"rate": 0.5, "flag": True, "size": "16"}
    assert features(params) == space.features(params) == {"rate": 0.5, "flag=True": 1.0, "size=16": 1.0}
    assert features({"limit": math.inf, "seed": 10**400}) == {"limit=inf": 1.0, f"seed={10**400}": 1.0}
