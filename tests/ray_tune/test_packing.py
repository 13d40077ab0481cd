"""What the brain and the lanes do to Ray Tune's trials: the same results, measured memory, retries nobody hears of."""

from __future__ import annotations

import ctypes
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

ray = pytest.importorskip("ray")

from ray import tune
from ray.tune.schedulers import FIFOScheduler, ResourceChangingScheduler

import cotune
from cotune import colocate, session
from cotune.demand import MIB
from cotune.errors import InputError, TrialTooLarge
from cotune.sharing.delays import are_counted

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("gpus")]


def deterministic(config):
    np.random.seed(config["seed"])
    random.seed(config["seed"])
    value = 0.0
    for _ in range(4):
        value += np.random.randn() + random.random()
        tune.report({"score": value, "pid_": os.getpid(), "gpu": ray.get_gpu_ids(), "cwd": os.getcwd()})


def own_stack():
    """Bytes of the stack of the thread that calls."""
    libc, attributes, size = ctypes.CDLL(None), ctypes.create_string_buffer(128), ctypes.c_size_t()
    assert libc.pthread_getattr_np(ctypes.c_void_p(threading.get_ident()), attributes) == 0
    assert libc.pthread_attr_getstacksize(attributes, ctypes.byref(size)) == 0
    libc.pthread_attr_destroy(attributes)
    return size.value


def outcome(results):
    return {
        (result.config["seed"], result.metrics["score"], result.metrics["training_iteration"]) for result in results
    }


def test_same_results_as_ray_tune_with_residents_taking_turns(run_config):
    def run(**kwargs):
        return tune.Tuner(
            deterministic,
            param_space={"seed": tune.grid_search(list(range(6)))},
            tune_config=tune.TuneConfig(metric="score", mode="max", **kwargs),
            run_config=run_config(),
        ).fit()

    plain = run(reuse_actors=True, max_concurrent_trials=1)
    packed = run(scheduler=colocate(lanes=1, max_residents=3))
    assert outcome(packed) == outcome(plain)
    assert {len(result.metrics["gpu"]) for result in packed} == {1}
    assert len({result.metrics["pid_"] for result in packed}) <= 2, "one lane on each of two logical GPUs"
    for result in packed:
        assert result.metrics["trial_id"] in result.metrics["cwd"], "each in its own working directory"


@pytest.mark.skipif(not are_counted(), reason="this kernel does not count delays")
def test_the_delays_that_are_left_out_are_those_of_the_thread_that_runs_the_function(run_config):
    def train(config):
        counted = os.readlink(f"/proc/self/fd/{session.current()._meter._delays._fd}")
        tune.report({"counted": int(Path(counted).parent.name), "own": threading.get_native_id()})

    (result,) = tune.Tuner(train, tune_config=tune.TuneConfig(scheduler=colocate()), run_config=run_config()).fit()
    assert result.metrics["counted"] == result.metrics["own"]


class Stacked(tune.Trainable):
    def step(self):
        return {"stack": own_stack(), "done": True}


@pytest.mark.parametrize("trainable", [Stacked, lambda config: tune.report({"stack": own_stack()})])
def test_a_trial_has_the_stack_of_any_thread(run_config, trainable):
    with ThreadPoolExecutor(1) as pool:
        usual = pool.submit(own_stack).result()
    (result,) = tune.Tuner(trainable, tune_config=tune.TuneConfig(scheduler=colocate()), run_config=run_config()).fit()
    assert result.metrics["stack"] == usual


