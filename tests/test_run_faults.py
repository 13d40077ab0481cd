"""Hostile trainables and killed processes: others do not notice, nothing is left over."""

import contextlib
import json
import os
import signal
import textwrap
import time
from pathlib import Path

import numpy as np
import optuna
import pytest

import cotune
from cotune.demand import MIB
from cotune.driver import signals
from cotune.packer.policies import Fifo


class StopsAtStep(optuna.pruners.BasePruner):
    """Stops every trial at its third step."""

    def prune(self, study, trial):
        return trial.last_step >= 3


@pytest.fixture
def impatient(monkeypatch):
    """How soon a trial that does not stop is killed; the brain's own tests hold the usual times."""
    monkeypatch.setattr("cotune.packer.lane_events.STOP_GRACE", 0.5)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_a_trial_leaves_reserved_and_unused_does_not_keep_the_next_from_starting(run):
    def train(config):
        import json
        import mmap

        cotune.report({"loss": 0.0})
        if not hasattr(json, "kept"):
            json.kept = mmap.mmap(-1, 1 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        cotune.report({"loss": 1.0})

    results = run(train, {"x": cotune.uniform(0, 1)}, trials=6, lanes=2)
    assert [str(trial.state) for trial in results] == ["done"] * 6


@pytest.mark.parametrize("how", ["returns", "raises", "exits", "reports"])
def test_a_process_that_a_trial_forks_says_nothing_for_it(run, how):
    def train(config):
        if os.fork() == 0:
            if how == "returns":
                return 77.0
            if how == "raises":
                raise ValueError("child")
            if how == "exits":
                raise SystemExit(3)
            cotune.report({"loss": 77.0})
            return None
        _, status = os.wait()
        return config["x"] + os.waitstatus_to_exitcode(status)

    results = run(train, {"x": 10}, trials=1)
    code = {"returns": 0, "raises": 1, "exits": 3, "reports": 0}[how]
    assert [report["loss"] for report in results[0].history] == [10 + code]


def test_a_lane_killed_under_its_trials_costs_them_only_the_time_since_their_checkpoints(run, tmp_path):
    def train(config):
        start = 0
        if (saved := cotune.restore()) is not None:
            start = int((saved / "epoch").read_text()) + 1
        for epoch in range(start, 12):
            cotune.report({"loss": float(epoch), "pid": os.getpid()}, step=epoch)
            with cotune.checkpoint() as path:
                (path / "epoch").write_text(str(epoch))
            marker = tmp_path / "killed"
            if cotune.trial_id() == 1 and epoch == 6 and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    results = run(train, {"x": 1}, trials=3, lanes=1, residents=3)
    assert [trial.state for trial in results] == ["done"] * 3
    assert results[1].attempts == 2
    for trial in results:
        assert [report["step"] for report in trial.history] == list(range(12))
    assert len({report["pid"] for report in results[1].history}) == 2


def test_a_result_without_a_step_takes_back_no_report_of_a_lost_attempt(run, tmp_path):
    def train(config):
        saved = cotune.restore()
        for step in range(100 + (int((saved / "step").read_text()) if saved else 0), 501, 100):
            cotune.report({"loss": 1.0}, step=step)
            with cotune.checkpoint() as path:
                (path / "step").write_text(str(step))
        if saved is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0.5

    (trial,) = run(train, {"x": 1}, trials=1)
    assert (trial.attempts, trial.state) == (2, "done")
    assert [report["step"] for report in trial.history] == [100, 200, 300, 400, 500, 501]


def test_an_attempt_that_saves_before_it_restores_counts_from_its_own_beginning(run, tmp_path):
    killed = tmp_path / "killed"

    def train(config):
        if killed.exists():
            with cotune.checkpoint():
                pass
        cotune.restore()
        for _ in range(3):
            cotune.report({"loss": 1.0}, step=None if killed.exists() else 500)
            with cotune.checkpoint():
                pass
        if not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    (trial,) = run(train, {"x": 1}, trials=1)
    assert (trial.attempts, [report["step"] for report in trial.history][-1]) == (2, trial.history[0]["step"] + 2)
    assert trial.history[-1]["step"] < 500


def test_a_trial_that_keeps_killing_its_lane_is_failed_by_name(run):
    def train(config):
        if config["x"] == 1:
            cotune.report({"loss": 0.0})
            signal.raise_signal(signal.SIGSEGV)
        cotune.report({"loss": 1.0})

    results = run(train, {"x": cotune.choice([0, 1, 2])}, sampler="grid", lanes=1)
    (failed,) = results.errors
    assert failed.config["x"] == 1
    assert isinstance(failed.error, cotune.LaneDied)
    assert "SIGSEGV" in str(failed.error)
    assert failed.attempts == 3


def test_a_hung_iteration_is_overdue_and_charged_to_its_trial_only(run):
    def train(config):
        for step in range(20):
            cotune.report({"loss": 1.0}, step=step)
            if cotune.trial_id() == 0 and step == 5:
                while True:
                    time.sleep(60)

    results = run(train, {"x": 1}, trials=4, lanes=1, residents=2, iteration_timeout=2)
    (failed,) = results.errors
    assert failed.id == 0
    assert isinstance(failed.error, cotune.TrialOverdue)
    assert [trial.state for trial in results][1:] == ["done"] * 3


def test_a_trial_stuck_in_native_code_does_not_outlive_the_run(run, impatient):
    def train(config):
        cotune.report({"loss": 1.0, "pid": os.getpid()}, step=3)
        signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.valid_signals()) - {signal.SIGKILL})
        while True:
            time.sleep(60)

    (trial,) = run(train, {"x": 1}, trials=1, pruner=StopsAtStep())
    assert trial.state == "stopped"
    assert not is_alive(trial.metrics["pid"])


