"""Ray Tune on a real Ray."""

from __future__ import annotations

import pytest


@pytest.fixture
def cluster(in_ray):
    """Two CPUs and two logical GPUs on this machine."""
    in_ray.start(gpus=2)


@pytest.fixture
def cpus(in_ray):
    """Two CPUs and no GPU."""
    in_ray.start(gpus=0)


@pytest.fixture
def run_config(tmp_path):
    """Where a run goes, and how much it says."""
    from ray import tune

    make = getattr(tune, "RunConfig", None)
    if make is None:
        from ray.train import RunConfig as make
    return lambda **kwargs: make(storage_path=str(tmp_path), name="run", verbose=0, **kwargs)
