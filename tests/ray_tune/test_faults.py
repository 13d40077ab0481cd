"""Lanes, nodes and drivers that die under Ray Tune's trials."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from pathlib import Path

import pytest

ray = pytest.importorskip("ray")

from ray import tune
from ray.tune import Checkpoint

from cotune import colocate

pytestmark = [pytest.mark.ray]

STEPS = 12


def saves(config):
    start = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            start = json.loads(Path(folder, "state.json").read_text())["step"] + 1
    for step in range(start, STEPS):
        if Path(config.get("doomed", "/nowhere"), str(os.getpid())).exists():
            # Dying takes its node a while, in which this would come to its end.
            threading.Event().wait()
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "state.json").write_text(json.dumps({"step": step}))
            tune.report(
                {"step": step, "start": start, "pid_": os.getpid(), "node": ray.get_runtime_context().get_node_id()},
                checkpoint=Checkpoint.from_directory(folder),
            )


class Once(tune.Callback):
    """Does something when a trial has come to its fifth result."""

    def __init__(self, act):
        self.act = act
        self.failures = 0

    def __reduce__(self):
        # Tune pickles its callbacks for a restore, which needs none of this.
        return Once, (None,)

    def on_trial_result(self, iteration, trials, trial, result, **info):
        if self.act is not None and result["step"] == 5:
            act, self.act = self.act, None
            act(result)

    def on_trial_error(self, iteration, trials, trial, **info):
        self.failures += 1

    on_trial_recover = on_trial_error


def check_all_came_to_the_end(results, seen):
    assert results.num_errors == 0, results.errors
    assert seen.act is None
    assert seen.failures == 0, "Tune has not heard of it"
    assert {result.metrics["step"] for result in results} == {STEPS - 1}
    assert any(result.metrics["start"] > 0 for result in results), "from a checkpoint"


def test_a_lane_that_dies_costs_no_failure(cpus, run_config):
    seen = Once(lambda result: os.kill(result["pid_"], signal.SIGKILL))
    results = tune.Tuner(
        saves,
        param_space={"n": tune.grid_search([1, 2, 3])},
        tune_config=tune.TuneConfig(scheduler=colocate(lanes=1, max_residents=2)),
        run_config=run_config(callbacks=[seen], failure_config=tune.FailureConfig(max_failures=0)),
    ).fit()
    check_all_came_to_the_end(results, seen)


def test_a_driver_that_dies_is_restored(cpus, tmp_path):
    script = tmp_path / "driver.py"
    script.write_text(
        textwrap.dedent(f"""
        import os, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import ray
        from ray import tune
        from ray.tune.execution.tune_controller import TuneController
        from cotune import colocate
        import test_faults
        path = os.pathsep.join([{str(Path(__file__).parent)!r}, os.environ["PYTHONPATH"]])
        ray.init(
            address={ray.get_runtime_context().gcs_address!r},
            log_to_driver=False,
            runtime_env={{"env_vars": {{"PYTHONPATH": path}}}},
        )
        save = TuneController.checkpoint
        def save_and_die(self, force=False, wait=False):
            trials = self.get_trials()
            dies = "DIES" in os.environ and trials and all(trial.checkpoint for trial in trials)
            # A thread of Tune's writes its state, which is of no use half written.
            save(self, force=force or dies, wait=wait or dies)
            if dies:
                os.kill(os.getpid(), 9)
        TuneController.checkpoint = save_and_die
        tune.Tuner(
            test_faults.saves,
            param_space={{"n": tune.grid_search([1, 2])}},
            tune_config=tune.TuneConfig(scheduler=colocate(lanes=1, max_residents=2)),
            run_config=tune.RunConfig(storage_path={str(tmp_path)!r}, name="run", verbose=0),
        ).fit()
        """)
    )
    environment = os.environ | {"TUNE_GLOBAL_CHECKPOINT_S": "0", "DIES": "yes"}
    done = subprocess.run([sys.executable, str(script)], env=environment, timeout=60, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    results = tune.Tuner.restore(str(tmp_path / "run"), trainable=saves).fit()
    assert results.num_errors == 0
    assert {result.metrics["step"] for result in results} == {STEPS - 1}
    assert any(result.metrics["start"] > 0 for result in results), "from a checkpoint"


def test_nodes_come_and_go(cpus, run_config, tmp_path):
    nodes = cpus
    first = nodes.add_node(num_cpus=1, num_gpus=1)
    second = []

    def act(result):
        (tmp_path / str(result["pid_"])).touch()
        second.append(nodes.add_node(num_cpus=1, num_gpus=1))
        nodes.remove_node(first, allow_graceful=False)

    seen = Once(act)
    results = tune.Tuner(
        saves,
        param_space={"n": tune.grid_search([1, 2]), "doomed": str(tmp_path)},
        tune_config=tune.TuneConfig(scheduler=colocate(lanes=1)),
        run_config=run_config(callbacks=[seen]),
    ).fit()
    check_all_came_to_the_end(results, seen)
    assert {result.metrics["node"] for result in results} == {second[0].node_id}


class Grows(tune.Callback):
    """Adds a node with a GPU once Tune has looked at its trials and could start none."""

    def __init__(self, nodes):
        self.nodes = nodes
        self.node = None

    def on_step_end(self, iteration, trials, **info):
        if self.node is None and trials:
            assert {trial.status for trial in trials} == {"PENDING"}
            self.node = self.nodes.add_node(num_cpus=1, num_gpus=1).node_id

    def __reduce__(self):
        return Grows, (None,)


def test_trials_that_ask_for_a_gpu_wait_until_the_cluster_has_one(cpus, run_config, caplog):
    grows = Grows(cpus)
    results = tune.Tuner(
        tune.with_resources(saves, {"gpu": 0.5}),
        param_space={"n": tune.grid_search([1, 2])},
        tune_config=tune.TuneConfig(scheduler=colocate()),
        run_config=run_config(callbacks=[grows]),
    ).fit()
    assert results.num_errors == 0
    assert {result.metrics["node"] for result in results} == {grows.node}
    assert "pass gpus=0" in caplog.text


class Counts(tune.Trainable):
    """Counts its steps; the process dies within the first save behind the fifth."""

    def setup(self, config):
        self.n, self.mark = 0, Path(config["mark"])

    def step(self):
        self.n += 1
        return {"n": self.n}

    def save_checkpoint(self, folder):
        if self.n >= 5 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"n": self.n}

    def load_checkpoint(self, state):
        self.n = state["n"]


@pytest.mark.parametrize("every", [0, 3])
def test_a_checkpoint_whose_lane_died_is_made_of_what_it_belongs_to(cpus, run_config, tmp_path, monkeypatch, every):
    results = tune.Tuner(
        Counts,
        param_space={"mark": str(tmp_path / "died")},
        tune_config=tune.TuneConfig(scheduler=colocate(lanes=1)),
        run_config=run_config(
            stop={"training_iteration": 5},
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True, checkpoint_frequency=every),
        ),
    ).fit()
    assert results.num_errors == 0
    assert (tmp_path / "died").exists()
    (result,) = results
    # Else an object of its own makes a folder below the home directory.
    monkeypatch.setattr("ray.tune.trainable.trainable.DEFAULT_STORAGE_PATH", str(tmp_path))
    restored = Counts({"mark": str(tmp_path / "died")})
    restored.restore(result.checkpoint.path)
    assert (result.metrics["n"], restored.n) == (5, 5)