def test_memory_leaked_into_globals_recycles_the_lane(run):
    def train(config):
        import sys

        import numpy as np

        hoard = sys.__dict__.setdefault("cotune_test_hoard", [])
        hoard.append(np.ones(100 * MIB, dtype=np.uint8))
        cotune.report({"loss": 1.0, "pid": os.getpid(), "hoarded": len(hoard)})
        cotune.report({"loss": 1.0})

    results = run(train, {"x": 1}, trials=6, lanes=1, devices=["cpu:0@2GiB"])
    assert not results.errors
    assert len({trial.metrics["pid"] for trial in results}) > 1
    assert max(trial.metrics["hoarded"] for trial in results) <= 3


def test_a_limit_that_a_trial_lowers_is_not_its_successors(run):
    def train(config):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
        cotune.report({"loss": soft, "pid": os.getpid()})

    first, second = run(train, {"x": 1}, trials=2, lanes=1)
    assert first.metrics == second.metrics


def test_a_process_group_that_a_trial_leaves_behind_is_not_its_successors(run):
    def train(config):
        import sys
        import types

        left = types.SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True)
        sys.modules[config["name"]] = left
        return os.getpid()

    first, second = run(train, {"name": "torch.distributed"}, trials=2, lanes=1)
    assert first.metrics != second.metrics


def test_a_trial_that_catches_every_exception_can_be_stopped_and_its_memory_is_freed(run):
    def train(config):
        import numpy as np

        held = np.ones(300 * MIB, dtype=np.uint8)
        for step in range(10**9):
            with contextlib.suppress(Exception):
                cotune.report({"loss": float(config["x"]) + held[0], "pid": os.getpid()}, step=step)

    space = {"x": cotune.choice([0, 1, 2])}
    results = run(train, space, sampler="grid", lanes=1, pruner=StopsAtStep(), devices=["cpu:0@512MiB"])
    assert [trial.state for trial in results] == ["stopped"] * 3
    assert len({trial.metrics["pid"] for trial in results}) == 1


def test_a_trial_that_swallows_its_stop_is_killed_with_its_lane(run, impatient):
    def train(config):
        while True:
            with contextlib.suppress(BaseException):
                cotune.report({"loss": 1.0, "pid": os.getpid()})

    results = run(train, {"x": 1}, trials=1, pruner=StopsAtStep())
    assert results[0].state == "stopped"
    assert not is_alive(results[0].metrics["pid"])


@pytest.mark.parametrize("code", [0, 3, "enough"])
def test_sys_exit_ends_its_trial_only(run, code):
    def train(config):
        import sys

        cotune.report({"loss": 1.0})
        if config["x"]:
            sys.exit(code)

    results = run(train, {"x": cotune.choice([0, 1])}, sampler="grid", lanes=1)
    states = {trial.config["x"]: trial.state for trial in results}
    assert states == {0: "done", 1: "done" if code == 0 else "failed"}
    if code:
        assert f"sys.exit({code!r})" in str(results.errors[0].error)


