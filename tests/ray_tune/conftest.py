"""One real Ray per module; runs without Tune's own loggers, which load torch, unless a test is about them."""

from __future__ import annotations

import logging
import os

import pytest

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    patch.setenv("RAY_AIR_NEW_OUTPUT", "0")
    patch.setenv("RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS", "0")
    patch.setenv("PYTHONPATH", os.getcwd())
    yield
    patch.undo()


def start_ray(gpus):
    ray.init(
        address="local",
        num_cpus=2,
        num_gpus=gpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )


@pytest.fixture(scope="module")
def cluster(quiet):
    """Two CPUs and two logical GPUs on this machine."""
    start_ray(gpus=2)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def cpus(quiet):
    """Two CPUs and no GPU."""
    start_ray(gpus=0)
    yield
    ray.shutdown()


@pytest.fixture
def run_config(tmp_path):
    """Where a run goes, and how much it says."""
    from ray import tune

    make = getattr(tune, "RunConfig", None)
    if make is None:
        from ray.train import RunConfig as make
    return lambda **kwargs: make(storage_path=str(tmp_path), name="run", verbose=0, **kwargs)
