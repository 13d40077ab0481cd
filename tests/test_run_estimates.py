"""Sweeps whose trials are estimated before they run, with real processes and real memory."""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

import optuna
import pytest

import cotune
from cotune.demand import MIB
from cotune.driver import sweep as driver_sweep
from cotune.driver.calibration import FEW
from cotune.sharing import estimator

ROOT = Path(cotune.__file__).parents[1]


class Trains:
    """Three steps of some model, whose loss is read out."""

    classes = 10

    def setup(self, config):
        import torch

        self.batch, self.left = config["batch"], 3
        self.model = self.build(config["width"])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)

    rehearse = setup

    def inputs(self):
        raise NotImplementedError

    def step(self):
        import torch

        x, y = self.inputs()
        loss = torch.nn.functional.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.left -= 1
        return {"loss": loss.item(), "done": not self.left}


class Perceptron(Trains):
    space: ClassVar = {"width": cotune.lograndint(200, 3000), "batch": cotune.lograndint(16, 128)}

    def build(self, width):
        from torch import nn

        hidden = nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        return nn.Sequential(*hidden, nn.Linear(width, self.classes))

    def inputs(self):
        import torch

        return torch.randn(self.batch, 784), torch.randint(self.classes, (self.batch,))


class Convolutions(Trains):
    space: ClassVar = {"width": cotune.lograndint(4, 24), "batch": cotune.lograndint(16, 96)}

    def build(self, width):
        from torch import nn

        first = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()
        second = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU()
        return nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, self.classes))

    def inputs(self):
        import torch

        return torch.randn(self.batch, 3, 32, 32), torch.randint(self.classes, (self.batch,))


class Transformer(Trains):
    space: ClassVar = {"width": cotune.choice([64, 128, 192]), "batch": cotune.lograndint(4, 24)}

    def build(self, width):
        from torch import nn

        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        return nn.Sequential(nn.Embedding(1000, width), encoder, nn.Linear(width, 1000), nn.Flatten(0, 1))

    def inputs(self):
        import torch

        return torch.randint(1000, (self.batch, 64)), torch.randint(1000, (self.batch * 64,))


@pytest.fixture
def patience(monkeypatch):
    """A busy machine is no reason to go without an estimate here."""
    monkeypatch.setattr(estimator, "BUDGET", 60.0)


def sweep(cls, storage, trials, **options):
    common = {"metric": "loss", "devices": ["cpu:0@4GiB"], "lanes": 1, "seed": 0, "dashboard": False, "name": "it"}
    return cotune.run(cls, cls.space, trials=trials, storage=storage, **{"sampler": "random", **common, **options})