def test_a_trial_that_says_by_itself_that_it_was_stopped_fails_once(run):
    def train(config):
        cotune.report({"loss": 1.0})
        raise cotune.TrialStopped

    results = run(train, {"x": cotune.uniform(0, 1)}, trials=1, lanes=1, max_failures=2, time_budget=20)
    assert "by itself" in str(results[0].error)
    assert results[0].attempts == 1


def test_os_exit_is_a_dead_lane_and_siblings_finish(run):
    def train(config):
        cotune.report({"loss": 1.0})
        if config["x"]:
            os._exit(7)

    results = run(train, {"x": cotune.choice([0, 1, 2, 0])}, trials=4, lanes=2, sampler="random")
    for trial in results:
        assert trial.state == ("failed" if trial.config["x"] else "done")
        assert trial.error is None or "exit code 7" in str(trial.error)


def test_data_loader_workers_and_subprocesses_work_and_go_with_their_lane(run):
    def train(config):
        import subprocess

        import torch

        data = torch.utils.data.TensorDataset(torch.arange(64.0))
        loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2)
        total = sum(float(batch[0].sum()) for batch in loader)
        child = subprocess.Popen(["sleep", "1000"])
        stray = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        cotune.report({"loss": total, "child": child.pid, "stray": stray.pid})

    results = run(train, {"x": 1}, trials=3, lanes=2)
    assert not results.errors
    for trial in results:
        assert trial.metrics["loss"] == sum(range(64))
        assert not is_alive(trial.metrics["child"])
        assert not is_alive(trial.metrics["stray"])


def test_a_zygote_killed_in_the_middle_is_replaced(run):
    def train(config):
        cotune.report({"loss": 0.0})
        if cotune.trial_id() == 2 and cotune.restore() is None:
            with cotune.checkpoint():
                pass
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
        cotune.report({"loss": 1.0})

    results = run(train, {"x": 1}, trials=5, lanes=2)
    assert [trial.state for trial in results] == ["done"] * 5


@pytest.mark.parametrize(
    ("times", "number", "says", "hint"),
    [
        (1, signal.SIGKILL, None, None),
        (2, signal.SIGKILL, "was killed by SIGKILL at its start", "want of memory"),
        (1, signal.SIGSEGV, "was killed by SIGSEGV at its start", "must work by itself"),
    ],
)
def test_a_zygote_that_is_killed_while_it_imports_is_started_once_more(
    run, tmp_path, monkeypatch, times, number, says, hint
):
    text = f"""
        import os, pathlib, resource
        died = pathlib.Path({str(tmp_path)!r}, "died")
        died.open("a").write("x")
        if len(died.read_text()) <= {times}:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.kill(os.getpid(), {int(number)})
    """
    (tmp_path / "killed_here.py").write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("cotune.script.pickling.modules_to_preload", lambda *given, **how: ["killed_here"])
    if says is None:
        assert not run(lambda config: 0.0, {"x": 1}, trials=2).errors
    else:
        with pytest.raises(cotune.RunError, match=says) as refused:
            run(lambda config: 0.0, {"x": 1}, trials=2)
        assert hint in refused.value.hint


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(run):
    def train(config):
        with cotune.checkpoint() as path:
            (path / "state").write_text("good")
        cotune.report({"loss": 1.0})
        with cotune.checkpoint() as path:
            (path / "state").write_text("bad")
            raise OSError(28, "No space left on device", str(path / "state"))

    results = run(train, {"x": 1}, trials=1)
    (failed,) = results.errors
    assert isinstance(failed.error, cotune.StorageError)
    assert "No space left" in str(failed.error)
    assert (failed.checkpoint / "state").read_text() == "good"


def test_a_line_that_a_full_disk_refuses_costs_no_trial(run):
    def train(config):
        import os

        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
        print("lost")
        cotune.report({"loss": 1.0})

    results = run(train, {"x": 1}, trials=1)
    assert [trial.state for trial in results] == ["done"]


def test_what_a_trial_has_every_thread_traced_with_does_not_keep_the_next_from_starting(run):
    def train(config):
        import threading

        def refuse(*_):
            raise ValueError("traced")

        threading.settrace(refuse)
        threading.setprofile(refuse)
        cotune.report({"loss": 1.0})

    assert not run(train, {"x": 1}, trials=2, lanes=1).errors


