"""`cotune.optimize` when processes die, memory runs out, others share the study, and Ctrl-C is pressed."""

import contextlib
import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

import cotune
from cotune import optuna_study
from cotune.demand import MIB
from cotune.driver.signals import ECHO

ROOT = Path(cotune.__file__).parents[1]


def states(study):
    return [t.state.name for t in study.trials]


def test_a_trial_whose_lane_is_killed_starts_again_as_the_same_trial(optimize, tmp_path):
    def objective(trial):
        x = trial.suggest_float("x", 0, 1)
        marker = tmp_path / "killed"
        for step in range(4):
            trial.report(x + step + (10 if not marker.exists() else 0), step)
            if trial.number == 1 and step == 2 and not marker.exists():
                trial.should_prune()  # so that the reports have arrived
                marker.write_text(str(x))
                os.kill(os.getpid(), signal.SIGKILL)
        return x

    study = optuna.create_study()
    optimize(study, objective, n_trials=3, lanes=1)
    assert states(study) == ["COMPLETE"] * 3
    assert study.trials[1].params == {"x": float((tmp_path / "killed").read_text())}
    assert study.trials[1].intermediate_values == {step: study.trials[1].value + step for step in range(4)}


def test_a_forked_process_cannot_ask_the_trial(optimize):
    def objective(trial):
        theirs, ours = os.pipe()
        if os.fork() == 0:
            try:
                trial.suggest_float("x", 0, 1)
            except BaseException as error:
                os.write(ours, repr(error).encode())
            finally:
                os._exit(0)
        os.close(ours)
        trial.set_user_attr("told", os.read(theirs, 1000).decode())
        os.wait()
        return trial.suggest_float("x", 0, 1)

    study = optuna.create_study()
    optimize(study, objective, n_trials=1, lanes=1)
    assert "process that its objective has started" in study.trials[0].user_attrs["told"]
    assert states(study) == ["COMPLETE"]


