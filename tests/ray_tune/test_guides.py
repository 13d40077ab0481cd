"""What Ray Tune's guides show, as they write it, with the one line changed."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("ray")

from ray import tune
from ray.tune import Checkpoint
from ray.tune.schedulers import ASHAScheduler, HyperBandScheduler, MedianStoppingRule, PopulationBasedTraining

from cotune.ray_tune import colocate

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cpus")]


def objective(x, a, b):
    return a * (x**0.5) + b


def trainable(config):
    for x in range(6):
        tune.report({"score": objective(x, config["a"], config["b"]), "pid_": os.getpid()})


class Trainable(tune.Trainable):
    def setup(self, config):
        self.x = 0
        self.a = config["a"]

    def step(self):
        self.x += 1
        return {"score": self.a * self.x, "pid_": os.getpid()}

    def save_checkpoint(self, checkpoint_dir):
        Path(checkpoint_dir, "x.json").write_text(json.dumps({"x": self.x, "a": self.a}))

    def load_checkpoint(self, checkpoint_dir):
        saved = json.loads(Path(checkpoint_dir, "x.json").read_text())
        self.x = saved["x"]


def with_checkpoints(config):
    weight, origin, start = 0.0, tune.get_context().get_trial_id(), 0
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            saved = json.loads(Path(folder, "state.json").read_text())
        weight, origin, start = saved["weight"], saved["origin"], saved["step"] + 1
    for step in range(start, 8):
        weight += config["lr"]
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "state.json").write_text(json.dumps({"weight": weight, "origin": origin, "step": step}))
            tune.report(
                {"score": weight, "origin": origin, "started_at": start}, checkpoint=Checkpoint.from_directory(folder)
            )


def sometimes(config):
    if config["x"] == 1:
        raise ValueError("no")
    if config["x"] == 3:
        tune.report({"score": 1.0})


def test_trials_that_never_reported_have_their_config(run_config):
    results = tune.Tuner(
        sometimes,
        param_space={"x": tune.grid_search([1, 2, 3])},
        tune_config=tune.TuneConfig(scheduler=colocate()),
        run_config=run_config(),
    ).fit()
    assert [result.config for result in results] == [{"x": 1}, {"x": 2}, {"x": 3}]
    assert {"date", "hostname", "node_ip", "pid"} <= set(results[0].metrics)


def test_function_api(run_config):
    tuner = tune.Tuner(
        trainable,
        param_space={"a": tune.uniform(0, 1), "b": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(num_samples=6, metric="score", mode="max", scheduler=colocate(lanes=1)),
        run_config=run_config(),
    )
    results = tuner.fit()
    assert results.num_errors == 0
    assert [result.metrics["training_iteration"] for result in results] == [6] * 6
    assert len({result.metrics["pid_"] for result in results}) == 1, "one process for all trials of a lane"
    assert results.get_best_result().metrics["score"] == max(result.metrics["score"] for result in results)


def test_class_api_with_a_stop_criterion_and_a_final_checkpoint(run_config):
    tuner = tune.Tuner(
        Trainable,
        param_space={"a": tune.grid_search([1, 2, 3])},
        tune_config=tune.TuneConfig(metric="score", mode="max", scheduler=colocate(lanes=1)),
        run_config=run_config(
            stop={"training_iteration": 4},
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=2, checkpoint_at_end=True),
        ),
    )
    results = tuner.fit()
    assert sorted(result.metrics["score"] for result in results) == [4, 8, 12]
    with results.get_best_result().checkpoint.as_directory() as folder:
        assert json.loads(Path(folder, "x.json").read_text()) == {"x": 4, "a": 3}


def test_asha_stops_the_bad_ones_early(run_config):
    tuner = tune.Tuner(
        trainable,
        param_space={"a": tune.grid_search([8, 7, 6, 5, 4, 3, 2, 1]), "b": 0},
        tune_config=tune.TuneConfig(
            metric="score",
            mode="max",
            scheduler=colocate(ASHAScheduler(max_t=6, grace_period=2, reduction_factor=2), lanes=1, policy="fifo"),
        ),
        run_config=run_config(),
    )
    results = tuner.fit()
    lengths = {result.config["a"]: result.metrics["training_iteration"] for result in results}
    assert lengths[8] == 6
    assert lengths[1] == 2


def test_pbt_goes_on_from_the_weights_of_another(run_config):
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"lr": [0.001, 1.0]},
        quantile_fraction=0.5,
        resample_probability=0.5,
        synch=True,
    )
    tuner = tune.Tuner(
        with_checkpoints,
        param_space={"lr": tune.grid_search([0.001, 1.0])},
        tune_config=tune.TuneConfig(
            metric="score", mode="max", reuse_actors=True, scheduler=colocate(scheduler, lanes=2)
        ),
        run_config=run_config(),
    )
    results = tuner.fit()
    assert results.num_errors == 0
    origins = {result.metrics["origin"] for result in results}
    assert len(origins) == 1, "the worse trial goes on from the better one's weights"
    assert max(result.metrics["started_at"] for result in results) > 0


def test_pbt_of_classes(run_config):
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"a": [1, 100]},
        quantile_fraction=0.5,
    )
    tuner = tune.Tuner(
        Trainable,
        param_space={"a": tune.grid_search([1, 100])},
        tune_config=tune.TuneConfig(
            metric="score", mode="max", reuse_actors=True, scheduler=colocate(scheduler, lanes=2)
        ),
        run_config=run_config(
            stop={"training_iteration": 8}, checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1)
        ),
    )
    assert tuner.fit().num_errors == 0


def test_hyperband_pauses_and_goes_on(run_config):
    tuner = tune.Tuner(
        with_checkpoints,
        param_space={"lr": tune.grid_search([1, 2, 3, 4])},
        tune_config=tune.TuneConfig(
            metric="score",
            mode="max",
            scheduler=colocate(HyperBandScheduler(time_attr="training_iteration", max_t=8, reduction_factor=2)),
        ),
        run_config=run_config(),
    )
    results = tuner.fit()
    assert results.num_errors == 0
    assert results.get_best_result().config["lr"] == 4


def test_optuna_search_with_median_stopping(run_config):
    from ray.tune.search.optuna import OptunaSearch

    tuner = tune.Tuner(
        trainable,
        param_space={"a": tune.uniform(0, 1), "b": tune.loguniform(1e-3, 1)},
        tune_config=tune.TuneConfig(
            metric="score",
            mode="max",
            num_samples=5,
            search_alg=OptunaSearch(),
            scheduler=colocate(MedianStoppingRule(grace_period=2, min_samples_required=2), lanes=1),
        ),
        run_config=run_config(),
    )
    results = tuner.fit()
    assert results.num_errors == 0
    assert len(results) == 5


def nested(config):
    tune.report({"score": config["model"]["width"] * config["lr"], "kind": config["model"]["kind"]})


def test_nested_space_with_a_limit_of_concurrency(run_config):
    tuner = tune.Tuner(
        tune.with_resources(nested, {"cpu": 0.5}),
        param_space={
            "model": {"width": tune.choice([8, 16]), "kind": tune.grid_search(["mlp", "cnn"])},
            "lr": tune.sample_from(lambda spec: spec.config.model.width * 2),
        },
        tune_config=tune.TuneConfig(num_samples=2, max_concurrent_trials=2, scheduler=colocate(lanes=1)),
        run_config=run_config(),
    )
    results = tuner.fit()
    assert len(results) == 4
    for result in results:
        assert result.metrics["score"] == 2 * result.config["model"]["width"] ** 2


def test_loggers_callbacks_and_a_dataframe(run_config):
    from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback

    class Seen(tune.Callback):
        def __init__(self):
            self.results, self.completed = [], []

        def on_trial_result(self, iteration, trials, trial, result, **info):
            self.results.append(result["score"])

        def on_trial_complete(self, iteration, trials, trial, **info):
            self.completed.append(trial.trial_id)

    seen = Seen()
    tuner = tune.Tuner(
        trainable,
        param_space={"a": tune.grid_search([1, 2]), "b": 1},
        tune_config=tune.TuneConfig(metric="score", mode="max", scheduler=colocate(lanes=1)),
        run_config=run_config(callbacks=[seen, CSVLoggerCallback(), JsonLoggerCallback()]),
    )
    results = tuner.fit()
    assert len(seen.results) == 12
    assert len(set(seen.completed)) == 2
    for result in results:
        assert len(result.metrics_dataframe) == 6
        assert len(Path(result.path, "result.json").read_text().splitlines()) == 6
        assert len(Path(result.path, "progress.csv").read_text().splitlines()) == 7


def test_with_parameters_shares_data(run_config):
    def learn(config, data):
        tune.report({"score": sum(data) * config["a"]})

    tuner = tune.Tuner(
        tune.with_parameters(learn, data=list(range(100))),
        param_space={"a": tune.grid_search([1, 2, 3])},
        tune_config=tune.TuneConfig(metric="score", mode="max", scheduler=colocate(lanes=1)),
        run_config=run_config(),
    )
    results = tuner.fit()
    assert sorted(result.metrics["score"] for result in results) == [4950, 9900, 14850]


def fails_once(config):
    checkpoint = tune.get_checkpoint()
    start = 0
    if checkpoint:
        with checkpoint.as_directory() as folder:
            start = json.loads(Path(folder, "state.json").read_text())["step"] + 1
    for step in range(start, 4):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "state.json").write_text(json.dumps({"step": step}))
            tune.report({"score": step, "started_at": start}, checkpoint=Checkpoint.from_directory(folder))
        if step == 1 and not os.path.exists(config["flag"]):
            raise RuntimeError("the first time")


def test_max_failures_and_restore(run_config, tmp_path):
    flag = tmp_path / "flag"
    tuner = tune.Tuner(
        fails_once,
        param_space={"flag": str(flag), "n": tune.grid_search([1, 2])},
        tune_config=tune.TuneConfig(metric="score", mode="max", scheduler=colocate(lanes=1)),
        run_config=run_config(failure_config=tune.FailureConfig(max_failures=1)),
    )
    results = tuner.fit()
    assert results.num_errors == 0, "the second attempt starts behind the failure"
    assert [result.metrics["started_at"] for result in results] == [2, 2]


def test_restore_goes_on_with_what_failed(run_config, tmp_path):
    flag = tmp_path / "flag"
    tuner = tune.Tuner(
        fails_once,
        param_space={"flag": str(flag)},
        tune_config=tune.TuneConfig(metric="score", mode="max", scheduler=colocate(ASHAScheduler())),
        run_config=run_config(),
    )
    assert tuner.fit().num_errors == 1
    flag.touch()
    again = tune.Tuner.restore(str(tmp_path / "run"), trainable=fails_once, resume_errored=True)
    results = again.fit()
    assert results.num_errors == 0
    assert results[0].metrics["started_at"] == 2


def test_time_budget(run_config):
    def endless(config):
        while True:
            tune.report({"score": 1})

    tuner = tune.Tuner(
        endless,
        tune_config=tune.TuneConfig(num_samples=2, time_budget_s=3, scheduler=colocate(lanes=1)),
        run_config=run_config(),
    )
    assert tuner.fit().num_errors == 0


def test_a_trial_that_asks_for_little_leaves_the_cpus_to_what_it_starts_on_ray(cpus, run_config):
    def drive(config):
        from ray.util.placement_group import placement_group, remove_placement_group

        # As Ray Train does for its workers.
        workers = placement_group([{"CPU": 1}])
        came = workers.wait(30)
        remove_placement_group(workers)
        tune.report({"came": came})

    tuner = tune.Tuner(
        tune.with_resources(drive, {"cpu": 0.01}),
        tune_config=tune.TuneConfig(num_samples=2, scheduler=colocate()),
        run_config=run_config(),
    )
    assert [result.metrics["came"] for result in tuner.fit()] == [True, True]