def test_a_trial_that_breaks_python_itself_fails_by_name(run):
    def train(config):
        import builtins

        builtins.isinstance = None
        cotune.report({"loss": 1.0})

    (failed,) = run(train, {"x": 1}, trials=1).errors
    assert isinstance(failed.error, cotune.LaneDied)


def test_threads_of_a_trial_may_report(run):
    def train(config):
        import threading

        thread = threading.Thread(target=lambda: cotune.report({"loss": 1.0}))
        thread.start()
        thread.join()

    assert not run(train, {"x": 1}, trials=2, lanes=1).errors


def test_a_trial_that_changes_the_process_does_not_change_its_successor(run):
    def train(config):
        import random

        import numpy as np
        import torch

        state = [torch.get_default_dtype(), os.getcwd(), os.environ.get("COTUNE_TEST"), torch.rand(1).item()]
        state += [float(np.random.rand()), random.random(), torch.get_num_threads(), torch.is_grad_enabled()]
        cotune.report({"loss": 1.0, "state": repr(state[:3] + state[6:]), "drawn": repr(state[3:6])})
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(2)
        torch.set_grad_enabled(False)
        os.chdir("/")
        os.environ["COTUNE_TEST"] = "leaked"
        np.random.seed(0)

    results = run(train, {"x": 1}, trials=3, lanes=1)
    assert len({trial.metrics["state"] for trial in results}) == 1
    assert len({trial.metrics["drawn"] for trial in results}) == 3


def test_waiting_for_a_slow_sampler_is_not_a_missing_boundary(run):
    class Slow(optuna.samplers.RandomSampler):
        def sample_relative(self, study, trial, search_space):
            time.sleep(0.8 if trial.number else 0)  # what a large model takes to fit
            return super().sample_relative(study, trial, search_space)

    def train(config):
        for step in range(30):
            cotune.report({"loss": 1.0}, step=step)
            time.sleep(0.01)

    class Never(optuna.pruners.BasePruner):
        def prune(self, study, trial):
            return False

    space = {"x": cotune.uniform(0, 1)}
    results = run(train, space, trials=4, sampler=Slow(), pruner=Never(), iteration_timeout=0.5)
    assert [trial.state for trial in results] == ["done"] * 4


def test_a_report_in_a_forked_child_does_not_hold_up_the_trial(run):
    def train(config):
        import multiprocessing

        def work():
            for _ in range(5):
                cotune.report({"loss": 2.0})

        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join()
        cotune.report({"loss": 1.0})

    (trial,) = run(train, {"x": 1}, trials=1)
    assert [report["loss"] for report in trial.history] == [1.0]
    assert "loss=2" in (trial.folder / "log.txt").read_text()


def test_a_thread_left_behind_reports_into_no_other_trial(run):
    def train(config):
        import threading

        def haunt():
            while True:
                cotune.report({"loss": -1000.0})

        if cotune.trial_id() == 0:
            threading.Thread(target=haunt, daemon=True).start()
        for _ in range(5):
            cotune.report({"loss": 1.0, "pid": os.getpid()})

    results = run(train, {"x": 1}, trials=3, lanes=1)
    for trial in list(results)[1:]:
        assert {report["loss"] for report in trial.history} == {1.0}


def test_a_checkpoint_is_not_published_before_the_reports_it_stands_behind_are_safe(run):
    def train(config):
        start = 0
        if (saved := cotune.restore()) is not None:
            start = int((saved / "step").read_text()) + 1
        for step in range(start, 4):
            cotune.report({"loss": float(step)}, step=step)
            with cotune.checkpoint() as path:
                (path / "step").write_text(str(step))
            events = (path.parents[3] / "events.jsonl").read_text()
            assert f'"step":{step},' in events, "the report is in the file before its checkpoint is"

    assert not run(train, {"x": 1}, trials=2, lanes=2).errors


@pytest.mark.parametrize("kind", ["raises", "is no text", "surrogates"])
def test_an_exception_whose_text_is_broken_fails_its_trial_only(run, kind):
    def train(config):
        class Broken(Exception):
            def __str__(self):
                if kind == "raises":
                    raise ValueError("no text")
                return 3 if kind == "is no text" else "\udcff"

        print("printed \udcff")
        raise Broken

    (failed,) = run(train, {"x": 1}, trials=1).errors
    assert isinstance(failed.error, cotune.TrialFailed)
    assert "Broken" in str(failed.error)
    assert failed.attempts == 1


