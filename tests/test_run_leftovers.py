"""What a trial does to its process does not befall its successors and lane-mates."""

import concurrent.futures
import gc
import importlib
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import optuna
import pytest

import cotune
from cotune.engines import local
from cotune.packer.learning import Learning
from cotune.sharing import zygote
from cotune.sharing.zygote import CLOSES_WITHIN


@pytest.fixture(autouse=True)
def where_trials_begin(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("what", ["alarm", "traceback"])
def test_a_timer_that_a_trial_has_armed_does_not_end_the_next(run, what):
    def train(config):
        import faulthandler
        import signal
        import time

        if cotune.trial_id() > 0:
            began = time.monotonic()
            while time.monotonic() - began < 0.6:
                cotune.report({"loss": 0.0})
        elif what == "alarm":
            signal.setitimer(signal.ITIMER_REAL, 0.3)
        else:
            faulthandler.dump_traceback_later(0.3, exit=True)
        return 0.0

    results = run(train, {"x": 1}, trials=2, lanes=1)
    assert [(str(trial.state), trial.attempts) for trial in results] == [("done", 1)] * 2


def test_settings_of_sockets_numbers_and_the_time_zone_end_with_their_trial(run):
    def train(config):
        import gc
        import locale
        import os
        import socket
        import sys
        import time
        import tracemalloc

        found = [socket.getdefaulttimeout(), sys.get_int_max_str_digits(), time.localtime(0).tm_hour]
        found.append(len(os.sched_getaffinity(os.getpid())))
        found += [locale.setlocale(locale.LC_ALL), tracemalloc.is_tracing(), gc.get_debug()]
        locale.setlocale(locale.LC_ALL, "POSIX" if found[-3] != "C" else "C.UTF-8")
        tracemalloc.start()
        gc.set_debug(gc.DEBUG_UNCOLLECTABLE)
        socket.setdefaulttimeout(7.0)
        sys.set_int_max_str_digits(9999)
        os.environ["TZ"] = "XYZ-5"
        time.tzset()
        os.sched_setaffinity(os.getpid(), list(os.sched_getaffinity(0))[:1])
        cotune.report({"loss": 0.0, "found": str(found)})

    results = run(train, {"x": 1}, trials=2, lanes=1)
    assert results[0].metrics["found"] == results[1].metrics["found"]


def test_a_limit_is_put_back_for_a_lane_mate_of_a_trial_that_leaves_a_thread_behind(run, tmp_path):
    began, ended = tmp_path / "began", tmp_path / "ended"

    def train(config):
        import threading

        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        if config["leaves"]:
            while not began.exists():
                cotune.report({"loss": 0.0})
            resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] - 1, before[1]))
            threading.Thread(target=threading.Event().wait, daemon=True).start()
            return 0.0
        began.touch()
        while not ended.exists():
            cotune.report({"loss": 0.0})
        return {"loss": 0.0, "is_back": resource.getrlimit(resource.RLIMIT_NOFILE) == before}

    space = {"leaves": cotune.choice([True, False])}
    ends = [lambda result: ended.touch()]
    results = run(train, space, sampler="grid", lanes=1, residents=2, callbacks=ends)
    assert len({trial.lane for trial in results}) == 1
    (mate,) = (trial for trial in results if not trial.config["leaves"])
    assert mate.metrics["is_back"]


@pytest.mark.parametrize("ends", ["returns", "raises"])
def test_half_a_line_that_a_trial_ends_with_is_in_its_log(run, ends):
    def train(config):
        print("half", "a line", end="")
        cotune.report({"loss": 1.0})
        print(", and more", end="")
        if ends == "raises":
            raise ValueError

    results = run(train, {"x": 1}, trials=3, lanes=1, residents=3)
    assert [(trial.folder / "log.txt").read_text() for trial in results] == ["half a line, and more"] * 3


def test_what_c_code_prints_is_in_the_log_of_its_trial(run, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)

    def train(config):
        import ctypes

        ctypes.CDLL(None).printf(b"from C, %d\n", cotune.trial_id())
        return 0.0

    results = run(train, {"x": 1}, trials=2, lanes=1)
    assert [f"from C, {n}" in (results[n].folder / "log.txt").read_text() for n in (0, 1)] == [True, True]