def hungry(config):
    block = np.ones(config["mib"] * MIB // 8)
    for _ in range(3):
        tune.report({"score": float(block[0]), "device": cotune.device()})


def test_out_of_memory_is_retried_and_costs_no_failure(run_config):
    trials = []

    class Watch(tune.Callback):
        def on_trial_error(self, iteration, trials_, trial, **info):
            trials.append(trial.trial_id)

        on_trial_recover = on_trial_error

    results = tune.Tuner(
        hungry,
        param_space={"mib": tune.grid_search([8, 8, 8, 350, 8])},
        tune_config=tune.TuneConfig(scheduler=colocate(gpus=1, lanes=2, policy="fifo")),
        run_config=run_config(callbacks=[Watch()], failure_config=tune.FailureConfig(max_failures=0)),
    ).fit()
    assert results.num_errors == 0
    assert trials == [], "Tune has not heard of it"


def test_what_fits_no_device_fails_once_with_the_figures(run_config):
    results = tune.Tuner(
        hungry,
        param_space={"mib": 200_000},
        tune_config=tune.TuneConfig(scheduler=colocate(gpus=1, lanes=1)),
        run_config=run_config(failure_config=tune.FailureConfig(max_failures=3)),
    ).fit()
    assert results.num_errors == 1
    assert "largest device leaves" in str(results[0].error)
    assert isinstance(results[0].error, TrialTooLarge)
    assert "in hungry" in Path(results[0].path, "error.txt").read_text()


def stepper(config):
    for _ in range(config["steps"]):
        time.sleep(0.01)
        tune.report({"score": 1})


def test_ray_kill_takes_one_trial_and_not_its_lane_mates(run_config):
    class Kill(tune.Callback):
        def on_trial_result(self, iteration, trials, trial, result, **info):
            if trial.config["steps"] == 1000 and result["training_iteration"] == 3:
                ray.kill(trial.temporary_state.ray_actor)

    results = tune.Tuner(
        stepper,
        param_space={"steps": tune.grid_search([1000, 40, 41])},
        tune_config=tune.TuneConfig(scheduler=colocate(gpus=1, lanes=1, max_residents=3)),
        run_config=run_config(callbacks=[Kill()]),
    ).fit()
    assert results.num_errors == 1
    alive = [result for result in results if result.error is None]
    assert sorted(result.metrics["training_iteration"] for result in alive) == [40, 41]
    assert all(result.metrics["iterations_since_restore"] in (40, 41) for result in alive), (
        "they went on where they were"
    )


class Counts(tune.Trainable):
    def step(self):
        time.sleep(0.05)
        return {"score": 1}

    def bad(self):
        raise ValueError("a method of the user's")

    def save_checkpoint(self, checkpoint_dir): ...


def test_a_callback_may_use_the_handle_of_a_trial_as_in_ray(run_config):
    found = {}

    class Uses(tune.Callback):
        def on_trial_result(self, iteration, trials, trial, result, **info):
            handle = trial.temporary_state.ray_actor
            if result["training_iteration"] == 2 and handle is not None:
                for method in ("bad", "missing"):
                    try:
                        ray.get(getattr(handle, method).remote(), timeout=20)
                    except Exception as error:
                        found[method] = type(getattr(error, "cause", error))
                metrics = ray.get(handle.get_auto_filled_metrics.remote(), timeout=20)
                found["iterations"] = metrics["iterations_since_restore"]
                found["id"] = len(handle._actor_id.hex())
                with pytest.raises(TypeError, match="stays with Tune"):
                    ray.put(handle)

    results = tune.Tuner(
        Counts,
        tune_config=tune.TuneConfig(scheduler=colocate(gpus=1, lanes=1)),
        run_config=run_config(callbacks=[Uses()], stop={"training_iteration": 4}),
    ).fit()
    assert results.num_errors == 0
    assert [result.metrics["training_iteration"] for result in results] == [4]
    assert found["bad"] is ValueError
    assert found["missing"] is AttributeError
    assert found["iterations"] == 2
    assert found["id"] > 0


def hangs(config):
    tune.report({"score": 0, "pid_": os.getpid()})
    if config["hangs"]:
        time.sleep(3600)
    for _ in range(50):
        time.sleep(0.01)
        tune.report({"score": 1, "pid_": os.getpid()})


def test_a_killed_trial_that_hangs_leaves_its_lane_mates_their_progress(run_config):
    class Kill(tune.Callback):
        done = False

        def on_step_end(self, iteration, trials, **info):
            stuck = [trial for trial in trials if trial.config["hangs"] and trial.last_result.get("score") == 0]
            if stuck and stuck[0].status == "RUNNING" and not self.done:
                self.done = True
                ray.kill(stuck[0].temporary_state.ray_actor)

    results = tune.Tuner(
        hangs,
        param_space={"hangs": tune.grid_search([False, True])},
        tune_config=tune.TuneConfig(scheduler=colocate(gpus=1, lanes=1, max_residents=2, policy="fifo")),
        run_config=run_config(callbacks=[Kill()]),
    ).fit()
    good = next(result for result in results if not result.config["hangs"])
    assert good.error is None
    assert good.metrics["iterations_since_restore"] == 51


def needs_what_is_not_there(config):
    if config["x"] == 1:
        Path(config["refused"]).touch()
        raise MemoryError("no room")
    while True:
        time.sleep(0.01)
        tune.report({"loss": 1.0})


class AfterAWhile(tune.Stopper):
    """Ends the run once one trial was refused its memory, and another has reported so often since."""

    def __init__(self, refused):
        self.refused, self.reports = refused, 0

    def __call__(self, trial_id, result):
        self.reports += self.refused.exists()
        return False

    def stop_all(self):
        return self.reports >= 40


def test_a_run_can_end_while_a_trial_waits_for_room_to_start_again(run_config, tmp_path):
    refused = tmp_path / "refused"
    results = tune.Tuner(
        needs_what_is_not_there,
        param_space={"x": tune.grid_search([0, 1]), "refused": str(refused)},
        tune_config=tune.TuneConfig(scheduler=colocate(lanes=2, gpus=1)),
        run_config=run_config(stop=AfterAWhile(refused)),
    ).fit()
    assert not results.num_errors


def loses_its_helper(config):
    with open(config["log"], "a") as log:
        log.write("x")

    @ray.remote(num_cpus=0)
    class Helper:
        def fall(self):
            os._exit(1)

    ray.get(Helper.remote().fall.remote())


def test_a_trial_whose_own_actor_dies_has_failed(run_config, tmp_path):
    log = tmp_path / "log"
    results = tune.Tuner(
        loses_its_helper,
        param_space={"log": str(log)},
        tune_config=tune.TuneConfig(scheduler=colocate(gpus=1)),
        run_config=run_config(),
    ).fit()
    assert results.num_errors == 1
    assert log.read_text() == "x"


def test_an_overdue_trial_fails_alone(run_config):
    results = tune.Tuner(
        hangs,
        param_space={"hangs": tune.grid_search([True, False, False])},
        tune_config=tune.TuneConfig(scheduler=colocate(gpus=1, lanes=1, policy="fifo", iteration_timeout=5)),
        run_config=run_config(),
    ).fit()
    assert results.num_errors == 1
    assert "no iteration boundary in time" in str(next(r.error for r in results if r.config["hangs"]))


def test_a_process_for_each_trial_on_a_measured_fraction(run_config, monkeypatch):
    monkeypatch.delenv("TUNE_MAX_PENDING_TRIALS_PG", raising=False)
    asked = []

    class Watch(tune.Callback):
        def on_trial_start(self, iteration, trials, trial, **info):
            asked.append(trial.placement_group_factory.required_resources["GPU"])

    scheduler = colocate(isolation="process")
    assert "TUNE_MAX_PENDING_TRIALS_PG" not in os.environ, "it would be there for later runs"
    results = tune.Tuner(
        tune.with_resources(deterministic, {"cpu": 1, "gpu": 1}),
        param_space={"seed": tune.grid_search([1, 2])},
        tune_config=tune.TuneConfig(scheduler=scheduler, max_concurrent_trials=1),
        run_config=run_config(callbacks=[Watch()]),
    ).fit()
    assert results.num_errors == 0
    assert len({result.metrics["pid_"] for result in results}) == 2
    assert asked[0] == 1
    assert asked[1] < 0.5


@pytest.mark.parametrize("isolation", ["lane", "process"])
def test_no_trial_waits_until_nobody_else_uses_its_gpu(run_config, isolation):
    # As a module of a script might have it.
    from ray.tune.utils import wait_for_gpu

    def train(config):
        # Without GPUtil, or a GPU, Ray's own raises an error.
        tune.report({"goes_on": [wait_for_gpu(delay_s=1), tune.utils.wait_for_gpu("0", retry=2)]})

    results = tune.Tuner(
        tune.with_resources(train, {"gpu": 1}),
        tune_config=tune.TuneConfig(scheduler=colocate(gpus=1, isolation=isolation)),
        run_config=run_config(),
    ).fit()
    assert results[0].metrics["goes_on"] == [True] * 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"gpus": -1},
        {"gpus": True},
        {"lanes": 0},
        {"max_residents": 1.5},
        {"memory_margin": 1},
        {"isolation": "thread"},
        {"policy": "best"},
        {"iteration_timeout": 0},
        {"iteration_timeout": True},
        {"iteration_timeout": float("inf")},
        {"scheduler": 3},
        {"scheduler": "no such"},
        {"scheduler": ResourceChangingScheduler()},
    ],
)
def test_wrong_arguments_are_refused_with_a_hint(wrong):
    with pytest.raises(InputError) as caught:
        colocate(**wrong)
    assert caught.value.hint


def test_the_scheduler_stays_what_it_is():
    scheduler = FIFOScheduler()
    wrapped = colocate(scheduler)
    assert wrapped is scheduler
    assert isinstance(wrapped, FIFOScheduler)