def test_replaced_streams_do_not_outlive_their_trial(run):
    def train(config):
        import io
        import sys

        print("here")
        sys.stdout, sys.stderr = io.StringIO(), None
        cotune.report({"loss": 1.0})

    results = run(train, {"x": 1}, trials=3, lanes=1)
    assert not results.errors
    assert all((trial.folder / "log.txt").read_text() == "here\n" for trial in results)


def test_a_broken_device_context_is_charged_to_none_of_those_who_share_it(run, tmp_path):
    def train(config):
        mine, other = tmp_path / f"began-{config['x']}", tmp_path / f"began-{1 - config['x']}"
        is_first = not mine.exists()
        mine.touch()
        while is_first:
            cotune.report({"loss": 0.0})
            if config["x"] == 0 and other.exists():
                cotune.session.current().host.memory.is_sound = lambda: False
                raise RuntimeError("an illegal memory access was encountered")
        cotune.report({"loss": 1.0})

    results = run(train, {"x": cotune.choice([0, 1])}, sampler="grid", lanes=1, residents=2)
    assert [(str(trial.state), trial.attempts) for trial in results] == [("done", 2)] * 2


def test_what_goes_wrong_on_the_device_after_the_last_line_fails_its_trial_and_not_the_next(run):
    def train(config):
        cotune.report({"loss": 0.0, "pid": os.getpid()})
        if cotune.trial_id() == 0:
            memory = cotune.session.current().host.memory
            memory.synchronize = lambda: 1 // 0
            memory.is_sound = lambda: False

    first, *others = run(train, {"x": cotune.choice([0, 1, 2])}, sampler="grid", lanes=1)
    assert isinstance(first.error, cotune.TrialFailed)
    assert "ZeroDivisionError" in str(first.error)
    assert [str(trial.state) for trial in others] == ["done", "done"]
    assert first.metrics["pid"] not in {trial.metrics["pid"] for trial in others}


def test_a_trial_whose_native_code_aborts_for_want_of_memory_is_tried_again_as_any_that_ran_out(run):
    def train(config):
        if cotune.trial_id() == 7:
            # More than the others have shown; refused, it does as Rust does.
            try:
                held = np.ones(200 * MIB, dtype=np.uint8)
            except MemoryError:
                os.write(2, b"memory allocation of 209715200 bytes failed\n")
                os.abort()
            held[0] = 0
        cotune.report({"loss": 0.0})

    result = run(train, {"x": cotune.choice([*range(8)])}, sampler="grid", lanes=2, devices=["cpu:0@600MiB"])
    assert {str(trial.state) for trial in result} == {"done"}
    retries = [
        json.loads(line) for line in (result.folder / "events.jsonl").read_text().splitlines() if '"retry"' in line
    ]
    assert retries
    assert all("out of memory: it needs 200 MiB or more" in retry["reason"] for retry in retries)
    assert not any(retry["lane_died"] for retry in retries)


def test_where_the_device_is_broken_what_the_error_holds_is_not_freed(run, tmp_path):
    class OnDevice:
        """Freed, it would ask the device when it may be, which ends the process."""

        def __del__(self):
            os.kill(os.getpid(), signal.SIGABRT)

    def train(config):
        cotune.report({"loss": 0.0, "pid": os.getpid()})
        if cotune.trial_id() == 0:
            batch = OnDevice()
            cotune.session.current().host.memory.is_sound = lambda: False
            raise RuntimeError(f"device-side assert triggered by {type(batch).__name__}")

    first, second = run(train, {"x": cotune.choice([0, 1])}, sampler="grid", lanes=1)
    assert (str(first.state), first.attempts) == ("failed", 1)
    assert "device-side assert" in str(first.error)
    assert (str(second.state), second.metrics["pid"] == first.metrics["pid"]) == ("done", False)


def test_a_thread_that_python_only_met_and_those_of_a_compiler_cost_no_lane(run):
    def train(config):
        import _thread
        import threading

        met, never = threading.Event(), threading.Event()

        def backward():
            threading.current_thread()
            met.set()
            never.wait()

        # As a library's own thread does it that calls Python.
        _thread.start_new_thread(backward, ())
        met.wait()
        threading.Thread(target=never.wait, name="InductorSubproc", daemon=True).start()
        cotune.report({"loss": 0.0, "pid": os.getpid()})

    results = run(train, {"x": 1.0}, trials=3, lanes=1)
    assert len({trial.metrics["pid"] for trial in results}) == 1