def test_what_a_trial_has_redirected_stays_so_when_others_have_had_the_turn(run):
    def train(config):
        import contextlib
        import io
        import time

        caught = io.StringIO()
        with contextlib.redirect_stdout(caught):
            for step in range(12):
                print(cotune.trial_id())
                time.sleep(0.02)
                cotune.report({"loss": 0.0}, step=step)
        cotune.report({"loss": 0.0, "caught": caught.getvalue()})

    results = run(train, {"x": cotune.choice([0, 1, 2])}, sampler="grid", lanes=1, residents=2)
    assert [trial.metrics["caught"] for trial in results] == [f"{n}\n" * 12 for n in range(3)]


@pytest.mark.parametrize("residents", [1, 2])
def test_every_trial_is_compiled_as_when_it_is_alone(run, residents):
    pytest.importorskip("torch")

    def train(config):
        import torch

        compiled = 0

        def backend(graph, inputs):
            nonlocal compiled
            compiled += 1
            return graph.forward

        # The code of `Sequential` is the same for all, and torch compiles that eight times in a process.
        model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(1 + cotune.trial_id())))
        model = torch.compile(model, backend=backend)
        for _ in range(2):
            model(torch.ones(1, 2))
            cotune.report({"loss": 0.0})
        return {"loss": 0.0, "compiled": compiled}

    results = run(train, {"x": 1}, trials=11, lanes=1, residents=residents)
    assert {trial.metrics["compiled"] for trial in results} == {1}


def test_what_a_lane_mate_holds_when_the_first_trial_ends_is_collected_like_everything_else(run, tmp_path):
    begun = tmp_path / "begun"

    def train(config):
        import weakref

        class Loop:
            pass

        held = cotune.shared("held", list)
        left = sum(one() is not None for number, one in held if number != cotune.trial_id())
        loop = Loop()
        loop.itself = loop
        held.append((cotune.trial_id(), weakref.ref(loop)))
        if cotune.trial_id() == 0:
            # The first one ends while the second has its object.
            while not begun.exists():
                cotune.report({"loss": 0.0})
        elif cotune.trial_id() == 1:
            begun.touch()
            while left == 0 and len(held) < 3:
                cotune.report({"loss": 0.0})
        return {"loss": 0.0, "left": left}

    results = run(train, {"x": 1}, trials=6, lanes=1, residents=2)
    # At the third's beginning the second's is still in use.
    assert [trial.metrics["left"] for trial in results][3:] == [0, 0, 0]


@pytest.mark.parametrize("used_in", ["annotation", "compiled", "divergence"])
def test_classes_of_the_script_and_their_variables_go_with_the_trial_whatever_has_noted_them(run, used_in):
    torch = pytest.importorskip("torch")

    class Own(torch.nn.Module if used_in == "compiled" else torch.distributions.Normal):
        def forward(self, x):
            return x + 1

    def train(config):
        import colorsys
        import typing
        import weakref

        import torch

        # The lane's, and no object of cotune.shared, whose classes later trials inherit.
        seen = vars(colorsys).setdefault("seen", [])
        left = sum(cls() is not None for cls in seen)
        seen.append(weakref.ref(Own))
        if used_in == "annotation":
            assert typing.get_args(typing.Optional[Own])  # noqa: UP045 - this is what fills the caches
        elif used_in == "compiled":
            torch.compile(Own(), backend="eager")(torch.ones(2))
        else:
            torch.distributions.kl_divergence(Own(0.0, 1.0), Own(1.0, 1.0))
        return {"loss": 0.0, "left": left}

    results = run(train, {"x": 1}, trials=4, lanes=1)
    assert [trial.metrics["left"] for trial in results] == [0] * 4


def test_reports_of_several_threads_are_made_one_after_the_other(run):
    def train(config):
        import threading

        failed = []

        def work(number):
            try:
                for _ in range(100):
                    cotune.report({"loss": float(number)})
            except Exception as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed, failed

    (trial,) = run(train, {"x": 1}, trials=1)
    assert [report["step"] for report in trial.history] == list(range(1, 801))
    assert trial.seconds > 0