def events(storage, kind, name="it"):
    lines = (storage / name / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


@pytest.mark.parametrize("cls", [Perceptron, Convolutions, Transformer])
def test_once_the_ratio_is_learnt_an_estimate_is_what_is_measured(cls, tmp_path, monkeypatch, patience):
    # Freed memory goes back at once: what is resident is then what tensors hold, and not what they once held.
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    results = sweep(cls, tmp_path, FEW + 4)
    assert {str(trial.state) for trial in results} == {"done"}
    estimates = {event["trial"]: event["estimate"] for event in events(tmp_path, "estimate")}
    assert all(estimates.get(trial.id) for trial in results), events(tmp_path, "estimate")
    # The first one has also paid for what its lane has imported since, which is more on newer Pythons.
    imports = []
    for part in (0, 1):
        pairs = [(estimates[t.id][part], (t.persistent, t.ephemeral)[part]) for t in results.trials[1:]]
        ratio = statistics.median(measured / estimated for estimated, measured in pairs)
        for estimated, measured in pairs:
            assert ratio * estimated == pytest.approx(measured, rel=0.1, abs=2 * MIB), (part, ratio, pairs)
        imports.append((results[0].persistent, results[0].ephemeral)[part] - ratio * estimates[0][part])
    for trial in results.trials[FEW:]:
        measured = trial.persistent + trial.ephemeral
        assert measured < trial.expected < 1.4 * measured + 2 * imports[0]
    assert imports == [pytest.approx(16 * MIB, abs=4 * MIB), pytest.approx(0, abs=2 * MIB)]


class InOrder(optuna.samplers.BaseSampler):
    """Proposes what it was given."""

    def __init__(self, widths):
        self.widths = widths

    def infer_relative_search_space(self, study, trial):
        return {}

    def sample_relative(self, study, trial, search_space):
        return {}

    def sample_independent(self, study, trial, name, distribution):
        return self.widths[trial.number]


class Holds:
    """Trains one square matrix, which is small or large."""

    space: ClassVar = {"width": cotune.randint(1, 10_000)}

    def setup(self, config):
        import torch

        self.weight = torch.nn.Parameter(torch.ones(config["width"], config["width"]))
        self.optimizer = torch.optim.SGD([self.weight], lr=0.01, momentum=0.9)
        self.left = 3

    rehearse = setup

    def step(self):
        import torch

        self.optimizer.zero_grad()
        (torch.ones(1, len(self.weight)) @ self.weight).sum().backward()
        self.optimizer.step()
        self.left -= 1
        return {"loss": 0.0, "done": not self.left}


def plain(cls):
    """The same class, which is not to be rehearsed."""
    return type(cls.__name__, (cls,), {"rehearse": None, "__module__": cls.__module__})


def troubles(results, storage):
    """Trials that had a device to themselves for want of knowledge, and attempts that ran out of memory."""
    probes = sum(trial.expected is None for trial in results)
    return probes, sum("out of memory" in event["reason"] for event in events(storage, "retry"))


def test_with_estimates_nothing_probes_or_runs_out_of_memory_where_without_them_both_happen(tmp_path, patience):
    counts = {}
    for name, cls in (("with", Holds), ("without", plain(Holds))):
        storage = tmp_path / name
        widths = InOrder([300, 300, 6000, 300, 6000])
        results = sweep(cls, storage, 5, sampler=widths, devices=["cpu:0@2GiB"], lanes=2)
        assert {str(trial.state) for trial in results} == {"done"}
        counts[name] = troubles(results, storage)
    assert counts["with"] == (0, 0)
    assert counts["without"][0] >= 1
    assert counts["without"][1] >= 1, counts
    # The next sweep begins with what the last one has learnt of its estimates.
    again = sweep(Holds, tmp_path / "with", 1, sampler=InOrder([5000]), name="again").trials[0]
    measured = again.persistent + again.ephemeral
    assert measured < again.expected < 1.2 * measured + 32 * MIB


# Its first estimates fail each in its way, those of other trials do not; all trials run.
SCRIPT = """
import json, os, sys, threading
import optuna
import cotune
from cotune.engines.local import LocalEngine
from cotune.sharing import estimator

path = sys.argv[1] + "/harm"
estimate = LocalEngine.estimate

def impatient(self, trial, config):
    # A busy machine is no reason to go without the other estimates.
    estimator.BUDGET = 0.5 if config["does"] == "hangs" else 60.0
    estimate(self, trial, config)

LocalEngine.estimate = impatient
does = ["raises", "trains", "hangs", "trains", "writes", "trains", "reads", "reads", "reads", "trains"]

class Does:
    def setup(self, config):
        import torch

        self.does, self.left = config["does"], 2
        self.weight = torch.nn.Parameter(torch.ones(100, 100))
        self.optimizer = torch.optim.SGD([self.weight], lr=0.01)

    def rehearse(self, config):
        self.setup(config)
        if self.does == "raises":
            raise RuntimeError("no rehearsal")
        elif self.does == "hangs":
            threading.Event().wait()
        elif self.does == "writes":
            open(path, "w").close()

    def step(self):
        loss = self.weight.sum()
        if self.does == "reads":
            int(loss.long().item())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.left -= 1
        return {"loss": 0.0, "done": not self.left}

class InOrder(optuna.samplers.RandomSampler):
    def sample_independent(self, study, trial, name, distribution):
        return does[trial.number]

results = cotune.run(
    Does, {"does": cotune.choice(sorted(set(does)))}, metric="loss", trials=len(does), devices=["cpu:0@4GiB"],
    lanes=1, lockstep=True, sampler=InOrder(), storage=sys.argv[1], name="it", dashboard=False,
)
print(json.dumps({
    "states": [str(trial.state) for trial in results],
    "torch": "torch" in sys.modules,
    "written": os.path.exists(path),
}))
"""


def test_the_longest_trial_of_a_second_sweep_is_among_the_first_to_start(tmp_path, monkeypatch):
    # However long suggestions take here.
    monkeypatch.setattr(driver_sweep, "LINE_UP_WITHIN", 60.0)

    def train(config):
        for _ in range(2):
            until = time.thread_time() + (0.6 if config["x"] == 5 else 0.02)
            while time.thread_time() < until:
                pass
            cotune.report({"loss": 0.0})

    class InTurn(optuna.samplers.RandomSampler):
        def sample_independent(self, study, trial, name, distribution):
            return trial.number

    def starts(name):
        found = cotune.run(
            train, {"x": cotune.choice([0, 1, 2, 3, 4, 5])}, metric="loss", sampler=InTurn(), trials=6, name=name,
            devices=["cpu:0@2GiB", "cpu:1@2GiB"], lanes=1, storage=tmp_path, dashboard=False,
        )  # fmt: skip
        return [trial.config["x"] for trial in sorted(found, key=lambda trial: trial.start)]

    assert starts("first").index(5) > 1
    assert starts("second").index(5) < 2


def test_what_cannot_be_estimated_runs_as_ever_and_the_driver_never_imports_torch(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told == {"states": ["done"] * 10, "torch": False, "written": False}
    estimates = events(tmp_path, "estimate")
    # After three failures in a row there are no more.
    assert [event["trial"] for event in estimates] == list(range(9))
    reasons = [event["reason"].partition(":")[0] for event in estimates]
    data = "DataDependentOutputException"
    slow = "it took more than 0.5 s"
    assert reasons == ["RuntimeError", "", slow, "", "PermissionError", "", data, data, data]


class Hangs(Holds):
    def rehearse(self, config):
        import threading

        threading.Event().wait()


def test_a_run_that_ends_does_not_wait_for_estimates_and_can_be_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr(estimator, "BUDGET", 1e6)
    results = sweep(Hangs, tmp_path, 2, sampler=InOrder([10, 20]), time_budget=0.5)
    assert results.interrupted
    assert {(str(trial.state), trial.attempts) for trial in results} == {("waiting", 0)}
    monkeypatch.setattr(estimator, "BUDGET", 0.1)
    results = sweep(Hangs, tmp_path, 2, sampler=InOrder([10, 20]), resume=True)
    assert {str(trial.state) for trial in results} == {"done"}