def test_ctrl_c_a_third_time_breaks_off_what_never_comes_back(run, monkeypatch):
    came_back = []
    monkeypatch.setattr(signals, "ECHO", 0.0)

    class Hung(Fifo):
        def key(self, waiting):
            for _ in range(3):
                signal.raise_signal(signal.SIGINT)
            came_back.append(waiting.trial)
            return super().key(waiting)

    with pytest.raises(KeyboardInterrupt):
        run(lambda config: 0.0, {"x": cotune.uniform(0, 1)}, trials=1, policy=Hung())
    assert not came_back


def kill_lane_once(flag):
    """Kills the process of its caller, the first time."""
    if not Path(flag).exists():
        Path(flag).touch()
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_trial_that_takes_nothing_up_makes_all_its_reports_again(run, tmp_path):
    flag = str(tmp_path / "killed")

    def train(config):
        for epoch in range(100):
            cotune.report({"loss": float(epoch)})
            with cotune.checkpoint() as path:
                (path / "model").write_text("for somebody else")
            if epoch == 2:
                kill_lane_once(flag)

    results = run(train, {"x": 1}, trials=1, lanes=1, stop={"training_iteration": 5})
    assert [row["loss"] for row in results[0].history] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert results[0].attempts == 2


def test_a_pruner_may_answer_with_an_array_of_one(run):
    class Answers(optuna.pruners.BasePruner):
        def prune(self, study, trial):
            return np.array([trial.last_step >= 2])

    def train(config):
        for epoch in range(5):
            cotune.report({"loss": float(epoch)})

    (trial,) = run(train, {"x": 1}, trials=1, pruner=Answers(), lockstep=True)
    assert (str(trial.state), len(trial.history)) == ("stopped", 2)


def test_reports_of_a_lost_attempt_are_not_judged_again(run, tmp_path):
    flag, seen = str(tmp_path / "killed"), []

    class Looks(optuna.pruners.BasePruner):
        def prune(self, study, trial):
            seen.append(sorted(trial.intermediate_values))
            return False

    def train(config):
        for epoch in range(3):
            cotune.report({"loss": float(epoch)})
        kill_lane_once(flag)

    run(train, {"x": 1}, trials=1, lanes=1, pruner=Looks(), lockstep=True)
    assert seen == [[1], [1, 2], [1, 2, 3]] * 2


@pytest.mark.parametrize("residents", [1, 3])
def test_a_thread_of_a_trial_may_save_while_it_reports(run, residents):
    class Slow(optuna.pruners.BasePruner):
        def prune(self, study, trial):
            time.sleep(0.005)
            return False

    def train(config):
        import random
        from concurrent.futures import ThreadPoolExecutor

        def save():
            with cotune.checkpoint() as path:
                (path / "model").write_text("")

        drawn = []
        with ThreadPoolExecutor() as pool:
            for _ in range(10):
                cotune.report({"loss": 0.0})
                saving = pool.submit(save)
                drawn.append(random.random())
                cotune.report({"loss": 0.0})
                saving.result()
        cotune.report({"loss": sum(drawn)})

    space = {"x": cotune.choice([0, 1, 2])}
    together = run(train, space, sampler="grid", lanes=1, residents=residents, pruner=Slow())
    assert [(str(trial.state), trial.attempts, len(trial.history)) for trial in together] == [("done", 1, 21)] * 3
    alone = run(train, space, sampler="grid", lanes=1)
    assert [trial.metrics["loss"] for trial in together] == [trial.metrics["loss"] for trial in alone]


def test_a_process_that_a_thread_of_a_trial_forks_is_not_the_trial(run):
    def train(config):
        import multiprocessing
        import threading

        def fork():
            child = multiprocessing.get_context("fork").Process(target=cotune.report, args=({"loss": 99.0},))
            child.start()
            child.join()

        cotune.report({"loss": 0.0})
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
        cotune.report({"loss": 1.0})

    results = run(train, {"x": 1}, trials=1, lanes=1)
    assert [row["loss"] for row in results[0].history] == [0.0, 1.0]


