"""`cotune.run` with real processes."""

import functools
import json
import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import optuna
import pytest

import cotune
from cotune.demand import GIB, MIB
from cotune.driver import assembly, sweep
from cotune.packer.policies import Fifo, Policy
from cotune.paths import RunFolder
from cotune.sharing import delays
from cotune.simulation import from_run, simulate


def quadratic(config):
    for step in range(9):
        cotune.report({"loss": (config["x"] - 3) ** 2 + 1 / (step + 1)}, step=step)


def numbers(config):
    """A trial whose result depends on every random generator, and on nothing else."""
    import random

    import numpy as np
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    data = torch.utils.data.TensorDataset(torch.randn(64, 16), torch.randn(64, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    for _ in range(15):
        for x, y in loader:
            noise = 0.1 * float(np.random.randn()) + 0.1 * random.gauss(0, 1)
            loss = (model(x + noise) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.002)  # so that turns of 50 ms change within the trial
        cotune.report({"loss": loss})


def test_a_policy_that_preempts_gives_the_latest_all_turns(run, tmp_path):
    class LatestFirst(Policy):
        name = "latest"
        preempts = True

        def key(self, waiting):
            return (-float(waiting.arrival),)

    def stepping(config):
        import torch

        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        with open(config["trace"], "ab", buffering=0) as trace:
            for _ in range(150):
                time.sleep(0.002)
                trace.write(b"%d" % cotune.trial_id())
                optimizer.step()

        cotune.report({"loss": 0.0})

    trace = tmp_path / "trace"
    run(
        stepping, {"trace": str(trace), "x": cotune.uniform(0, 1)}, trials=3, lanes=1, residents=2, policy=LatestFirst()
    )
    steps = trace.read_text()
    latest = steps[steps.index("2") : steps.rindex("2")]
    assert len(latest.replace("2", "")) <= 3
    assert [steps.count(trial) for trial in "012"] == [150] * 3


@pytest.mark.parametrize(
    ("pruner", "judged"),
    [
        pytest.param(None, False, id="no pruner"),
        pytest.param("none", False, id="none"),
        pytest.param(optuna.pruners.NopPruner(), False, id="NopPruner"),
        pytest.param("median", True, id="median"),
        pytest.param("asha-promote", True, id="asha-promote"),
    ],
)
def test_a_policy_is_told_whether_trials_are_judged_by_those_before_them(run, pruner, judged):
    policy = type("Own", (Fifo,), {})()
    run(quadratic, {"x": 1.0}, trials=1, pruner=pruner, policy=policy)
    assert policy.judged == judged


def test_a_trial_that_is_stopped_makes_no_iteration_in_vain(run, tmp_path):
    class AtTheSecond(optuna.pruners.BasePruner):
        def prune(self, study, trial):
            return len(trial.intermediate_values) == 2

    def train(config):
        from cotune.sharing.inside import trial_session

        # However long a verdict takes here.
        trial_session.PATIENCE = 1e6
        for _ in range(4):
            with (tmp_path / str(cotune.trial_id())).open("a") as made:
                made.write("x")
            cotune.report({"loss": 1.0})

    results = run(train, {"x": 1}, trials=4, pruner=AtTheSecond())
    assert [(str(trial.state), len(trial.history)) for trial in results] == [("stopped", 2)] * 4
    assert [(tmp_path / str(number)).read_text() for number in range(4)] == ["xx"] * 4


@pytest.mark.parametrize("pruner", ["asha-promote", "asha"])
def test_what_a_trial_saves_behind_the_report_at_which_it_is_stopped_or_waits_is_kept(run, pruner):
    def train(config):
        for epoch in range(1, 9):
            until = time.thread_time() + 0.02
            while time.thread_time() < until:
                pass
            cotune.report({"loss": config["x"]}, step=epoch)
            with cotune.checkpoint() as path:
                (path / "epoch").write_text(str(epoch))

    results = run(train, {"x": cotune.uniform(0, 1)}, trials=12, lanes=1, pruner=pruner, sampler="random", seed=1)
    lengths = [len(trial.history) for trial in results]
    assert min(lengths) == 1
    assert max(lengths) > 1
    assert [int((trial.checkpoint / "epoch").read_text()) for trial in results] == lengths


@pytest.mark.parametrize("pruner", ["asha-promote", "asha"])
@pytest.mark.parametrize("lockstep", [True, False])
def test_a_trial_that_has_returned_its_result_is_done_whatever_the_pruner_says(run, pruner, lockstep):
    space = {"x": cotune.uniform(0, 1)}
    results = run(lambda config: config["x"], space, trials=12, lanes=1, pruner=pruner, lockstep=lockstep, seed=1)
    assert [trial.state for trial in results] == ["done"] * 12


def test_a_sweep_with_a_pruner_finds_the_neighbourhood_of_the_optimum(run):
    results = run(quadratic, {"x": cotune.uniform(-10, 10)}, trials=24, pruner="median")
    assert len(results) == 24
    assert abs(results.best.config["x"] - 3) < 1
    assert {trial.state for trial in results} == {"done", "stopped"}


@pytest.mark.parametrize("size", [64, 200, 512])
def test_measured_peaks_are_within_a_tenth_of_what_is_allocated(run, size):
    def train(config):
        import numpy as np

        held = np.ones(size * MIB, dtype=np.uint8)
        for _ in range(4):
            scratch = np.ones(size * MIB // 2, dtype=np.uint8)
            cotune.report({"loss": float(held[0])})
            del scratch
            cotune.report({"loss": float(held[0])})

    trial = run(train, {"x": 1}, trials=1)[0]
    assert trial.persistent + trial.ephemeral == pytest.approx(1.5 * size * MIB, rel=0.1)


def test_residents_of_one_lane_compute_the_same_bits_as_trials_alone(run):
    space = {"lr": cotune.choice([1e-3, 3e-3, 1e-2])}
    alone = run(numbers, space, sampler="grid", lanes=1)
    together = run(numbers, space, sampler="grid", lanes=1, residents=3)
    assert {trial.lane for trial in together} == {together[0].lane}
    overlap = max(trial.start for trial in together) < min(trial.end for trial in together)
    assert overlap
    for a, b in zip(alone, together, strict=True):
        assert a.config == b.config
        assert [r["loss"] for r in a.history] == [r["loss"] for r in b.history]


def test_a_hook_that_a_trial_adds_takes_the_place_of_none_of_the_script(run):
    import torch

    model, called = torch.nn.Linear(1, 1), []
    for number in range(3):
        model.register_forward_hook(lambda *_, number=number: called.append(number))

    def train(config):
        model.register_forward_hook(lambda *_: called.append("own"))
        model(torch.ones(1, 1))
        return len(called)

    assert [trial.metrics["loss"] for trial in run(train, {"x": 1}, trials=2, lanes=1)] == [4, 4]


@pytest.mark.parametrize("shares", [True, False])
def test_a_class_of_the_script_is_anew_for_each_trial_and_that_of_a_shared_object(run, shares):
    class Item:
        count = 0

    def keep():
        import typing

        # typing's own cache keeps the class alive.
        return typing.List[Item]  # noqa: UP006

    def train(config):
        item = cotune.shared("item", Item) if shares else Item()
        keep()
        Item.count += 1
        cached = hasattr(Item, "cache")
        Item.cache = [1]
        return {"loss": float(Item.count), "cached": cached, "is of it": isinstance(item, Item)}

    for trial in run(train, {"x": 1}, trials=3, lanes=1):
        assert trial.metrics == {"loss": 1.0, "cached": False, "is of it": True}


def test_residents_of_one_lane_compute_with_their_own_classes_and_globals(run, tmp_path):
    rate = {}

    class Model:
        rates = ()

        def rate(self):
            return rate["now"]

    def train(config):
        rate["now"] = config["rate"]
        Model.rates = (*Model.rates, config["rate"])
        (tmp_path / str(config["rate"])).touch()
        while len(list(tmp_path.glob("[12]"))) < 2:
            cotune.report({"loss": 0.0})
        cotune.report({"loss": Model().rate(), "rates": Model.rates})

    for trial in run(train, {"rate": cotune.choice([1, 2])}, sampler="grid", lanes=1, residents=2):
        assert trial.metrics["loss"] == trial.config["rate"]
        assert trial.metrics["rates"] == [trial.config["rate"]]


def test_what_modules_draw_when_they_are_imported_is_missing_in_no_trial(run, tmp_path):
    (tmp_path / "draws.py").write_text(
        "import random, numpy, torch\nrandom.random(), numpy.random.rand(), torch.rand(1)\n"
    )
    (tmp_path / "seeds.py").write_text("import random, numpy, torch, draws\nrandom.seed(7), numpy.random.seed(7)\n")

    def train(config):
        import random
        import sys

        import numpy as np

        if config["imports"]:
            sys.path.insert(0, str(tmp_path))
            import seeds  # noqa: F401
        import torch

        cotune.report({"loss": random.random(), "numpy": np.random.rand(), "torch": torch.rand(1)})

    drawn = []
    for imports in (True, False):
        trials = run(train, {"imports": imports}, trials=3, lanes=1, residents=1)
        drawn.append([(trial.metrics["loss"], trial.metrics["numpy"], trial.metrics["torch"]) for trial in trials])
    assert drawn[0] == drawn[1]


def test_one_lane_in_lockstep_is_reproducible(run):
    options = {"trials": 15, "lanes": 1, "lockstep": True, "pruner": "asha", "seed": 5}
    first, second = (run(quadratic, {"x": cotune.uniform(-10, 10)}, **options) for _ in range(2))
    assert [t.config for t in first] == [t.config for t in second]
    assert [t.state for t in first] == [t.state for t in second]
    assert [len(t.history) for t in first] == [len(t.history) for t in second]


def test_a_trial_that_exceeds_its_predicted_memory_is_retried_with_more_and_finishes(run):
    def train(config):
        import numpy as np

        # Nothing in the config tells which trial is large.
        size = 300 if cotune.trial_id() == 5 else 50
        for step in range(4):
            scratch = np.ones(size * MIB, dtype=np.uint8)
            cotune.report({"loss": float(scratch[0])}, step=step)

    results = run(train, {"x": cotune.uniform(0, 1)}, trials=10, devices=["cpu:0@1GiB"], lanes=2)
    assert [trial.state for trial in results] == ["done"] * 10
    assert results[5].attempts > 1
    assert all(trial.attempts == 1 for trial in results if trial.id != 5)
    assert results[5].persistent + results[5].ephemeral > 280 * MIB


def test_a_trial_larger_than_any_device_fails_alone_with_figures(run):
    def train(config):
        import numpy as np

        np.ones(config["mib"] * MIB, dtype=np.uint8)
        cotune.report({"loss": 1.0})

    results = run(train, {"mib": cotune.choice([10, 3000])}, sampler="grid", devices=["cpu:0@1GiB"])
    states = {trial.config["mib"]: trial.state for trial in results}
    assert states == {10: "done", 3000: "failed"}
    (failed,) = results.errors
    assert isinstance(failed.error, cotune.TrialTooLarge)
    assert "GiB" in failed.error.message
    assert "; last: " in failed.error.message
    assert "Unable to allocate" in failed.error.message, "what was refused last, which need not be memory"
    assert failed.error.hint


@pytest.mark.parametrize("form", ["closure", "lambda", "partial", "callable", "method", "class"])
def test_every_form_of_trainable_runs(run, form):
    offset = 2.0

    def closure(config):
        cotune.report({"loss": config["x"] + offset})

    class Steps:
        def setup(self, config):
            self.x, self.n = config["x"], 0

        def step(self):
            self.n += 1
            return {"loss": self.x + offset, "done": self.n == 3}

        def train(self, config):
            cotune.report({"loss": config["x"] + offset})

        __call__ = train

    forms = {
        "closure": closure,
        "lambda": lambda config: cotune.report({"loss": config["x"] + offset}),
        "partial": functools.partial(lambda extra, config: config["x"] + extra, offset),
        "callable": Steps(),
        "method": Steps().train,
        "class": Steps,
    }
    results = run(forms[form], {"x": cotune.choice([1.0, 2.0])}, trials=2)
    assert [trial.state for trial in results] == ["done", "done"]
    assert results.best.metrics["loss"] == results.best.config["x"] + offset


def test_a_returned_number_or_dict_counts_as_the_last_report(run):
    results = run(lambda config: config["x"], {"x": 4.0}, trials=1)
    assert results.best.metrics == {"loss": 4.0}
    results = run(lambda config: {"loss": 1.0, "other": "text"}, {"x": 4.0}, trials=1)
    assert results.best.metrics == {"loss": 1.0, "other": "text"}


def test_a_trial_knows_where_it_is(run):
    def train(config):
        built = cotune.shared("counter", list)
        built.append(cotune.trial_id())
        assert cotune.device() == "cpu"
        cotune.report({"loss": 1.0, "trial": cotune.trial_id(), "built": len(built), "pid": os.getpid()})

    results = run(train, {"x": 1}, trials=4, lanes=1)
    assert [trial.metrics["trial"] for trial in results] == [0, 1, 2, 3]
    assert [trial.metrics["built"] for trial in results] == [1, 2, 3, 4]
    assert len({trial.metrics["pid"] for trial in results}) == 1


def test_what_lane_mates_share_is_built_once_also_if_that_takes_iterations(run, tmp_path):
    def train(config):
        import torch

        def build():
            (tmp_path / str(cotune.trial_id())).touch()
            weight = torch.nn.Parameter(torch.zeros(1))
            weight.grad = torch.zeros(1)
            teacher, until = torch.optim.SGD([weight]), time.monotonic() + 0.3
            while time.monotonic() < until:
                teacher.step()
            return object()

        cotune.report({"loss": 0.0})
        return float(id(cotune.shared("teacher", build)))

    results = run(train, {"x": 1}, trials=2, lanes=1, residents=2)
    assert len({trial.metrics["loss"] for trial in results}) == 1
    assert len(list(tmp_path.glob("[01]"))) == 1


def test_what_threads_of_a_trial_share_is_built_once(run):
    def train(config):
        import threading

        built, found, asking = [], [], threading.Semaphore(0)

        def build():
            built.append(None)
            for _ in range(4):
                asking.acquire(timeout=30)
            return object()

        def look():
            asking.release()
            found.append(cotune.shared("teacher", build))

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"loss": float(len(built)), "objects": len(set(map(id, found)))}

    results = run(train, {"x": 1}, trials=1)
    assert results.best.metrics == {"loss": 1.0, "objects": 1}


def test_what_builds_a_shared_object_draws_the_same_in_every_lane_and_nothing_of_the_trials(run, tmp_path, monkeypatch):
    (tmp_path / "loader_of_ours.py").write_text("import random\nrandom.seed(1)\n")
    monkeypatch.syspath_prepend(tmp_path)

    def train(config):
        import random

        import numpy as np
        import torch

        def build():
            import loader_of_ours  # noqa: F401

            size = cotune.shared("size", lambda: 50 + random.randrange(50))
            split = torch.utils.data.random_split(range(size), [0.5, 0.5])[0]
            return f"{cotune.trial_id()}: {split.indices} {random.random()} {np.random.rand()}"

        builder, drawn = cotune.shared("split", build).split(":")
        own = torch.rand(1).item() + random.random() + np.random.rand()
        cotune.report({"loss": own, "drawn": drawn, "builder": builder})

    warm, anew = (run(train, {"x": 1}, trials=3, lanes=1, reuse=reuse) for reuse in (True, False))
    assert [trial.metrics["builder"] for trial in (*warm, *anew)] == ["0", "0", "0", "0", "1", "2"]
    assert len({trial.metrics["drawn"] for trial in (*warm, *anew)}) == 1
    assert [trial.metrics["loss"] for trial in warm] == [trial.metrics["loss"] for trial in anew]
    assert len({trial.metrics["loss"] for trial in warm}) == 3


def test_a_shared_object_that_another_is_built_from_counts_once(run):
    def train(config):
        def build(size):
            block = bytearray(size * MIB)
            block[::4096] = b"x" * len(block[::4096])
            return block

        cotune.shared("small", lambda: len(cotune.shared("large", lambda: build(100))))
        own = build(40)
        for _ in range(3):
            cotune.report({"loss": float(len(own))})

    assert run(train, {"x": 1}, trials=1).best.persistent == pytest.approx(40 * MIB, rel=0.1)


def test_worker_processes_find_shared_objects_built(run):
    def train(config):
        import torch

        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 4

            def __getitem__(self, index):
                return cotune.shared("pid", os.getpid)

        built = cotune.shared("pid", os.getpid)
        loader = torch.utils.data.DataLoader(Data(), 2, num_workers=2)
        cotune.report({"loss": sum((batch != built).sum().item() for batch in loader)})

    assert run(train, {"x": 1}, trials=1).best.metrics["loss"] == 0.0


def test_threads_of_a_lane_mate_that_still_runs_are_not_what_an_ended_trial_left_behind(run):
    def train(config):
        import threading

        over = threading.Event()
        thread = threading.Thread(target=over.wait)
        thread.start()
        for _ in range(config["reports"]):
            cotune.report({"loss": 0.0})
        over.set()
        thread.join()

    results = run(train, {"reports": cotune.choice([2, 40, 20, 9])}, trials=8, lanes=1, residents=2)
    assert {trial.lane for trial in results} == {1}


def test_a_thread_that_never_begins_ends_no_lane(run):
    def train(config):
        import threading

        class Stillborn(threading.Thread):
            def _bootstrap(self):
                pass

        if cotune.trial_id() == 0:
            # start() waits for the thread to begin.
            threading.Thread(target=Stillborn(daemon=True).start, daemon=True).start()
        cotune.report({"loss": 0.0})

    assert [trial.state for trial in run(train, {"x": 1}, trials=2, lanes=1)] == ["done", "done"]


def test_what_a_thread_of_the_trial_builds_leaves_the_draws_of_the_trials_own_thread_alone(run):
    def train(config):
        import random
        import threading

        builds, drawn = threading.Event(), threading.Event()

        def build():
            builds.set()
            drawn.wait(30)
            return object()

        first = random.random()
        if config["builds"]:
            thread = threading.Thread(target=cotune.shared, args=("it", build))
            thread.start()
            builds.wait(30)
        second = random.random()
        drawn.set()
        if config["builds"]:
            thread.join()
        cotune.report({"loss": first, "second": second, "third": random.random()})

    with_it, without = (run(train, {"builds": builds}, trials=1).best.metrics for builds in (True, False))
    assert with_it == without


def test_threads_that_end_just_after_their_trial_are_not_left_behind(run):
    def train(config):
        import threading

        threading.Thread(target=threading.Event().wait, args=(0.02,)).start()
        cotune.report({"loss": 0.0})

    assert {trial.lane for trial in run(train, {"x": 1}, trials=4, lanes=1)} == {1}


def test_a_report_from_a_thread_of_the_trial_gives_no_turn_away_that_its_own_thread_uses(run):
    def train(config):
        import queue
        import threading

        import numpy as np

        drawing, ticks = threading.Event(), queue.Queue()
        drawing.set()

        def watch():
            while drawing.is_set():
                cotune.report({"loss": 0.0})
                ticks.put(None)

        thread = threading.Thread(target=watch)
        thread.start()
        drawn = 0.0
        for _ in range(20_000):
            drawn += np.random.rand(1000).sum()
            if ticks.empty():
                # As one that waits for a batch; it does not wait for the other thread's end.
                ticks.get(timeout=30)
        drawing.clear()
        thread.join()
        cotune.report({"loss": drawn})

    alone, shared = (run(train, {"x": 1}, trials=2, lanes=1, residents=residents) for residents in (1, 2))
    assert [trial.metrics["loss"] for trial in shared] == [trial.metrics["loss"] for trial in alone]


@pytest.mark.parametrize("joins", [True, False])
def test_a_trial_whose_own_thread_only_waits_for_the_one_that_trains_shares_its_turns(run, joins, tmp_path):
    begun = tmp_path / "begun"
    begun.mkdir()

    def train(config):
        import concurrent.futures
        import threading

        def work():
            for step in range(3000):
                # Before the report, within which the other may begin.
                have_begun = len(os.listdir(begun)) == 2
                time.sleep(0.002)
                cotune.report({"loss": 1.0, "at": time.monotonic()}, step=step)
                (begun / str(cotune.trial_id())).touch()
                if step >= 20 and have_begun:
                    break

        if joins:
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        else:
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                pool.submit(work).result()

    one, other = run(train, {"x": 1}, trials=2, lanes=1, residents=2)
    assert other.history[0]["at"] < one.history[-1]["at"]


def test_a_shared_object_whose_making_reports_is_made_while_a_lane_mate_waits_for_it(run):
    def train(config):
        def build():
            for _ in range(3):
                cotune.report({"loss": 1.0})
            return 2.0

        cotune.report({"loss": cotune.shared("it", build)})

    results = run(train, {"x": 1}, trials=3, lanes=1, residents=2, pruner="median")
    assert [trial.metrics["loss"] for trial in results] == [2.0] * 3


@pytest.mark.parametrize("joins", [True, False])
def test_steps_of_a_thread_for_whose_end_the_trials_own_waits_are_iterations(run, joins):
    torch = pytest.importorskip("torch")

    def train(config):
        import concurrent.futures
        import threading

        from cotune import session

        def fit():
            parameter = torch.nn.Parameter(torch.ones(1))
            optimizer = torch.optim.SGD([parameter])
            for _ in range(5):
                parameter.grad = torch.ones(1)
                optimizer.step()

        if joins:
            thread = threading.Thread(target=fit)
            thread.start()
            thread.join()
        else:
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                pool.submit(fit).result()
        cotune.report({"loss": 1.0, "iterations": session.current()._iterations})

    results = run(train, {"x": 1}, trials=2, lanes=1)
    assert [trial.metrics["iterations"] for trial in results] == [5, 5]


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="from Python 3.14 on asyncio.get_event_loop() makes no loop")
def test_a_trial_has_an_event_loop_of_its_own(run):
    def train(config):
        import asyncio

        async def answer():
            return 2.0

        loop = asyncio.get_event_loop()
        assert asyncio.get_event_loop() is loop
        pid = loop.run_until_complete(loop.run_in_executor(None, os.getpid))
        cotune.report({"loss": loop.run_until_complete(answer()), "pid": pid})

    results = run(train, {"x": 1}, trials=3, lanes=1)
    assert [trial.metrics["loss"] for trial in results] == [2.0] * 3
    assert len({trial.metrics["pid"] for trial in results}) == 1, "the loop and its threads end with the trial"


def test_nested_and_constant_parts_of_the_space_reach_the_trainable(run):
    def train(config):
        assert config["model"]["act"] is len
        assert config["tags"] == ["a"]
        cotune.report({"loss": config["model"]["width"] * config["scale"]})

    space = {"model": {"width": cotune.randint(1, 4), "act": cotune.choice([len])}, "scale": 2.0, "tags": ["a"]}
    results = run(train, space, trials=3)
    assert not results.errors
    assert all(trial.metrics["loss"] == trial.config["model"]["width"] * 2.0 for trial in results)


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_optuna_samplers_pruners_and_the_journal_are_the_real_ones(run):
    results = run(
        quadratic,
        {"x": optuna.distributions.FloatDistribution(-10, 10)},
        trials=12,
        sampler=optuna.samplers.TPESampler(seed=3),
        pruner=optuna.pruners.PatientPruner(optuna.pruners.MedianPruner(), patience=2),
    )
    backend = optuna.storages.journal.JournalFileBackend(str(results.folder / "optuna.journal"))
    study = optuna.load_study(study_name=None, storage=optuna.storages.JournalStorage(backend))
    assert len(study.trials) == 12
    assert study.best_value == pytest.approx(results.best.metrics["loss"])
    assert {t.state.name for t in study.trials} <= {"COMPLETE", "PRUNED"}


def test_finished_trials_are_not_given_other_constants(run):
    run(lambda c: c["x"], {"x": cotune.uniform(0, 1), "epochs": 1}, trials=2, name="it")
    for space, says in (
        ({"epochs": 100}, "'epochs' was the constant 1 .* now it is the constant 100"),
        ({"epochs": Path("100")}, "'epochs' was the constant 1 .* now it is the constant .*Path"),
        ({"epochs": list(range(10**5))}, "'epochs' was the constant 1 .* now it is the constant .0, 1"),
        ({"epochs": 1, "n": 2}, "'n' was no constant, now it is the constant 2 "),
        ({"epochs": cotune.choice([1, 100])}, "'epochs' was the constant 1 .* now it is no constant"),
        ({"epochs": {"first": 1}}, "'epochs' was the constant 1 .* now it is no constant"),
    ):
        with pytest.raises(cotune.RunError, match=says):
            run(lambda c: c["x"], {"x": cotune.uniform(0, 1), **space}, trials=3, name="it", resume=True)
    results = run(lambda c: c["x"], {"x": cotune.uniform(0, 1), "epochs": 1}, trials=3, name="it", resume=True)
    assert [trial.config["epochs"] for trial in results] == [1, 1, 1]


def test_a_constant_is_the_same_in_whichever_order_its_dicts_are(run):
    layers = [{"kind": "conv", "width": 8}]
    space = {"x": cotune.uniform(0, 1)}
    run(lambda config: config["x"], {**space, "layers": layers}, trials=1, name="order")
    turned = [dict(reversed(layer.items())) for layer in layers]
    results = run(lambda config: config["x"], {**space, "layers": turned}, trials=2, name="order", resume=True)
    assert [trial.config["layers"] for trial in results] == [layers] * 2
    with pytest.raises(cotune.RunError, match="'layers' was the constant"):
        run(lambda config: config["x"], {**space, "layers": layers * 2}, trials=3, name="order", resume=True)


def test_a_folder_with_a_study_or_trials_of_nobody_knows_what_is_left_alone(run, tmp_path):
    for name in ("optuna.journal", "trials"):
        theirs = tmp_path / f"has-{name}" / name
        theirs.parent.mkdir()
        theirs.write_text("theirs")
        with pytest.raises(cotune.RunNameInUse, match=name):
            run(quadratic, {"x": 1.0}, trials=1, name=theirs.parent.name)
        assert theirs.read_text() == "theirs"


def test_a_trial_that_begins_finds_nothing_of_an_earlier_one_of_its_number(run):
    def train(config):
        found = cotune.restore()
        cotune.report({"loss": config["x"], "found": found is not None})
        with cotune.checkpoint() as path:
            (Path(path) / "it").touch()

    first = run(train, {"x": cotune.uniform(0, 1)}, trials=4, name="it")
    lines = (first.folder / "events.jsonl").read_bytes().splitlines(keepends=True)
    (first.folder / "events.jsonl").write_bytes(b"".join(lines[: len(lines) // 2]))
    again = run(train, {"x": cotune.uniform(0, 1)}, trials=4, name="it", resume=True)
    known = sum(b'"event": "trial"' in line or b'"event":"trial"' in line for line in lines[: len(lines) // 2])
    assert known < 4
    assert not any(trial.history[0]["found"] for trial in again.trials[known:])


def test_a_seed_of_any_library_counts(run):
    first, second = (
        run(lambda c: c["x"], {"x": cotune.uniform(0, 1)}, trials=1, seed=seed) for seed in (7, np.int64(7))
    )
    assert first.best.config == second.best.config


def test_a_grid_that_has_grown_meanwhile_is_run_whole_and_once(run):
    run(lambda c: c["x"], {"x": cotune.choice([1, 2, 3])}, sampler="grid", name="it", trials=9)
    results = run(lambda c: c["x"], {"x": cotune.choice([0, 1, 2, 3, 4])}, sampler="grid", name="it", resume=True)
    assert sorted(trial.config["x"] for trial in results) == [0, 1, 2, 3, 4]


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_sequence_goes_on_where_it_was_when_a_run_is_resumed(run):
    def points(name, trials):
        sampler = optuna.samplers.QMCSampler(seed=0, warn_independent_sampling=False)
        space = {"x": cotune.uniform(0, 1)}
        results = run(lambda c: c["x"], space, trials=trials, lanes=1, sampler=sampler, name=name, resume=True)
        return [trial.config["x"] for trial in results]

    points("halves", 5)
    assert points("halves", 10) == points("whole", 10)


def test_trials_keep_their_numbers_in_a_run_that_is_resumed_where_the_sampler_added_one_of_its_own(run):
    class Adds(optuna.samplers.RandomSampler):
        def before_trial(self, study, trial):
            if trial.number == 1:
                study.add_trial(optuna.trial.create_trial(value=1.0))

    space = {"x": cotune.uniform(0, 1)}
    first, second = (
        run(lambda c: c["x"], space, trials=trials, lanes=1, sampler=Adds(seed=trials), name="it", resume=True)
        for trials in (4, 6)
    )
    assert [trial.id for trial in first] == [0, 1, 3, 4]
    assert [trial.id for trial in second] == [0, 1, 3, 4, 5, 6]
    assert [trial.config for trial in second][:4] == [trial.config for trial in first]


def test_a_pruner_remembers_the_rungs_of_a_run_that_is_resumed(run):
    def train(config):
        for step in range(1, 5):
            cotune.report({"loss": float(cotune.trial_id())}, step=step)

    def states(trials):
        pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2)
        results = run(train, {"x": 1}, trials=trials, lanes=1, lockstep=True, pruner=pruner, name="it", resume=True)
        return [str(trial.state) for trial in results]

    assert states(1) == ["done"]
    assert states(2) == ["done", "stopped"]


def test_the_journal_of_a_resumed_run_has_when_trials_ran_and_what_stopped_ones_came_to(run):
    class First(optuna.pruners.BasePruner):
        def prune(self, study, trial):
            return trial.number == 0

    def train(config):
        cotune.report({"loss": 0.5})

    def journal(trials):
        results = run(train, {"x": 1}, trials=trials, lanes=1, pruner=First(), name="it", resume=True)
        backend = optuna.storages.journal.JournalFileBackend(str(results.folder / "optuna.journal"))
        return results, optuna.load_study(study_name="it", storage=optuna.storages.JournalStorage(backend)).trials

    results, before = journal(2)
    _, after = journal(3)
    assert [trial.value for trial in after[:2]] == [trial.value for trial in before] == [0.5, 0.5]
    moments = [(trial.datetime_start.timestamp(), trial.datetime_complete.timestamp()) for trial in after[:2]]
    assert moments == [pytest.approx((trial.start, trial.end), abs=1e-3) for trial in results]


def test_a_grid_goes_on_after_another_sampler(run):
    run(lambda c: c["x"], {"x": cotune.choice([1, 2, 3])}, sampler="random", name="it", trials=2)
    results = run(lambda c: c["x"], {"x": cotune.choice([1, 2, 3])}, sampler="grid", name="it", resume=True)
    assert {trial.config["x"] for trial in results} == {1, 2, 3}


def test_a_grid_is_run_whole_and_once(run):
    results = run(
        lambda c: c["a"] * c["b"], {"a": cotune.choice([1, 2, 3]), "b": cotune.choice([1, 10])}, sampler="grid"
    )
    assert sorted((t.config["a"], t.config["b"]) for t in results) == [(a, b) for a in (1, 2, 3) for b in (1, 10)]


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_sampler_that_ends_its_study_ends_the_run(run):
    space = {"a": cotune.choice([1, 2, 3])}
    results = run(lambda c: c["a"], space, sampler=optuna.samplers.BruteForceSampler(), trials=50)
    assert sorted({t.config["a"] for t in results}) == [1, 2, 3]
    assert len(results) < 50


def test_a_time_budget_interrupts_what_is_running_and_it_can_be_resumed(run):
    def train(config):
        for step in range(10**6 if config["x"] else 1):
            time.sleep(0.01)
            cotune.report({"loss": 1.0}, step=step)

    results = run(train, {"x": 1}, trials=2, lanes=1, time_budget=1.5, name="budget")
    assert results.interrupted
    # The second had not begun. Both can be looked at later.
    read = cotune.load("budget", results.folder.parent)
    assert [(t.state, t.config, t.metrics) for t in read] == [(t.state, t.config, t.metrics) for t in results]
    assert read.makespan == pytest.approx(results.makespan, abs=0.3)
    assert [trial.state for trial in results] == ["interrupted", "waiting"]
    assert "1 waiting, 1 interrupted" in repr(results)
    results = run(train, {"x": 0}, trials=2, lanes=1, name="budget", resume=True)
    assert [trial.state for trial in results] == ["done", "done"]
    assert [trial.config["x"] for trial in cotune.load("budget", results.folder.parent)] == [0, 0]


class Interrupted(optuna.pruners.BasePruner):
    """Interrupts the run when a trial has made so many reports."""

    def __init__(self, reports=5):
        self._reports = reports

    def prune(self, study, trial):
        if len(trial.intermediate_values) == self._reports:
            os.kill(os.getpid(), signal.SIGINT)
        return False


def test_a_trial_that_saves_before_it_reports_leaves_no_report_out_when_it_is_interrupted(run, tmp_path):
    def train(config):
        saved = cotune.restore()
        for step in range(
            int((saved / "step").read_text()) if saved else 0, 3 if (tmp_path / "end").exists() else 10**6
        ):
            time.sleep(0.03)
            with cotune.checkpoint() as path:
                (path / "step").write_text(str(step + 1))
            cotune.report({"loss": 1.0}, step=step)

    (cut,) = run(train, {"x": 1}, trials=1, lanes=1, pruner=Interrupted(), name="cut")
    steps = [report["step"] for report in cut.history]
    assert len(steps) >= 5
    assert int((cut.checkpoint / "step").read_text()) == len(steps), "else the next attempt leaves the last one out"
    (tmp_path / "end").touch()
    (done,) = run(train, {"x": 1}, trials=1, lanes=1, pruner=Interrupted(), name="cut", resume=True)
    assert [report["step"] for report in done.history] == steps == list(range(len(steps)))


@pytest.mark.parametrize("interrupted_in", [1, 2])
def test_a_trial_that_saves_before_it_reports_leaves_no_report_of_its_first_epochs_out(run, tmp_path, interrupted_in):
    driver, flag = os.getpid(), tmp_path / "interrupted"

    def train(config):
        from cotune import session

        saved = cotune.restore()
        for epoch in range(int((saved / "epoch").read_text()) + 1 if saved else 1, 5):
            time.sleep(0.03)
            if epoch == interrupted_in and not flag.exists():
                flag.touch()
                os.kill(driver, signal.SIGINT)
                while not session.bound().is_stopping:
                    time.sleep(0.001)
            with cotune.checkpoint() as path:
                (path / "epoch").write_text(str(epoch))
            cotune.report({"loss": 1.0}, step=epoch)

    (cut,) = run(train, {"x": 1}, trials=1, lanes=1, name="cut")
    assert (cut.state, [row["step"] for row in cut.history]) == ("interrupted", [1])
    (done,) = run(train, {"x": 1}, trials=1, lanes=1, name="cut", resume=True)
    assert [row["step"] for row in done.history] == [1, 2, 3, 4]


def test_reports_without_steps_count_on_from_a_checkpoint_that_is_saved_before_its_report(run, tmp_path):
    def train(config):
        saved = cotune.restore()
        start = int((saved / "epoch").read_text()) if saved else 0
        for epoch in range(start + 1, start + 3 if (tmp_path / "end").exists() else 10**6):
            time.sleep(0.03)
            with cotune.checkpoint() as path:
                (path / "epoch").write_text(str(epoch))
            cotune.report({"loss": float(epoch)})

    run(train, {"x": 1}, trials=1, lanes=1, pruner=Interrupted(), name="cut")
    (tmp_path / "end").touch()
    (done,) = run(train, {"x": 1}, trials=1, lanes=1, name="cut", resume=True)
    assert len(done.history) >= 7
    assert [report["step"] for report in done.history] == [report["loss"] for report in done.history]


def test_a_trial_that_had_not_left_when_it_was_stopped_and_the_driver_died_does_not_go_on(run, tmp_path):
    began = tmp_path / "began"

    def train(config):
        with began.open("a") as file:
            file.write(".")
        for step in range(3):
            cotune.report({"loss": 1.0}, step=step)

    pruner = optuna.pruners.ThresholdPruner(upper=0.5, n_warmup_steps=0)
    how = {"trials": 1, "lanes": 1, "pruner": pruner, "name": "died"}
    (stopped,) = run(train, {"x": 1}, **how)
    events = tmp_path / "died" / "events.jsonl"
    lines = events.read_text().splitlines(keepends=True)
    last = next(number for number, line in enumerate(lines) if json.loads(line)["event"] == "stop")
    events.write_text("".join(lines[: last + 1]))
    (again,) = run(train, {"x": 1}, **how, resume=True)
    assert (again.state, again.history) == (stopped.state, stopped.history)
    assert stopped.state == "stopped"
    assert began.read_text() == "."


def test_a_verdict_that_comes_after_an_interruption_holds_in_a_later_session(run, tmp_path, monkeypatch):
    began, all_have_left, hear_out = tmp_path / "began", threading.Event(), sweep.Sweep._hear_out

    def train(config):
        with began.open("a") as file:
            file.write(".")
        for step in range(3):
            cotune.report({"loss": 1.0}, step=step)

    class Slow(optuna.pruners.BasePruner):
        def prune(self, study, trial):
            os.kill(os.getpid(), signal.SIGINT)
            return all_have_left.wait(30)

    monkeypatch.setattr(sweep.Sweep, "_hear_out", lambda self: (all_have_left.set(), hear_out(self)))

    (cut,) = run(train, {"x": 1}, trials=1, lanes=1, pruner=Slow(), name="cut")
    assert (cut.state, len(cut.history)) == ("interrupted", 1)
    (stopped,) = run(train, {"x": 1}, trials=1, lanes=1, pruner="asha", name="cut", resume=True)
    assert (stopped.state, len(stopped.history), began.read_text()) == ("stopped", 1, ".")


def test_a_trial_that_has_met_its_stop_rule_is_done_although_it_is_interrupted_before_it_leaves(run):
    driver = os.getpid()

    def train(config):
        from cotune import session

        for step in range(1, 10):
            cotune.report({"loss": 1.0}, step=step)
            if step == 3:
                os.kill(driver, signal.SIGINT)
                while not session.bound().is_stopping:
                    time.sleep(0.001)

    results = run(train, {"x": 1}, trials=1, lanes=1, stop={"training_iteration": 3})
    assert [(trial.state, len(trial.history)) for trial in results] == [("done", 3)]


@pytest.mark.parametrize("dies", [False, True])
def test_failures_and_deaths_of_lanes_in_earlier_sessions_count(run, tmp_path, dies):
    began = tmp_path / "began"

    def train(config):
        with began.open("a") as file:
            file.write(".")
        if dies:
            os._exit(1)
        raise ValueError("again")

    how = {"trials": 1, "lanes": 1, "max_failures": 0 if dies else 2, "name": "cut"}
    (failed,) = run(train, {"x": 1}, **how)
    assert (failed.state, began.read_text()) == ("failed", "...")
    events = tmp_path / "cut" / "events.jsonl"
    lines = events.read_text().splitlines(keepends=True)
    retries = [number for number, line in enumerate(lines) if json.loads(line)["event"] == "retry"]
    events.write_text("".join(lines[: retries[1] + 1]))
    (failed,) = run(train, {"x": 1}, **how, resume=True)
    assert (failed.state, began.read_text()) == ("failed", "....")


def test_a_trial_that_catches_its_stop_and_returns_is_not_done(run, tmp_path):
    def train(config):
        try:
            for step in range(3 if (tmp_path / "end").exists() else 10**6):
                cotune.report({"loss": 1.0}, step=step)
        except BaseException:
            print("cleans up")

    results = run(train, {"x": 1}, trials=1, lanes=1, time_budget=1.0, name="cut")
    assert [trial.state for trial in results] == ["interrupted"]
    (tmp_path / "end").touch()
    assert [trial.state for trial in run(train, {"x": 1}, trials=1, name="cut", resume=True)] == ["done"]


def test_a_stop_reaches_a_trial_whose_report_waits_for_a_sampler_that_takes_long(run, tmp_path):
    events, again, left = tmp_path / "cut" / "events.jsonl", tmp_path / "again", tmp_path / "left"

    def wait(is_so):
        until = time.monotonic() + 20
        while not is_so() and time.monotonic() < until:
            time.sleep(0.001)

    class Slow(optuna.samplers.RandomSampler):
        """Has the run interrupted once the first trial's report waits for a verdict."""

        def sample_relative(self, study, trial, search_space):
            if trial.number:
                wait(lambda: '"event":"report"' in events.read_text() and again.exists())
                os.kill(os.getpid(), signal.SIGINT)
                wait(left.exists)
            return super().sample_relative(study, trial, search_space)

    def train(config):
        try:
            cotune.report({"loss": 1.0})
            again.touch()
            cotune.report({"loss": 1.0})
        finally:
            left.touch()

    results = run(train, {"x": cotune.uniform(0, 1)}, trials=2, lanes=1, sampler=Slow(), pruner="median", name="cut")
    assert results[0].state == "interrupted"
    assert left.exists(), "else it was killed"


@pytest.mark.parametrize("pruner", [None, "median"])
@pytest.mark.parametrize("returns", [True, False])
def test_a_trial_that_comes_to_its_end_after_it_was_told_to_stop_is_done(run, pruner, returns):
    driver = os.getpid()

    def train(config):
        from cotune import session

        if not returns:
            cotune.report({"loss": 1.0})
        os.kill(driver, signal.SIGINT)
        while not session.bound().is_stopping:
            time.sleep(0.001)
        return 1.0 if returns else None

    # In lockstep, so that the verdict on a report is there before the interruption.
    results = run(train, {"x": 1}, trials=2, lanes=1, pruner=pruner, lockstep=True)
    assert results.interrupted
    assert (results[0].state, results[0].metrics) == ("done", {"loss": 1.0})


def test_a_verdict_on_an_earlier_report_stops_a_trial_that_has_returned(run):
    class Always(optuna.pruners.BasePruner):
        def prune(self, study, trial):
            return True

    def train(config):
        cotune.report({"loss": 2.0})
        return 1.0

    (trial,) = run(train, {"x": 1}, trials=1, pruner=Always())
    assert (trial.state, trial.metrics) == ("stopped", {"loss": 2.0})


def test_a_checkpoint_ahead_of_a_report_that_will_not_be_made_is_not_kept(run, tmp_path):
    def wait(file):
        while not (tmp_path / file).exists():
            time.sleep(0.001)

    class Interrupted(optuna.pruners.BasePruner):
        """Has the run interrupted before the fifth report is judged, which is once the trial saves the next epoch."""

        def prune(self, study, trial):
            if len(trial.intermediate_values) == 5:
                wait("goes-on-5")
                os.kill(os.getpid(), signal.SIGINT)
                wait("saves-6")
            return False

    def train(config):
        for epoch in range(1, 20):
            time.sleep(0.05)
            with cotune.checkpoint() as path:
                (tmp_path / f"saves-{epoch}").touch()
                (path / "epoch").write_text(str(epoch))
            cotune.report({"loss": 1.0}, step=epoch)
            (tmp_path / f"goes-on-{epoch}").touch()

    (cut,) = run(train, {"x": 1}, trials=1, lanes=1, pruner=Interrupted())
    assert (cut.state, len(cut.history)) == ("interrupted", 5)
    assert (cut.checkpoint / "epoch").read_text() == "5"
    assert len(list(cut.checkpoint.parent.iterdir())) == 1, "what it wrote of the sixth is gone"


def test_a_trial_whose_reports_are_on_record_no_more_does_not_go_on_behind_them(run):
    def train(config):
        saved = cotune.restore()
        for epoch in range(int((saved / "epoch").read_text()) if saved else 0, 3):
            cotune.report({"loss": float(epoch)})
            with cotune.checkpoint() as path:
                (path / "epoch").write_text(str(epoch + 1))

    (first,) = run(train, {"x": 1}, trials=1, name="torn")
    events = first.folder.parents[1] / "events.jsonl"
    lines = events.read_text().splitlines(keepends=True)
    events.write_text("".join(lines[: next(n for n, line in enumerate(lines) if '"report"' in line)]))
    (again,) = run(train, {"x": 1}, trials=1, name="torn", resume=True)
    assert (again.state, [entry["loss"] for entry in again.history]) == ("done", [0.0, 1.0, 2.0])


def test_a_failing_trial_fails_alone_and_is_retried_as_often_as_asked(run, tmp_path):
    def train(config):
        marker = tmp_path / f"tries-{config['x']}"
        tries = int(marker.read_text()) if marker.exists() else 0
        marker.write_text(str(tries + 1))
        if config["x"] == 1 and tries < 2:
            raise ValueError("bad luck")
        cotune.report({"loss": 1.0})

    space = {"x": cotune.choice([0, 1])}
    results = run(train, space, sampler="grid", max_failures=1)
    failed = results.errors
    assert [trial.config["x"] for trial in failed] == [1]
    assert "ValueError: bad luck" in str(failed[0].error)
    trace = (failed[0].folder / "error.txt").read_text().splitlines()
    assert ("bad luck" in trace[-1], "in train" in trace[1]) == (True, True), "it begins in the trainable"
    results = run(train, space, sampler="grid", max_failures=1)
    assert not results.errors


def test_what_trials_print_goes_to_their_own_logs(run, capfd):
    def train(config):
        import subprocess
        import sys

        print("hello from", cotune.trial_id())
        print("careful", file=sys.stderr)
        subprocess.run(["echo", "child of", str(cotune.trial_id())], check=True)
        cotune.report({"loss": 1.0})

    results = run(train, {"x": 1}, trials=3, lanes=2)
    for trial in results:
        text = (trial.folder / "log.txt").read_text()
        assert f"hello from {trial.id}\n" in text
        assert "careful" in text
        assert f"child of {trial.id}\n" in text
    assert "hello" not in capfd.readouterr().out


def test_callbacks_get_every_result_and_cannot_end_the_run(run):
    seen = []

    def broken(trial):
        raise KeyError("oops")

    with pytest.warns(UserWarning, match="KeyError") as caught:
        run(lambda c: 1.0, {"x": 1}, trials=3, callbacks=[lambda trial: seen.append(trial.id), broken])
    assert sorted(seen) == [0, 1, 2]
    # Once, with where it happened.
    assert len(caught) == 1
    assert 'raise KeyError("oops")' in str(caught[0].message)


def test_it_runs_in_a_thread_and_in_two_threads_at_once(run):
    results = {}
    threads = [
        threading.Thread(target=lambda n=n: results.update({n: run(quadratic, {"x": float(n)}, trials=3)}))
        for n in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len(results[n]) == 3 and not results[n].errors for n in range(2))


def at_once(results):
    return max(sum(a.start <= b.start < a.end for a in results) for b in results)


def test_lanes_that_are_not_given_are_as_many_as_cores_where_trials_compute(run):
    def train(config):
        for _ in range(6):
            begun = time.thread_time()
            while time.thread_time() - begun < 0.03:
                pass
            cotune.report({"loss": 1.0})

    assert at_once(run(train, {"x": cotune.uniform(0, 1)}, trials=12)) == len(os.sched_getaffinity(0))


@pytest.mark.skipif(not delays.are_counted(), reason="this kernel counts no delays")
def test_and_more_where_they_leave_the_cores_idle(run):
    def train(config):
        for _ in range(6):
            time.sleep(0.03)
            cotune.report({"loss": 1.0})

    cores = len(os.sched_getaffinity(0))
    assert at_once(run(train, {"x": cotune.uniform(0, 1)}, trials=4 * cores, sampler="random")) > cores


def test_two_devices_are_both_used(run):
    results = run(quadratic, {"x": 1.0}, trials=6, devices=["cpu:0@2GiB", "cpu:1@2GiB"], lanes=1)
    assert {trial.device for trial in results} == {"cpu:0", "cpu:1"}


def test_two_devices_are_both_used_by_two_trials_of_which_an_earlier_sweep_tells_all(run):
    def train(config):
        for _ in range(5):
            time.sleep(0.01)
            cotune.report({"loss": config["x"]})

    for _ in range(2):
        # Room for both on the first device.
        options = {"trials": 2, "sampler": "random", "devices": ["cpu:0@2GiB", "cpu:1@2GiB"], "lanes": 2}
        results = run(train, {"x": cotune.uniform(0, 1)}, **options)
    assert {trial.device for trial in results} == {"cpu:0", "cpu:1"}


def test_results_tell_what_was_measured_and_where(run):
    trial = run(quadratic, {"x": 1.0}, trials=1)[0]
    assert trial.device == "cpu:0"
    assert trial.lane == 1
    assert trial.start <= trial.end
    assert trial.persistent is not None
    assert [report["step"] for report in trial.history] == list(range(9))
    assert Path(trial.folder).is_dir()


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"metric": "accuracy", "trials": 1}, cotune.UnknownMetric, "'loss'"),
        ({"trials": 0}, cotune.InputError, "trials=0"),
        ({"trials": 1, "lanes": 1.5}, cotune.InputError, "lanes=1.5"),
        ({}, cotune.InputError, "trials="),
        ({"trials": 1, "mode": "least"}, cotune.InputError, "'least'"),
        ({"trials": 1, "devices": None, "gpus": 99}, cotune.DeviceError, "gpus=99"),
        ({"trials": 1, "devices": ["tpu:0"]}, cotune.DeviceError, "'tpu:0'"),
        ({"trials": 1, "sampler": "best"}, cotune.InputError, "'best'"),
        ({"trials": 1, "pruner": 3}, cotune.InputError, "3"),
        ({"trials": 1, "policy": "magic"}, cotune.InputError, "'magic'"),
        ({"trials": 1, "seed": -1}, cotune.InputError, "seed=-1"),
        ({"trials": 1, "name": "../up"}, cotune.InputError, "'../up'"),
        ({"trials": 1, "time_budget": -5}, cotune.InputError, "-5"),
        ({"trials": 1, "storage": "/proc/none"}, cotune.StorageError, "/proc/none"),
        ({"trials": 1, "resume": "yes"}, cotune.InputError, "resume='yes'"),
        ({"trials": 1, "resume": True}, cotune.InputError, "no name="),
        ({"trials": 1, "storage": "sqlite:///mine.db"}, cotune.InputError, "'sqlite:///mine.db'"),
        ({"num_samples": 1}, cotune.InputError, "takes no num_samples="),
        ({"trials": 1, "lockstep": 1}, cotune.InputError, "lockstep=1"),
        ({"trials": 1, "dashboard": "live"}, cotune.InputError, "dashboard='live'"),
    ],
)
def test_bad_input_is_named_with_a_hint(run, options, error, says):
    with pytest.raises(error) as raised:
        run(lambda config: cotune.report({"loss": 1.0}), {"x": 1}, **options)
    assert says in raised.value.message
    assert raised.value.hint


@pytest.mark.parametrize(
    ("options", "says", "hint"),
    [
        ({"param_space": {"x": 1}, "num_samples": 3}, "takes no param_space=", "as second argument"),
        ({"max_epochs": 3}, "takes no max_epochs=", "training_iteration"),
        ({"config": {"x": 1}, "metric": "loss"}, "takes no config=", "as second argument"),
        ({"max_concurrent": 2}, "takes no max_concurrent=", "lanes="),
        ({"metric": "loss", "trials": 1}, "a search space is a dict, not None", "name what is searched"),
        ({"space": {"x": 1}, "trials": 1}, "metric= is missing", "name one of the metrics"),
    ],
)
def test_a_space_or_a_metric_that_is_left_out_or_has_another_name_is_named_with_a_hint(options, says, hint):
    with pytest.raises(cotune.InputError) as raised:
        cotune.run(quadratic, **options)
    assert says in raised.value.message
    assert hint in raised.value.hint


def test_a_trainable_that_cannot_travel_is_refused_before_anything_starts(run, tmp_path):
    lock = threading.Lock()
    with pytest.raises(cotune.NotPicklable) as raised:
        run(lambda config: lock.acquire(), {"x": 1}, trials=1)
    assert raised.value.hint
    assert not list(tmp_path.iterdir()), "a folder that nothing was written to is removed"


def test_what_the_space_and_the_trainable_both_hold_is_one_object_in_a_trial_too(run):
    def relu(x):
        return max(x, 0)

    def gelu(x):
        return x

    known = {}

    class Base:
        def __init_subclass__(cls):
            known[cls.__name__] = cls

    class Net(Base):
        pass

    gains, thing, other = {relu: 2.0, gelu: 1.0}, object(), object()

    def train(config):
        assert config["net"] is known["Net"]
        assert type(config["made"]) is known["Net"]
        assert config["nested"]["constant"] is thing
        assert config["thing"] in (thing, other)
        return gains[config["act"]] + gains[config["list"][0]]

    space = {
        "act": cotune.choice([relu, gelu]),
        "list": cotune.choice([[relu, 1], [gelu, 2]]),
        "thing": cotune.choice([thing, other]),
        "net": cotune.choice([Net]),
        "made": cotune.choice([Net()]),
        "nested": {"constant": thing},
    }
    results = run(train, space, sampler="grid")
    assert [trial.error for trial in results] == [None] * 8
    assert sorted(trial.metrics["loss"] for trial in results) == [2.0, 2.0, 3.0, 3.0, 3.0, 3.0, 4.0, 4.0]


@pytest.mark.parametrize("x", [threading.Lock(), cotune.choice(["a", "b", threading.Lock()])])
def test_what_cannot_travel_is_refused_by_name_whoever_would_draw_it(run, x):
    with pytest.raises(cotune.NotPicklable, match="'in/x' of the space cannot be sent"):
        run(lambda config: 1.0, {"in": {"x": x}}, trials=1)


def test_a_trial_without_a_report_and_a_nan_fail_by_name(run):
    results = run(lambda config: None if config["x"] else float("nan"), {"x": cotune.choice([0, 1])}, sampler="grid")
    errors = {trial.config["x"]: trial.error for trial in results}
    assert isinstance(errors[0], cotune.MetricError)
    assert "nan" in errors[0].message
    assert isinstance(errors[1], cotune.NoReport)
    with pytest.raises(cotune.NoResult):
        results.best  # noqa: B018


def test_a_name_is_used_once(run):
    run(quadratic, {"x": 1.0}, trials=1, name="mine")
    with pytest.raises(cotune.RunNameInUse, match="mine"):
        run(quadratic, {"x": 1.0}, trials=1, name="mine")


@pytest.mark.parametrize("resume", [False, True])
def test_the_folder_of_a_study_is_refused_as_such(run, tmp_path, resume):
    study = optuna.create_study(study_name="of-mine")
    cotune.optimize(study, lambda trial: 1.0, 1, name="mine", storage=tmp_path, devices=["cpu:0"], dashboard=False)
    with pytest.raises(cotune.RunNameInUse, match="belongs to the Optuna study 'of-mine'") as raised:
        run(quadratic, {"x": 1.0}, trials=1, name="mine", resume=resume)
    assert "resume=" not in raised.value.hint


def test_a_name_is_free_again_if_no_trial_has_started(run, tmp_path):
    with pytest.raises(cotune.InputError, match="priority= raised KeyError"):
        run(quadratic, {"x": 1.0}, trials=1, name="mine", priority=lambda config: config["y"])
    results = run(quadratic, {"x": cotune.uniform(0, 1)}, trials=2, name="mine")
    assert len(results) == len(cotune.load("mine", tmp_path)) == 2


def test_trials_that_never_ran_for_a_wrong_priority_run_when_the_run_is_resumed(run):
    asked = []

    def priority(config):
        asked.append(config)
        return [1.0][len(asked) - 1]

    space = {"x": cotune.choice([0, 1, 2])}
    first = run(lambda config: float(config["x"]), space, sampler="grid", lanes=1, priority=priority, name="it")
    assert len(first.errors) == 2
    again = run(lambda config: float(config["x"]), space, sampler="grid", lanes=1, name="it", resume=True)
    assert [str(trial.state) for trial in again] == ["done"] * 3


def test_a_policy_that_raises_is_named(run):
    class Wrong(Fifo):
        name = "wrong"

        def key(self, waiting):
            return waiting.size

    with pytest.raises(AttributeError) as raised:
        run(quadratic, {"x": 1.0}, trials=1, policy=Wrong())
    assert "policy=<" in raised.value.__notes__[0]
    Wrong.key = lambda policy, waiting: (1j,)
    with pytest.raises(cotune.InputError, match="key"):
        run(quadratic, {"x": 1.0}, trials=1, policy=Wrong())


def test_a_name_that_was_used_by_another_process_meanwhile_is_used_once(run, monkeypatch):
    create = RunFolder.create

    def late(folder):
        create(folder)
        folder.events.write_text("{}\n")

    monkeypatch.setattr(RunFolder, "create", late)
    with pytest.raises(cotune.RunNameInUse, match="mine"):
        run(quadratic, {"x": 1.0}, trials=1, name="mine")


def test_a_returned_number_of_any_library_counts(run):
    def train(config):
        import numpy as np

        return {"float32": np.float32(2), "int64": np.int64(2), "array": np.array(2.0)}[config["kind"]]

    results = run(train, {"kind": cotune.choice(["float32", "int64", "array"])}, sampler="grid")
    assert [trial.metrics for trial in results] == [{"loss": 2.0}] * 3


def test_a_large_constant_reaches_the_trials_quickly(run):
    import numpy as np

    data = np.zeros(50 * MIB // 8)
    began = time.monotonic()
    results = run(lambda config: float(config["data"].sum() + config["x"]), {"data": data, "x": 1.0}, trials=3)
    assert not results.errors
    assert time.monotonic() - began < 15


def test_a_sampler_that_raises_ends_the_run_with_its_cause(run):
    class Broken(optuna.samplers.RandomSampler):
        def sample_independent(self, *args):
            raise ZeroDivisionError("oh")

    with pytest.raises(cotune.RunError, match="ZeroDivisionError: oh") as raised:
        run(quadratic, {"x": cotune.uniform(0, 1)}, trials=2, sampler=Broken())
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_a_grid_sampler_of_optuna_runs_every_point_once(run):
    sampler = optuna.samplers.GridSampler({"a": [1, 2], "b": [3, 4]})
    space = {"a": cotune.choice([1, 2]), "b": cotune.choice([3, 4])}
    results = run(lambda config: config["a"] * config["b"], space, sampler=sampler, trials=9)
    assert sorted((t.config["a"], t.config["b"]) for t in results) == [(1, 3), (1, 4), (2, 3), (2, 4)]


def test_a_run_whose_driver_died_before_it_wrote_anything_begins_anew(run, tmp_path):
    folder = RunFolder(tmp_path / "early")
    folder.create()
    folder.events.write_bytes(b'{"event":"run","ti')
    results = run(quadratic, {"x": cotune.uniform(-1, 1)}, trials=2, name="early", resume=True)
    assert [trial.state for trial in results.trials] == ["done", "done"]


def test_a_run_resumed_with_another_space_says_so(run):
    run(quadratic, {"x": cotune.uniform(0, 5)}, trials=3, name="space")
    for space in ({"x": cotune.uniform(0, 1e-9)}, {"y": cotune.uniform(0, 5)}):
        with pytest.raises(cotune.CotuneError, match="trial") as raised:
            run(quadratic, space, trials=4, name="space", resume=True)
        assert "same space" in raised.value.hint


@pytest.mark.parametrize("saves", [True, False])
def test_a_trial_goes_on_from_a_checkpoint_with_the_constants_it_was_made_with(run, saves):
    def train(config):
        if saves:
            with cotune.checkpoint():
                pass
        for epoch in range(10**6 if config["goes on"] else 1):
            time.sleep(0.01)
            cotune.report({"loss": 1.0}, step=epoch)

    assert run(train, {"goes on": 1}, trials=1, pruner=Interrupted(1), name="constant").interrupted
    if saves:
        with pytest.raises(cotune.RunError, match="'goes on' was the constant 1 "):
            run(train, {"goes on": 0}, trials=1, name="constant", resume=True)
    else:
        (trial,) = run(train, {"goes on": 0}, trials=1, name="constant", resume=True)
        assert (trial.state, len(trial.history)) == ("done", 1)


def test_a_run_resumed_with_changed_code_says_so(run):
    space = {"x": cotune.uniform(0, 5)}
    run(lambda config: config["x"], space, trials=1, name="changed")
    with pytest.warns(UserWarning, match="goes on with changed code"):
        results = run(lambda config: 7.0, space, trials=2, name="changed", resume=True)
    assert [trial.metrics["loss"] for trial in results] == [results[0].config["x"], 7.0]


def test_code_has_changed_if_it_is_not_that_of_the_last_session(run):
    space = {"x": cotune.uniform(0, 5)}
    first, other = (lambda config: config["x"]), (lambda config: 7.0)
    run(first, space, trials=1, name="twice")
    with pytest.warns(UserWarning, match="goes on with changed code"):
        run(other, space, trials=2, name="twice", resume=True)
    run(other, space, trials=3, name="twice", resume=True)
    with pytest.warns(UserWarning, match="goes on with changed code"):
        run(first, space, trials=4, name="twice", resume=True)


def test_a_run_resumed_with_another_object_as_a_constant_says_so(run):
    def train(config):
        return float(len(str(config["data"])))

    def goes_on(path, trials):
        return run(train, {"data": Path(path), "x": 1}, trials=trials, name="objects", resume=True)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        goes_on("/data/v1", 1)
        goes_on("/data/v1", 2)
    with pytest.warns(UserWarning, match=r"constant 'data' was .*/data/v1.*, and now is .*/data/v2"):
        goes_on("/data/v2", 3)


def test_a_list_in_a_space_where_nothing_is_searched_is_told_to_be_a_constant(run):
    with pytest.warns(UserWarning, match=r"'x' of the space is the constant \[1, 2\] \(list\).*cotune.choice"):
        results = run(lambda config: float(config["x"][0]), {"x": [1, 2]}, trials=2)
    assert [trial.config for trial in results] == [{"x": [1, 2]}] * 2


def test_an_unknown_sampler_is_refused_before_a_folder_is_made(run, tmp_path):
    with pytest.raises(cotune.InputError):
        run(quadratic, {"x": 1.0}, trials=1, sampler="best", name="none")
    assert not (tmp_path / "none").exists()


def test_a_trial_with_priority_starts_before_those_that_were_proposed_earlier(run):
    def train(config):
        for _ in range(3):
            cotune.report({"loss": float(config["x"])})

    space = {"x": cotune.choice([0, 1, 2, 3, 4, 5])}
    found = run(train, space, sampler="grid", lanes=1, priority=lambda config: float(config["x"] == 5))
    order = [trial.config["x"] for trial in sorted(found, key=lambda trial: trial.start)]
    assert len(order) == 6
    assert order.index(5) <= 1
    slowdowns = {trial.config["x"]: trial.slowdown for trial in found}
    assert slowdowns.pop(5) == pytest.approx(1.0)
    assert set(slowdowns.values()) == {None}


@pytest.mark.parametrize(
    "priority", ["high", None, float("nan"), 10**400, lambda config: "high", lambda config: config["y"]]
)
def test_a_priority_that_is_no_number_ends_the_run_by_name(run, priority):
    with pytest.raises(cotune.InputError, match="priority=") as raised:
        run(quadratic, {"x": 1.0}, trials=1, priority=priority)
    assert raised.value.hint


def test_a_priority_that_fails_for_one_config_fails_its_trial_alone(run):
    space = {"x": cotune.choice(range(6))}
    found = run(quadratic, space, sampler="grid", seed=1, priority=lambda config: 1 / (config["x"] - 3))
    assert [(trial.config["x"], str(trial.state)) for trial in found.errors] == [(3, "failed")]
    assert "ZeroDivisionError" in found.errors[0].error.message
    assert len(found) == 6


@pytest.mark.parametrize("wrong", ["all", 0, 2.5, True, 10**400, lambda config: -1, lambda config: config["y"]])
def test_steps_that_are_no_number_end_the_run_by_name(run, wrong):
    with pytest.raises(cotune.InputError, match="max_steps=") as raised:
        run(quadratic, {"x": 1.0}, trials=1, max_steps=wrong)
    assert raised.value.hint


def test_the_steps_of_a_trial_may_hang_on_its_config(run):
    found = run(quadratic, {"x": cotune.choice([1, 2])}, trials=2, max_steps=lambda config: config["x"] or None)
    assert [trial.state for trial in found.trials] == ["done", "done"]


def test_the_slowdown_of_a_trial_with_priority_beside_others_is_measured_and_kept(run, tmp_path):
    def train(config):
        for _ in range(12):
            # Computing would take longer whenever another program does, also while a trial is alone.
            time.sleep(0.06)
            cotune.report({"loss": float(config["x"])})

    space = {"x": cotune.choice([0, 1, 2])}
    found = run(train, space, sampler="grid", lanes=2, name="protected", priority=1)
    slowdowns = [trial.slowdown for trial in found]
    assert all(slowdown is not None and 0.5 < slowdown < 3.0 for slowdown in slowdowns), slowdowns
    from cotune.paths import RunFolder
    from cotune.record import read_run

    kept = read_run(RunFolder(tmp_path / "protected")).records
    assert [record.measures.slowdown for record in kept] == slowdowns


def test_a_run_is_simulated_on_the_devices_it_had_and_takes_what_it_took(run, tmp_path):
    def train(config):
        for step in range(10):
            time.sleep(config["pause"])
            cotune.report({"loss": 1.0}, step=step)

    space, folder = {"pause": cotune.choice([0.02, 0.05])}, RunFolder(tmp_path / "mine")
    first = run(train, space, trials=8, lanes=2, name="mine")
    again = from_run(folder)
    assert (again.devices, again.capacity, again.lanes) == (1, 4 * GIB, 2)

    # On a busy machine it takes a while until a freed lane has its next trial, which is not simulated.
    def half_of_what_they_took(results):
        return sum(trial.end - trial.start for trial in results) / 2

    simulated = simulate(again).figures.makespan
    assert 0.95 * half_of_what_they_took(first) < simulated < 1.25 * first.makespan
    second = run(train, space, trials=12, lanes=2, name="mine", resume=True)
    both = simulate(from_run(folder)).figures.makespan
    assert 0.95 * half_of_what_they_took(second) < both < 1.25 * (first.makespan + second.makespan)


def test_a_resume_that_is_refused_leaves_the_journal_as_it_was(run):
    def train(config):
        return config["x"]

    results = run(train, {"x": cotune.uniform(0, 1)}, trials=6, pruner="asha", name="kept")
    before = (results.folder / "optuna.journal").read_bytes()
    with pytest.raises(cotune.CotuneError, match="which this space does not hold"):
        run(train, {"x": cotune.uniform(0, 1e-6)}, trials=8, pruner="asha", name="kept", resume=True)
    assert (results.folder / "optuna.journal").read_bytes() == before


def test_code_that_changes_its_config_changes_no_other_trials(run):
    def change(config):
        config["layers"].append(0)
        return 1

    def train(config):
        found = len(config["layers"])
        change(config)
        cotune.report({"loss": found})

    space = {"layers": [8] * 4, "x": cotune.uniform(0, 1)}
    results = run(
        train,
        space,
        trials=4,
        lanes=1,
        priority=change,
        max_steps=change,
        callbacks=[lambda trial: change(trial.config)],
    )
    assert [trial.metrics["loss"] for trial in results] == [4] * 4
    # A large one is there once, and not once per trial.
    assert len({id(trial.config["layers"]) for trial in results}) == 1


def test_callbacks_may_come_from_a_generator_or_be_none(run):
    seen = []
    run(lambda config: 0.0, {"x": 1}, trials=2, callbacks=(one for one in [seen.append]))
    assert len(seen) == 2
    # As Optuna has it by default.
    run(lambda config: 0.0, {"x": 1}, trials=1, callbacks=None)


def test_a_returned_array_behind_reports_is_no_report(run):
    def train(config):
        import numpy as np

        cotune.report({"loss": 1.0})
        return np.zeros(10_000)

    results = run(train, {"x": 1}, trials=1)
    assert (str(results[0].state), results[0].metrics) == ("done", {"loss": 1.0})


def test_what_a_callback_is_told_is_on_disk_by_then(run, tmp_path):
    seen = []

    def look(trial):
        seen.append(str(cotune.load("told", tmp_path)[trial.id].state))

    run(lambda config: 0.0, {"x": 1}, trials=2, name="told", callbacks=[look])
    assert seen == ["done", "done"]


def test_ctrl_c_while_all_is_set_up_ends_the_run_in_order_and_it_can_be_resumed(run, monkeypatch):
    def interrupted(*asked):
        signal.raise_signal(signal.SIGINT)
        return assemble(*asked)

    assemble = assembly.assemble
    monkeypatch.setattr(assembly, "assemble", interrupted)
    found = run(quadratic, {"x": cotune.uniform(0, 1)}, trials=2, name="early")
    assert found.interrupted
    assert not any(trial.attempts for trial in found)
    monkeypatch.undo()
    assert len(run(quadratic, {"x": cotune.uniform(0, 1)}, trials=2, name="early", resume=True)) == 2
