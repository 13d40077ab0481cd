"""Ray Tune on a real Ray."""

from __future__ import annotations

import pytest


@pytest.fixture
def gpus(in_ray):
    """A node with two GPUs in name, and one without."""
    in_ray.start(gpus=2)


@pytest.fixture
def cpus(in_ray):
    """A node of two CPUs, to whose cluster others can be added."""
    return in_ray.start(gpus=0)


@pytest.fixture
def run_config(tmp_path):
    """Where a run goes, and how much it says."""
    from ray import tune

    make = getattr(tune, "RunConfig", None)
    if make is None:
        from ray.train import RunConfig as make
    return lambda **kwargs: make(storage_path=str(tmp_path), name="run", verbose=0, **kwargs)