def test_what_a_trial_does_on_its_way_out_may_take_its_time(run, tmp_path):
    mark = tmp_path / "uploaded"

    def train(config):
        from cotune.sharing.inside import leaving

        # As if it had been seconds.
        leaving.LEAVE_WITHIN = 0.0
        try:
            while True:
                cotune.report({"loss": 0.0})
        finally:
            try:
                with cotune.checkpoint() as path:
                    (path / "model").write_text("")
            finally:
                mark.touch()

    results = run(train, {"x": 1}, trials=1, lanes=1, stop={"training_iteration": 3})
    assert mark.exists()
    assert (str(results[0].state), results[0].attempts) == ("done", 1)


def test_a_failure_without_a_word_is_tried_again_too(run):
    def train(config):
        raise cotune.TrialFailed("")

    results = run(train, {"x": 1}, trials=1, lanes=1, max_failures=1)
    assert (str(results[0].state), results[0].attempts) == ("failed", 2)


class CountsToThree:
    """Says at its third step that it is done, or is stopped there; the first time its lane dies right afterwards."""

    def setup(self, config):
        self.n, self.flag = 0, Path(config["flag"])

    def step(self):
        self.n += 1
        return {"loss": 1.0 / self.n, "done": self.n == 3 and not self.flag.name.endswith("stop")}

    def save(self, path):
        (path / "n").write_text(str(self.n))

    def load(self, path):
        self.n = int((path / "n").read_text())

    def cleanup(self):
        kill_lane_once(self.flag)


@pytest.mark.parametrize("how", ["stop", "done"])
def test_a_trial_whose_end_was_lost_behind_its_last_checkpoint_does_not_go_on(run, tmp_path, how):
    stop = {"training_iteration": 3} if how == "stop" else None
    results = run(CountsToThree, {"flag": str(tmp_path / how)}, trials=1, lanes=1, stop=stop)
    assert [row["step"] for row in results[0].history] == [1, 2, 3]
    assert (str(results[0].state), results[0].attempts) == ("done", 2)


def test_a_function_whose_end_was_lost_behind_its_last_checkpoint_does_not_go_on(run, tmp_path):
    flag, epochs = str(tmp_path / "killed"), tmp_path / "epochs"

    def train(config):
        saved = cotune.restore()
        start = int((saved / "n").read_text()) if saved else 0
        try:
            for epoch in range(start, 100):
                with epochs.open("a") as file:
                    file.write(f"{epoch} ")
                cotune.report({"loss": float(epoch)})
                with cotune.checkpoint() as path:
                    (path / "n").write_text(str(epoch + 1))
        finally:
            kill_lane_once(flag)

    results = run(train, {"x": 1}, trials=1, lanes=1, stop={"training_iteration": 3})
    assert [row["loss"] for row in results[0].history] == [0.0, 1.0, 2.0]
    assert (str(results[0].state), results[0].attempts, epochs.read_text()) == ("done", 2, "0 1 2 ")