@pytest.fixture
def counts(monkeypatch):
    """The iterations that trials have told of, as they came."""
    pytest.importorskip("torch")
    counts = []
    progressed = Learning.progressed

    def noted(self, trial, lane, event):
        counts.append(event.count)
        progressed(self, trial, lane, event)

    monkeypatch.setattr(Learning, "progressed", noted)
    return counts


def test_iterations_are_steps_and_reports_without_one_and_none_is_taken_back(run, counts):
    def train(config):
        import torch

        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(5):
            cotune.report({"loss": 1.0})
        for _ in range(3):
            for _ in range(4):
                optimizer.zero_grad()
                weight.square().sum().backward()
                optimizer.step()
            cotune.report({"loss": 0.0})

    run(train, {"x": 1}, trials=1)
    assert min(counts) >= 0
    assert sum(counts) == 5 + 3 * 4


def test_training_a_shared_object_is_no_iteration_of_the_trial_that_builds_it(run, counts):
    def train(config):
        import torch

        def teacher():
            weight = torch.nn.Parameter(torch.ones(1))
            optimizer = torch.optim.SGD([weight], lr=0.1)
            for _ in range(7):
                weight.square().sum().backward()
                optimizer.step()
            return weight.detach()

        weight = cotune.shared("teacher", teacher)
        for _ in range(3):
            cotune.report({"loss": float(weight)})

    run(train, {"x": 1}, trials=2, lanes=1)
    assert sum(counts) == 2 * 3


def test_a_rule_for_stopping_may_be_large(run):
    ballast = np.zeros(3 << 20)

    def train(config):
        for _ in range(10):
            cotune.report({"loss": 0.0})

    results = run(train, {"x": 1}, trials=2, lanes=1, stop=lambda trial, metrics: metrics["loss"] <= ballast[-1])
    assert [len(trial.history) for trial in results] == [1, 1]


def test_where_no_further_thread_can_be_had_a_trial_is_tried_again(run, tmp_path):
    refused = tmp_path / "refused"

    def train(config):
        import threading

        # The latter until Python 3.12.
        name = "_start_joinable_thread" if hasattr(threading, "_start_joinable_thread") else "_start_new_thread"
        if cotune.trial_id() == 0:
            start = getattr(threading, name)

            def refuse(*given, **named):
                setattr(threading, name, start)
                refused.touch()
                raise RuntimeError("can't start new thread")

            setattr(threading, name, refuse)
            # In a lane of which it had all, the next one would be too large for the device.
            threading.left = b"." * (8 << 20)
        return 0.0

    results = run(train, {"x": 1}, trials=2, lanes=1)
    assert refused.exists()
    assert "out of memory" in (results.folder / "events.jsonl").read_text(), "and no lane has died"
    assert [(str(trial.state), trial.attempts) for trial in results] == [("done", 1), ("done", 2)]


def test_a_trial_that_lacks_threads_and_not_memory_fails_with_what_it_has_raised(run):
    def train(config):
        import threading

        def refuse(*given, **named):
            raise RuntimeError("can't start new thread")

        # As where the limit of processes is reached, and stays so.
        setattr(
            threading,
            "_start_joinable_thread" if hasattr(threading, "_start_joinable_thread") else "_start_new_thread",
            refuse,
        )
        threading.Thread(target=print).start()

    (trial,) = run(train, {"x": 1}, trials=1)
    assert (str(trial.state), trial.attempts) == ("failed", 1)
    assert trial.error.message == "trial 0: RuntimeError: can't start new thread"