@pytest.mark.parametrize(("way", "code"), [("exit", 0), ("exit", 5), ("return", 0), ("raise", 1), ("prune", 1)])
def test_a_forked_process_that_leaves_the_objective_ends_as_it_would_anywhere(optimize, way, code):
    def objective(trial):
        child = os.fork()
        if not child:
            if way == "exit":
                sys.exit(code)
            if way == "return":
                return 5.0
            raise ValueError("planned") if way == "raise" else optuna.TrialPruned
        trial.set_user_attr("code", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return 1.0

    study = optuna.create_study()
    optimize(study, objective, n_trials=1, lanes=1)
    assert (states(study), study.trials[0].user_attrs["code"], study.best_value) == (["COMPLETE"], code, 1.0)


def test_a_trial_that_keeps_killing_its_lane_is_told_to_have_failed_and_others_go_on(optimize):
    def objective(trial):
        if trial.number == 0:
            os.kill(os.getpid(), signal.SIGSEGV)
        return 1.0

    study = optuna.create_study()
    optimize(study, objective, n_trials=3, lanes=1)
    assert states(study) == ["FAIL", "COMPLETE", "COMPLETE"]


def test_a_trial_out_of_memory_gets_more_and_the_study_never_hears_of_it(optimize, tmp_path):
    def objective(trial):
        import numpy as np

        # Nothing tells beforehand which trial is large.
        size = 300 if trial.number == 4 else 20
        with open(tmp_path / f"attempts-{trial.number}", "a") as file:
            file.write("x")
        for step in range(3):
            scratch = np.ones(size * MIB, dtype=np.uint8)
            trial.report(float(scratch[0]), step)
        return 1.0

    study = optuna.create_study()
    heard = []
    optimize(study, objective, n_trials=6, lanes=2, callbacks=[lambda study, trial: heard.append(trial.number)])
    assert states(study) == ["COMPLETE"] * 6
    assert sorted(heard) == list(range(6))
    assert len((tmp_path / "attempts-4").read_text()) > 1


def test_a_trial_larger_than_any_device_fails_alone(optimize):
    def objective(trial):
        import numpy as np

        np.ones((3000 if trial.number == 1 else 10) * MIB, dtype=np.uint8)
        return 1.0

    study = optuna.create_study()
    optimize(study, objective, n_trials=3, devices=["cpu:0@1GiB"])
    assert states(study) == ["COMPLETE", "FAIL", "COMPLETE"]


def test_an_exception_in_one_lane_stops_the_trials_in_the_others_which_are_not_said_to_have_raised_it(
    optimize, tmp_path, caplog
):
    is_there = tmp_path / "is there"
    os.mkfifo(is_there)

    def objective(trial):
        if trial.number == 1:
            is_there.read_text()
            raise ValueError("no luck")
        for step in range(2):  # after which it is known what a trial needs, and a second one may begin
            trial.report(0.0, step)
        is_there.write_text("0 is")
        time.sleep(600)

    study = optuna.create_study()
    logger = logging.getLogger("optuna")
    logger.addHandler(caplog.handler)
    with pytest.raises(ValueError, match="no luck"):
        optimize(study, objective, lanes=2)
    logger.removeHandler(caplog.handler)
    assert states(study) == ["FAIL", "FAIL"]
    (said,) = (record for record in caplog.records if record.getMessage().startswith("Trial 0 failed with parameters"))
    assert "stopped on its way, for the optimization has ended: ValueError('no luck')" in said.getMessage()
    assert said.exc_info[0] is cotune.RunError


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_stale_trial_is_failed_and_retried_and_ours_have_a_heartbeat(optimize, tmp_path):
    name = "RetryHeartbeatStaleTrialCallback" if int(optuna.__version__[0]) > 4 else "RetryFailedTrialCallback"
    retry = getattr(optuna.storages, name)()
    callback = "heartbeat_stale_trial_callback" if int(optuna.__version__[0]) > 4 else "failed_trial_callback"
    url = f"sqlite:///{tmp_path}/study.db"
    storage = optuna.storages.RDBStorage(url, heartbeat_interval=1, grace_period=1, **{callback: retry})
    study = optuna.create_study(storage=storage)
    study.enqueue_trial({"x": 0.25})
    with pytest.warns(UserWarning, match="Heartbeat"):
        stale = study.ask()
    storage.record_heartbeat(stale._trial_id)
    with contextlib.closing(sqlite3.connect(tmp_path / "study.db")) as database, database:
        database.execute("update trial_heartbeats set heartbeat = datetime(heartbeat, '-1 minute')")
    assert storage._get_stale_trial_ids(study._study_id) == [stale._trial_id]

    def beats():
        with sqlite3.connect(tmp_path / "study.db") as database:
            return {row[0] for row in database.execute("select trial_id from trial_heartbeats")}

    before = beats()
    optimize(study, lambda trial: trial.suggest_float("x", 0, 1), n_trials=2, lanes=1)
    assert states(study) == ["FAIL", "COMPLETE", "COMPLETE"]
    assert study.trials[1].params == {"x": 0.25}
    assert len(beats() - before) == 2


# No `if __name__ == "__main__"`, on purpose.
SCRIPT = """
import os, sys, time
import optuna, cotune, cotune.packer.policies

class Unlucky(Exception):
    pass

folder, how = sys.argv[1:]
study = optuna.create_study(study_name="it", storage=f"sqlite:///{folder}/study.db", load_if_exists=True)

def helper(x):
    return x * 2

def objective(trial):
    x = helper(trial.suggest_float("x", 0, 1))
    if how == "unlucky" and trial.number % 2:
        raise Unlucky(trial.number)
    if how in ("reports", "hangs"):
        with open(f"{folder}/running", "w") as pipe:
            pipe.write(f"{os.getpid()}\\n")
    if how == "hangs":
        time.sleep(600)
    for step in range(10**6 if how == "reports" else 3):
        trial.report(x, step)
        trial.should_prune()
        time.sleep(0.01)
    return x

class Policy(cotune.packer.policies.Fifo):
    def key(self, waiting):
        if how == "stuck" and waiting.trial == 1:
            with open(f"{folder}/running", "w") as pipe:
                pipe.write(f"{os.getpid()}\\n")
            while True:
                time.sleep(0.1)
        return super().key(waiting)

class Sampler(optuna.samplers.RandomSampler):
    def after_trial(self, *told):
        if how == "telling":
            with open(f"{folder}/running", "w") as pipe:
                pipe.write(f"{os.getpid()}\\n")
            while True:
                time.sleep(0.1)

study.sampler = Sampler()
cotune.optimize(
    study, objective, n_trials=8, catch=[Unlucky], devices=["cpu:0@2GiB"], lanes=2, storage=folder + "/runs",
    dashboard=False, policy=Policy(),
)
print("done")
"""


class Driver:
    def __init__(self, folder, how):
        self.folder = folder
        (folder / "script.py").write_text(SCRIPT)
        self.process = subprocess.Popen(
            [sys.executable, str(folder / "script.py"), str(folder), how],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def lanes(self, count):
        """The pids of that many running trials."""
        heard = ""
        while heard.count("\n") < count:
            # Until one opens the other end; trials open, write and close.
            with open(self.folder / "running") as pipe:
                heard += pipe.read()
        return [int(pid) for pid in heard.split()]

    @property
    def study(self):
        return optuna.load_study(study_name="it", storage=f"sqlite:///{self.folder}/study.db")


def test_two_processes_work_on_one_study_at_once(tmp_path):
    optuna.create_study(study_name="it", storage=f"sqlite:///{tmp_path}/study.db")
    drivers = [Driver(tmp_path, "unlucky") for _ in range(2)]
    for driver in drivers:
        out, err = driver.process.communicate(timeout=100)
        assert driver.process.returncode == 0, err
        assert out == "done\n"
    study = drivers[0].study
    assert [t.number for t in study.trials] == list(range(16))
    assert states(study) == ["COMPLETE", "FAIL"] * 8


@pytest.fixture
def drive(tmp_path):
    """Starts a driver whose trials say that they run; it does not outlive the test, whatever that finds."""
    os.mkfifo(tmp_path / "running")
    with contextlib.ExitStack() as stack:

        def start(how):
            driver = Driver(tmp_path, how)
            stack.enter_context(driver.process)
            stack.callback(driver.process.kill)
            return driver

        yield start


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_running_trials_and_leaves_none_running(drive, wait_gone, number):
    driver = drive("reports")
    lanes = driver.lanes(2)
    driver.process.send_signal(number)
    _, err = driver.process.communicate(timeout=30)
    assert "at once" in err
    assert driver.process.returncode == -number
    assert err.endswith("KeyboardInterrupt\n") == (number == signal.SIGINT)
    wait_gone(lanes)
    assert set(states(driver.study)) == {"FAIL"}


def test_ctrl_c_while_all_is_set_up_is_not_lost_in_a_callback_of_the_garbage_collector(optimize, monkeypatch):
    class Garbage:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGINT)

    def make_view(dashboard):
        del made[:]
        return real(dashboard)

    made, real = [Garbage()], optuna_study.make_view
    monkeypatch.setattr(optuna_study, "make_view", make_view)
    study = optuna.create_study()
    with pytest.raises(KeyboardInterrupt):
        optimize(study, lambda trial: trial.suggest_float("x", 0, 1), n_trials=1000)
    assert len(study.trials) < 1000
    assert "RUNNING" not in states(study)


def test_ctrl_c_is_raised_again_where_another_error_is_being_handled(optimize):
    def press(study, trial):
        os.kill(os.getpid(), signal.SIGINT)

    def optimize_after_an_error():
        try:
            raise ValueError("planned")
        except ValueError:
            optimize(optuna.create_study(), lambda trial: trial.suggest_float("x", 0, 1), callbacks=[press])

    with pytest.raises(KeyboardInterrupt):
        optimize_after_an_error()


@pytest.fixture
def handles():
    """Installs a signal handler, as a script does, for one test."""
    before = {}

    def install(number, handler):
        before[number] = signal.signal(number, handler)

    yield install
    for number, was in before.items():
        signal.signal(number, was)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_handler_of_the_scripts_own_may_stop_the_study_while_this_process_waits(optimize, tmp_path, handles, number):
    os.mkfifo(tmp_path / "running")
    os.mkfifo(tmp_path / "stopped")
    study = optuna.create_study()

    def stop(*_):
        study.stop()
        (tmp_path / "stopped").write_text("yes")

    def objective(trial):
        (tmp_path / "running").write_text("yes")
        return float(len((tmp_path / "stopped").read_text()))

    def send():
        (tmp_path / "running").read_text()
        os.kill(os.getpid(), number)

    handles(number, stop)
    sender = threading.Thread(target=send)
    sender.start()
    optimize(study, objective, lanes=1)
    sender.join()
    assert states(study) == ["COMPLETE"]
    assert signal.getsignal(number) is stop


def test_a_handler_of_the_scripts_own_may_stop_the_study_before_its_first_trial(optimize, monkeypatch, handles):
    def make_view(dashboard):
        signal.raise_signal(signal.SIGTERM)
        return real(dashboard)

    real = optuna_study.make_view
    monkeypatch.setattr(optuna_study, "make_view", make_view)
    study = optuna.create_study()
    handles(signal.SIGTERM, lambda *_: study.stop())
    optimize(study, lambda trial: 1.0)
    assert study.trials == []


def test_what_a_handler_of_the_scripts_own_raises_ends_the_call(optimize, handles):
    def leave(*_):
        raise SystemExit(5)

    handles(signal.SIGTERM, leave)
    study, driver = optuna.create_study(), os.getpid()
    with pytest.raises(SystemExit, match="5"):
        optimize(study, lambda trial: os.kill(driver, signal.SIGTERM), lanes=1)
    assert "RUNNING" not in states(study)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_two_signals_end_it_at_once_whatever_runs(drive, wait_gone, number):
    driver = drive("hangs")
    lanes = driver.lanes(1)
    driver.process.send_signal(number)
    assert any("at once" in line for line in driver.process.stderr)
    time.sleep(ECHO)
    began = time.monotonic()
    driver.process.send_signal(number)
    _, err = driver.process.communicate(timeout=30)
    assert time.monotonic() - began < 4
    assert driver.process.returncode == -number
    assert err.endswith("KeyboardInterrupt\n") == (number == signal.SIGINT)
    wait_gone(lanes)
    assert set(states(driver.study)) == {"FAIL"}


@pytest.mark.parametrize("where", ["stuck", "telling"], ids=["policy", "sampler"])
def test_ctrl_c_again_and_again_ends_it_even_within_what_never_returns(drive, where):
    driver = drive(where)
    driver.lanes(1)
    until = time.monotonic() + 30
    while driver.process.poll() is None and time.monotonic() < until:
        driver.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.process.wait(0.5)
    assert driver.process.poll() is not None
    assert "KeyboardInterrupt" in driver.process.stderr.read()


def test_a_killed_driver_takes_its_lanes_along_and_the_study_can_go_on(drive, tmp_path, wait_gone):
    driver = drive("hangs")
    lanes = driver.lanes(1)
    driver.process.kill()
    driver.process.communicate()
    wait_gone(lanes)
    assert {t.state for t in driver.study.trials} == {TrialState.RUNNING}
    events = next((tmp_path / "runs").glob("*/events.jsonl")).read_text().splitlines()
    assert json.loads(events[0])["study"] == "it"