def test_a_checkpoint_in_the_middle_of_an_epoch_counts_no_report_that_was_never_made(run, tmp_path):
    flag = tmp_path / "killed"

    def train(config):
        saved = cotune.restore()
        fifths = int((saved / "fifths").read_text()) if saved else 0
        while fifths < 20:
            fifths += 1
            if fifths == 18:
                kill_lane_once(flag)
            with cotune.checkpoint() as path:
                (path / "fifths").write_text(str(fifths))
            if fifths % 5 == 0:
                cotune.report({"loss": 1.0, "epoch": fifths // 5})

    (trial,) = run(train, {"x": 1}, trials=1, lanes=1)
    assert [(row["step"], row["epoch"]) for row in trial.history] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert trial.attempts == 2


@pytest.mark.parametrize("reads", [False, True])
def test_a_checkpoint_of_the_beginning_counts_no_report(run, tmp_path, reads):
    flag = tmp_path / "killed"

    def train(config):
        if reads:
            time.sleep(0.3)
        saved = cotune.restore()
        done = int((saved / "epoch").read_text()) if saved else 0
        if saved is None:
            with cotune.checkpoint() as path:
                (path / "epoch").write_text("0")
        for epoch in range(done + 1, 5):
            time.sleep(0.05)
            cotune.report({"loss": 1.0, "epoch": epoch})
            if epoch == 2:
                kill_lane_once(flag)

    (trial,) = run(train, {"x": 1}, trials=1, lanes=1)
    assert [(row["step"], row["epoch"]) for row in trial.history] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert trial.attempts == 2


@pytest.mark.parametrize("killed_after", [1, 2])
def test_a_stored_report_stays_when_the_lane_dies_that_saved_before_it(run, tmp_path, killed_after):
    flag = tmp_path / "killed"

    def train(config):
        saved = cotune.restore()
        for epoch in range(int((saved / "epoch").read_text()) + 1 if saved else 1, 5):
            time.sleep(0.03)
            if epoch > killed_after:
                kill_lane_once(flag)
            with cotune.checkpoint() as path:
                (path / "epoch").write_text(str(epoch))
            cotune.report({"loss": 1.0, "epoch": epoch})

    (trial,) = run(train, {"x": 1}, trials=1, lanes=1)
    assert [(row["step"], row["epoch"]) for row in trial.history] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert trial.attempts == 2


def test_a_trial_that_ends_while_a_thread_of_its_own_waits_for_the_turn_takes_nobodys(run):
    def train(config):
        import threading

        from cotune import session

        turns, ended = session.current().host.turns, threading.Event()

        def report():
            while not ended.is_set():
                cotune.report({"loss": 0.0})

        cotune.report({"loss": 0.0})
        if config["x"] == 0:
            thread = threading.Thread(target=report, daemon=True)
            thread.start()
            while turns.holder in (session.current(), None):
                thread.join(0.001)
            return
        for _ in range(300):
            cotune.report({"loss": 1.0})
            ended.wait(0.001)

    results = run(train, {"x": cotune.choice([0, 1])}, sampler="grid", lanes=1, residents=2, iteration_timeout=10)
    assert [(str(trial.state), trial.attempts) for trial in results] == [("done", 1)] * 2


def test_a_thread_that_waits_for_a_verdict_is_not_charged_with_what_a_lane_mate_does(run):
    class SlowForOne(optuna.pruners.BasePruner):
        def prune(self, study, trial):
            time.sleep(1.0 * (trial.number == 0))
            return False

    def train(config):
        import threading
        import time

        import torch

        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)

        def step_until(seconds):
            while time.monotonic() - began < seconds:
                optimizer.step()
                time.sleep(0.01)

        def save():
            with cotune.checkpoint() as path:
                (path / "model").touch()

        began = time.monotonic()
        step_until(0.5)
        if config["x"] == 1:
            step_until(1.0)
            time.sleep(1000)
        cotune.report({"loss": 0.0})
        saving = threading.Thread(target=save)
        saving.start()
        step_until(2.5)
        saving.join()

    space = {"x": cotune.choice([0, 1])}
    results = run(train, space, sampler="grid", lanes=1, residents=2, pruner=SlowForOne(), iteration_timeout=3)
    assert {trial.config["x"]: str(trial.state) for trial in results} == {0: "done", 1: "failed"}


@pytest.mark.parametrize("front", ["run", "optimize"])
def test_a_pruned_trial_is_told_with_its_own_value_and_not_that_of_a_lost_attempt(run, tmp_path, front):
    flag = tmp_path / "killed"

    class StopsTheSecond(optuna.pruners.BasePruner):
        def prune(self, study, trial):
            return flag.exists()

    def steps(report):
        size = 1000.0 if flag.exists() else 1.0
        for step in range(1, 6):
            report(size * step, step)
            if step == 4:
                kill_lane_once(flag)

    def train(config):
        steps(lambda value, step: cotune.report({"loss": value}, step=step))

    def objective(trial):
        def report(value, step):
            trial.report(value, step)
            if trial.should_prune():
                raise optuna.TrialPruned

        steps(report)
        return 0.0

    if front == "run":
        results = run(train, {"x": 1}, trials=1, lanes=1, pruner=StopsTheSecond(), lockstep=True, name="pruned")
        backend = optuna.storages.journal.JournalFileBackend(str(results.folder / "optuna.journal"))
        study = optuna.load_study(study_name="pruned", storage=optuna.storages.JournalStorage(backend))
    else:
        study = optuna.create_study(pruner=StopsTheSecond())
        cotune.optimize(study, objective, n_trials=1, devices=["cpu:0@1GiB"], storage=tmp_path)
    (trial,) = study.trials
    assert (trial.state.name, trial.value) == ("PRUNED", 1000.0)
    assert set(trial.intermediate_values.values()) == {1000.0}