def test_a_sweep_whose_trainable_hangs_in_an_import_ends_with_its_time(run, tmp_path, monkeypatch):
    (tmp_path / "hangs_here.py").write_text("import threading\nthreading.Event().wait()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("cotune.packer.lane_events.STOP_GRACE", 0.5)
    monkeypatch.setattr("cotune.script.pickling.modules_to_preload", lambda *given, **how: ["hangs_here"])
    before = threading.active_count()
    results = run(lambda config: 0.0, {"x": 1}, trials=2, time_budget=0.5)
    assert results.interrupted
    assert {str(trial.state) for trial in results} <= {"interrupted", "waiting"}
    assert threading.active_count() <= before


@pytest.mark.parametrize("residents", [1, 2])
def test_every_log_has_the_warnings_of_its_trial(run, tmp_path, monkeypatch, residents):
    (tmp_path / "old_helper.py").write_text("import warnings\ndef use():\n    warnings.warn('use another')\n")
    monkeypatch.syspath_prepend(tmp_path)

    def train(config):
        import old_helper

        for _ in range(3):
            old_helper.use()
        return 0.0

    results = run(train, {"x": 1}, trials=4, lanes=1, residents=residents)
    assert [(trial.folder / "log.txt").read_text().count("UserWarning") for trial in results] == [1] * 4


def test_how_a_trial_logs_and_shows_warnings_is_not_how_the_next_does(run):
    def train(config):
        import logging
        import warnings

        logging.basicConfig(filename=f"{cotune.trial_id()}.log", level=logging.DEBUG, force=True)
        logging.getLogger("mine").debug("from trial %d", cotune.trial_id())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for step in range(8):
                warnings.warn(f"trial {cotune.trial_id()}", stacklevel=1)
                cotune.report({"loss": 0.0}, step=step)
        text = Path(f"{cotune.trial_id()}.log").read_text()
        cotune.report({"loss": 0.0, "text": text, "caught": sorted({str(one.message) for one in caught})})

    here = os.getcwd()
    results = run(train, {"x": cotune.choice([0, 1, 2])}, sampler="grid", lanes=1, residents=2)
    assert os.getcwd() == here
    assert results.errors == []
    for trial in results:
        assert trial.metrics["text"] == f"DEBUG:mine:from trial {trial.id}\n"
        assert trial.metrics["caught"] == [f"trial {trial.id}"]


def test_without_reuse_every_trial_has_a_process_of_its_own(run):
    def train(config):
        return {"loss": 0.0, "pid": os.getpid()}

    results = run(train, {"x": 1}, trials=6, lanes=2, reuse=False)
    assert len({trial.metrics["pid"] for trial in results}) == 6
    assert {str(trial.state) for trial in results} == {"done"}


def test_residents_and_no_reuse_exclude_each_other(run):
    with pytest.raises(cotune.InputError, match="residents=2"):
        run(lambda config: 0.0, {"x": 1}, trials=1, residents=2, reuse=False)


def test_an_objective_may_have_a_process_of_its_own_for_every_trial(tmp_path):
    study = optuna.create_study()

    def objective(trial):
        trial.set_user_attr("pid", os.getpid())
        return trial.suggest_float("x", 0, 1)

    cotune.optimize(study, objective, n_trials=4, devices=["cpu:0@4GiB"], storage=tmp_path, reuse=False)
    assert len({trial.user_attrs["pid"] for trial in study.trials}) == 4


def test_reports_of_threads_that_a_trial_starts_are_its_own(run):
    def train(config):
        def evaluate(step):
            cotune.report({"loss": config["i"] + step / 100, "trial": cotune.trial_id(), "i": config["i"]}, step=step)

        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            list(pool.map(evaluate, range(200)))

    results = run(train, {"i": cotune.choice([0, 1, 2])}, sampler="grid", lanes=1, residents=3)
    assert [trial.error for trial in results] == [None] * 3
    for trial in results:
        assert len(trial.history) == 200
        assert {report["i"] for report in trial.history} == {trial.config["i"]}
        assert {report["trial"] for report in trial.history} == {trial.id}


def test_a_hook_that_one_resident_registers_is_no_harm_to_others(run):
    def train(config):
        import torch

        optimizers = importlib.import_module("torch.optim.optimizer")
        weight = torch.ones(1, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            handle = optimizers.register_optimizer_step_post_hook(lambda *_: None) if config["hooks"] else None
            weight.sum().backward()
            optimizer.step()
            if handle is not None:
                handle.remove()
        return 0.0

    results = run(train, {"hooks": cotune.choice([True, False])}, sampler="grid", lanes=1, residents=2)
    assert [trial.error for trial in results] == [None] * 2


@pytest.mark.parametrize("residents", [1, 2])
@pytest.mark.parametrize("how", ["wrapped", "detached", "closed"])
def test_what_a_trial_does_to_its_streams_does_not_keep_others_from_printing(run, how, residents):
    def train(config):
        import io
        import sys

        cotune.report({"loss": 0.0})
        if cotune.trial_id() % 2 == 0:
            if how == "wrapped":
                sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8")
            elif how == "detached":
                sys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding="utf-8")
            else:
                sys.stdout.close()
            sys.stdout = None
            return 0.0
        for _ in range(100):
            cotune.report({"loss": 0.0})
        print("here is", cotune.trial_id())
        return 0.0

    results = run(train, {"x": 1}, trials=4, lanes=1, residents=residents)
    assert [str(trial.error) for trial in results if trial.error] == []
    logs = [(trial.folder / "log.txt").read_text() for trial in results]
    assert logs[1::2] == ["here is 1\n", "here is 3\n"]


class Never(optuna.pruners.BasePruner):
    def prune(self, study, trial):
        return False


@pytest.mark.parametrize("pruner", [None, Never()])
def test_a_thread_that_reports_while_its_trial_ends_changes_nothing_any_more(run, pruner):
    def train(config):
        begun = threading.Event()

        def beat():
            while True:
                cotune.report({"loss": 1.0})
                begun.set()

        threading.Thread(target=beat, daemon=True).start()
        begun.wait()
        return 0.0

    results = run(train, {"x": cotune.uniform(0, 1)}, trials=25, lanes=2, pruner=pruner)
    assert {str(trial.state) for trial in results} == {"done"}
    over = set()
    for line in (results.folder / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        assert event["event"] != "report" or event["trial"] not in over
        if event["event"] == "end":
            over.add(event["trial"])
    assert len(over) == 25


def test_a_program_that_a_trial_starts_has_the_memory_that_it_needs(run):
    def train(config):
        hog = "x = bytearray(400 << 20)"
        if config["how"] == "subprocess":
            subprocess.run([sys.executable, "-c", hog], check=True)
        elif config["how"] == "system":
            assert os.system(f"{sys.executable} -c '{hog}'") == 0
        else:
            with multiprocessing.get_context(config["how"]).Pool(1) as pool:
                assert pool.apply(len, [b"." * (200 << 20)]) == 200 << 20
        return 0.0

    space = {"how": cotune.choice(["subprocess", "system", "fork", "spawn"])}
    first = run(lambda config: 0.0, {"x": cotune.uniform(0, 1)}, trials=3, lanes=1, name="small")
    assert not first.errors
    results = run(train, space, trials=8, sampler="grid", lanes=2)
    assert not results.errors
    assert [trial.attempts for trial in results] == [1] * len(results)


def test_files_that_trials_leave_open_do_not_run_out(run):
    def train(config):
        return sum(os.open(os.devnull, os.O_RDONLY) < 0 for _ in range(150))

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
    try:
        results = run(train, {"x": 1}, trials=6, lanes=1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [str(trial.state) for trial in results] == ["done"] * 6
    assert [trial.attempts for trial in results] == [1] * 6


@pytest.mark.parametrize("residents", [1, 2])
def test_another_object_in_place_of_the_environment_is_its_content(run, residents):
    def train(config):
        found = os.environ.get("SEED")
        os.environ = {**os.environ, "SEED": str(cotune.trial_id())}  # noqa: B003 - what is tested
        sys.path = (*sys.path, "elsewhere")
        for _ in range(3):
            cotune.report(
                {"loss": 0.0, "before": found, "now": os.environ.get("SEED"), "path": "elsewhere" in sys.path}
            )
        return 0.0

    results = run(train, {"x": 1}, trials=6, lanes=1, residents=residents)
    assert {str(trial.state) for trial in results} == {"done"}
    assert [trial.metrics["before"] for trial in results] == [None] * 6
    assert [trial.metrics["now"] for trial in results] == [str(trial.id) for trial in results]
    assert all(trial.metrics["path"] for trial in results)
    assert [trial.attempts for trial in results] == [1] * 6


@pytest.mark.parametrize("what", ["tracker", "signals"])
def test_what_a_package_does_when_it_is_imported_is_no_harm_to_the_sweep(run, tmp_path, monkeypatch, what):
    name = f"imports_with_{what}"
    text = {
        "tracker": "import multiprocessing\nlock = multiprocessing.get_context('spawn').Lock()\n",
        "signals": "import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_DFL)\nsignal.set_wakeup_fd(-1)\n",
    }[what]
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("cotune.script.pickling.modules_to_preload", lambda *given, **how: [name])
    dying = tmp_path / "died"

    def train(config):
        if not dying.exists():
            dying.touch()
            os._exit(3)
        return 0.0

    began = time.monotonic()
    results = run(train, {"x": 1}, trials=2, lanes=1)
    assert {str(trial.state) for trial in results} == {"done"}
    assert time.monotonic() - began < CLOSES_WITHIN, "nor does the zygote have to be killed"


def test_a_path_of_modules_longer_than_an_argument_may_be(run, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, *(f"/nowhere/{'x' * 100}/{n}" for n in range(2000))])
    results = run(lambda config: float(len(sys.path)), {"x": 1}, trials=1)
    assert results[0].metrics["loss"] > 2000


@pytest.mark.parametrize("where", [sys, threading])
def test_a_hook_for_errors_that_is_none_does_not_keep_the_next_from_beginning(run, where):
    def train(config):
        where.excepthook = None
        return 0.0

    results = run(train, {"x": 1}, trials=4, lanes=1)
    assert [(str(trial.state), trial.attempts) for trial in results] == [("done", 1)] * 4


def test_a_hook_for_errors_stays_in_place_when_a_lane_mate_begins(run, tmp_path):
    is_set, has_begun = tmp_path / "set", tmp_path / "begun"

    def train(config):
        number = cotune.trial_id()
        hook = threading.excepthook
        if number == 0:
            threading.excepthook = hook = lambda args: None
            is_set.touch()
        if number == 2:
            has_begun.touch()
        while not (is_set if number == 1 else has_begun).exists():
            cotune.report({"loss": 0.0, "kept": True})
        cotune.report({"loss": 0.0, "kept": threading.excepthook is hook})

    results = run(train, {"x": 1}, trials=3, lanes=1, residents=2)
    assert [trial.metrics["kept"] for trial in results] == [True] * 3


@pytest.mark.parametrize("residents", [1, 2])
def test_a_stream_that_a_trial_has_deleted_is_there_again_for_the_next(run, residents):
    def train(config):
        print("printed")
        cotune.report({"loss": 0.0})
        del sys.stdout, sys.stderr
        for _ in range(3):
            cotune.report({"loss": 0.0})

    results = run(train, {"x": 1}, trials=4, lanes=1, residents=residents)
    assert [(str(trial.state), trial.attempts) for trial in results] == [("done", 1)] * 4
    assert all((trial.folder / "log.txt").read_text() == "printed\n" for trial in results)


def test_a_lane_that_has_left_its_process_group_can_be_killed(run):
    def train(config):
        if cotune.trial_id() == 0:
            os.setpgid(0, os.getpgid(os.getppid()))
            threading.Event().wait()
        return 0.0

    results = run(train, {"x": 1}, trials=2, lanes=1, iteration_timeout=1.5)
    assert [str(trial.state) for trial in results] == ["failed", "done"]


def test_a_process_forked_within_a_checkpoint_publishes_nothing(run):
    def train(config):
        with cotune.checkpoint() as path:
            child = os.fork()
            (path / f"of-{'child' if child == 0 else 'trial'}").touch()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        return 0.0

    results = run(train, {"x": 1}, trials=2, lanes=1)
    assert not results.errors
    assert all((trial.checkpoint / "of-trial").exists() for trial in results)


def test_one_that_hangs_while_the_turn_changes_is_overdue(run):
    def train(config):
        if cotune.trial_id() == 0:

            class Stuck:
                def write(self, text):
                    return len(text)

                def flush(self):
                    threading.Event().wait()

            cotune.report({"loss": 0.0})
            sys.stdout = Stuck()
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            cotune.report({"loss": 0.0})
        return 0.0

    results = run(train, {"x": 1}, trials=2, lanes=1, residents=2, iteration_timeout=1.5)
    assert "overdue" in str(results[0].error).lower() or "no iteration boundary" in str(results[0].error)


def test_the_pool_of_joblib_serves_one_trial_after_the_other(run, wait_gone):
    def train(config):
        import joblib

        cotune.report(
            {"loss": 0.0, "pool": sorted(joblib.Parallel(2)(joblib.delayed(_pid_after)(0.3) for _ in range(2)))}
        )

    results = run(train, {"x": 1}, trials=3, lanes=1)
    assert [str(trial.state) for trial in results] == ["done"] * 3
    (pool,) = {tuple(trial.metrics["pool"]) for trial in results}
    assert len(set(pool)) == 2
    wait_gone(pool)


def test_a_pool_of_joblib_that_still_works_for_a_trial_ends_with_it(run, tmp_path):
    def train(config):
        from joblib.externals.loky import get_reusable_executor

        pool = get_reusable_executor(max_workers=1)
        pids = [pool.submit(os.getpid).result(), os.getpid()]
        if cotune.trial_id() == 0:
            pool.submit(time.sleep, 600)
        cotune.report({"loss": 0.0, "pids": pids})

    first, second, third = (trial.metrics["pids"] for trial in run(train, {"x": 1}, trials=3, lanes=1))
    assert not set(first) & set(second)
    assert second == third


def _pid_after(seconds):
    time.sleep(seconds)
    return os.getpid()


@pytest.mark.parametrize("reuse", [True, False])
def test_temporary_directories_that_trials_leave_open_go_with_their_lanes(run, tmp_path, reuse):
    (place := tmp_path / "temporary").mkdir()

    def train(config):
        import sys
        import tempfile

        kept = vars(sys).setdefault("kept_by_trials", [])
        kept.append(tempfile.TemporaryDirectory(dir=place))
        return float(all(os.path.isdir(directory.name) for directory in kept))

    results = run(train, {"x": 1}, trials=2, lanes=1, reuse=reuse)
    assert [trial.metrics["loss"] for trial in results] == [1.0, 1.0]
    assert not os.listdir(place)


def test_the_temporary_directory_of_a_module_is_there_for_all_lanes_and_gone_at_the_end(run, tmp_path, monkeypatch):
    (place := tmp_path / "temporary").mkdir()
    (modules := tmp_path / "modules").mkdir()
    (modules / "keeps_a_directory.py").write_text(
        f"import tempfile\ndirectory = tempfile.TemporaryDirectory(dir={str(place)!r})\n"
    )
    monkeypatch.syspath_prepend(modules)

    def train(config):
        import keeps_a_directory

        return float(os.path.isdir(keeps_a_directory.directory.name))

    results = run(train, {"x": 1}, trials=2, lanes=1, reuse=False)
    assert [trial.metrics["loss"] for trial in results] == [1.0, 1.0]
    assert not os.listdir(place)


def test_a_temporary_directory_that_cannot_be_removed_does_not_keep_its_lane(run, tmp_path, monkeypatch):
    monkeypatch.setattr(local, "EXIT_WITHIN", 0.1)
    monkeypatch.setattr(zygote, "LEAVE_WITHIN", 0.1)

    def train(config):
        import sys
        import tempfile

        tempfile.TemporaryDirectory._rmtree = lambda *_, **__: threading.Event().wait()
        vars(sys)["kept_by_trials"] = tempfile.TemporaryDirectory(dir=tmp_path)
        return 0.0

    results = run(train, {"x": 1}, trials=2, lanes=1, reuse=False)
    assert [(str(trial.state), trial.attempts) for trial in results] == [("done", 1)] * 2


class Large:
    loss = 1.0


def test_a_run_that_is_over_keeps_nothing_of_its_trainable(run):
    def swept():
        large = Large()

        def train(config):
            return large.loss

        # With an object in the config the pickler of the trainable is needed to the end.
        assert len(run(train, {"x": Large}, trials=2)) == 2
        return weakref.ref(large)

    # A cycle that only the garbage collector finds may hold gigabytes until it happens to look there.
    gc.disable()
    try:
        assert swept()() is None
    finally:
        gc.enable()
