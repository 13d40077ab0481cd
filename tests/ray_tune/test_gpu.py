"""Ray Tune's trials, and those of `cotune.run` on a cluster, on a real GPU that Ray gives."""

from __future__ import annotations

import os

import pytest

ray = pytest.importorskip("ray")

from ray import tune

import cotune
from cotune.demand import MIB

pytestmark = [pytest.mark.gpu, pytest.mark.ray, pytest.mark.usefixtures("gpu")]


@pytest.fixture
def gpu(in_ray):
    in_ray.start(gpus=1)


def holds(config):
    """Takes so many MiB of the GPU, two thirds of them to keep."""
    import torch

    kept = torch.ones(config["mib"] * MIB * 2 // 3, dtype=torch.uint8, device="cuda")
    for _ in range(4):
        scratch = torch.ones(config["mib"] * MIB // 3, dtype=torch.uint8, device="cuda")
        yield float(kept[0]) + float(scratch[0])
        del scratch


def test_trials_of_ray_tune_take_turns_and_try_again_after_out_of_memory_on_a_gpu(run_config):
    def train(config):
        for score in holds(config):
            tune.report({"score": score, "process": os.getpid()})

    results = tune.Tuner(
        tune.with_resources(train, {"gpu": 1}),
        param_space={"mib": tune.grid_search([100, 110, 120, 130, 140, 6000])},
        tune_config=tune.TuneConfig(scheduler=cotune.colocate(gpus=1, lanes=2, max_residents=2)),
        run_config=run_config(),
    ).fit()
    assert results.errors == []
    assert [result.metrics["score"] for result in results] == [2.0] * 6
    assert len({result.metrics["process"] for result in results}) < 6, "lanes that serve several trials"


def test_trials_of_a_run_on_a_cluster_are_measured_on_its_gpu(tmp_path):
    def train(config):
        for step, score in enumerate(holds(config)):
            cotune.report({"loss": score}, step=step)

    space = {"mib": cotune.choice([96, 384])}
    options = {"metric": "loss", "sampler": "grid", "storage": tmp_path, "dashboard": False}
    results = cotune.run(train, space, cluster="auto", gpus=1, **options)
    for trial in results:
        assert trial.error is None
        assert trial.persistent + trial.ephemeral == pytest.approx(trial.config["mib"] * MIB, rel=0.01)
