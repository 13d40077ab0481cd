"""`cotune.run` with trials that split their batches: idle room is lent to the last one, and taken back."""

import json
import os
import time

import pytest
import torch
from fake_cuda import FakeCuda
from optuna.samplers import TPESampler

import cotune
from cotune.demand import MIB
from cotune.engines.local import LocalEngine
from cotune.engines.local_options import LocalOptions
from cotune.packer import GrantChanged, GrantTrial, IterationsDone, StopTrial
from cotune.script.pickling import pack
from cotune.sharing.devices import find_devices
from cotune.sharing.lane_options import TrialOptions
from cotune.testing import EngineUnderTest
from cotune.trial import Outcome, Report

LAST = 4


class HoldsBackTheLast(TPESampler):
    """Suggests the last trial once it is told; it is asked for that one alone, the first four being asked at once."""

    def __init__(self, told):
        super().__init__(seed=0)
        self._told = told

    def before_trial(self, study, trial):
        if trial.number == LAST:
            self._told.read_text()


def steps(config):
    """Trains as long as it is told, and says with how many threads; a step is the faster the more there are."""
    net, used = torch.nn.Linear(4, 1), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def loss(x):
        used.append(torch.get_num_threads())
        time.sleep(0.01 / torch.get_num_threads())
        return net(x).square().mean()

    while True:
        used.clear()
        optimizer.zero_grad()
        cotune.micro_batches(torch.ones(8, 4), 2).backward(loss)
        optimizer.step()
        yield max(used)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores, one of them to be idle")
def test_the_last_trial_is_lent_an_idle_core_until_another_needs_it(tmp_path):
    lent, back = tmp_path / "lent", tmp_path / "back"
    os.mkfifo(lent)
    os.mkfifo(back)

    def train(config):
        trial = cotune.trial_id()
        for count, threads in enumerate(steps(config)):
            if trial == 0 and threads > 1 and lent.exists():
                lent.write_text("go on")
                lent.unlink()
            if trial == LAST and count == 3:
                back.read_text()
            if (trial == 0 and threads == 1 and not lent.exists()) or (trial > 0 and count == 3):
                break
        if trial == 0:
            back.write_text("it is")
        cotune.report({"loss": float(threads)})

    results = cotune.run(
        train,
        {"x": cotune.uniform(0, 1)},
        metric="loss",
        trials=LAST + 1,
        devices=["cpu:0@2GiB"],
        lanes=2,
        sampler=HoldsBackTheLast(lent),
        storage=tmp_path,
        dashboard=False,
    )
    assert [trial.state for trial in results] == ["done"] * (LAST + 1)
    assert [trial.metrics["loss"] for trial in results] == [1.0] * (LAST + 1)


@pytest.mark.parametrize(("options", "lent"), [({}, True), ({"grants": False}, False), ({"lockstep": True}, False)])
def test_lockstep_lends_nothing_and_grants_can_be_switched_off(tmp_path, monkeypatch, options, lent):
    asked = []

    def options_of_the_brain(**settings):
        asked.append(settings["grants"])
        raise KeyboardInterrupt

    monkeypatch.setattr("cotune._arguments.PackerOptions", options_of_the_brain)
    with pytest.raises(KeyboardInterrupt):
        cotune.run(swell, {"x": 1}, metric="loss", trials=1, storage=tmp_path, **options)
    assert asked == [lent]


def swell(config):
    """Trains a model whose micro-batches take much more as soon as several run at once, in groups as on a GPU."""
    from cotune import session
    from cotune.sharing import concurrent

    concurrent._cuda = FakeCuda()
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    x, at_once = torch.randn(14, 8), []

    def loss(part):
        at_once.append(session.current()._loan.concurrency)
        large = (80 * MIB if at_once[0] > 1 else MIB) // 4
        # Squaring keeps its input for the backward: that is what each of them takes.
        ballast = (part.new_ones(large) * net[0].bias[0]).square().mean()
        return net(part).square().mean() + 0.0 * ballast

    while True:
        at_once.clear()
        torch.manual_seed(1)
        optimizer.zero_grad()
        total = cotune.micro_batches(x, 4).backward(loss)
        grads = torch.cat([p.grad.flatten() for p in net.parameters()])
        told = {"loss": float(total), "grad": float(grads.abs().sum()), "drawn": float(torch.rand(()))}
        cotune.report({**told, "forwards": len(at_once), "at once": at_once[0]})
        optimizer.step()
        with torch.no_grad():
            net[1].running_mean.zero_()
            net[1].running_var.fill_(1.0)


def test_memory_that_runs_out_in_a_real_lane_is_made_good_within_the_iteration(tmp_path):
    """Four micro-batches at once exceed the cap of the process; the same iteration goes on one at a time."""
    how = LocalOptions(TrialOptions("loss"))
    engine = LocalEngine(pack(swell), find_devices(devices=["cpu:0@2GiB"]), tmp_path, how)
    with EngineUnderTest(engine, tmp_path) as body:
        body.open(quota=560 * MIB)
        body.begin(0)
        body.wait(IterationsDone, lambda event: event.splits == 4)
        body.engine.execute(GrantTrial(0, 4))
        assert body.wait(GrantChanged).concurrency == 4
        back = body.wait(GrantChanged)
        assert (back.concurrency, back.ran_out) == (1, 4)
        lines = []
        while len(lines) < 3:
            lines.append(body.wait(Report).line)
        assert all(b'"loss"' in line for line in lines)
        reports = [_numbers(line) for line in lines]
        repeated, usual = reports[0], reports[-1]
        assert repeated.pop("forwards") > usual.pop("forwards") == 4
        assert repeated.pop("at once") > usual.pop("at once") == 1
        assert repeated == pytest.approx(usual, rel=1e-6)
        body.engine.execute(StopTrial(0))
        assert body.collect(0)[1].outcome is Outcome.STOPPED


def _numbers(line):
    return json.loads(line)["metrics"]


class Refused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: 12 bytes")


@pytest.mark.parametrize("reports", [0, 1])
def test_a_trial_whose_put_off_backward_failed_as_it_left_the_loop_is_not_done(reports, tmp_path):
    def train(config):
        from cotune import session
        from cotune.sharing import concurrent

        model = torch.nn.Linear(2, 1)
        cotune.report({"loss": 1.0})
        # As on a GPU, under a grant.
        concurrent._cuda = FakeCuda()
        session.current()._loan.concurrency = 4
        for micro in cotune.micro_batches(torch.ones(8, 2), 2):
            micro.backward(Refused.apply(model(micro.data)).mean())
            if micro.index == 1:
                break
        for _ in range(reports):
            cotune.report({"loss": 0.0})

    (trial,) = cotune.run(
        train, {"x": 1}, metric="loss", trials=1, devices=["cpu:0@2GiB"], lanes=1, storage=tmp_path, dashboard=False
    )
    assert trial.state == "failed"
    assert "memory" in str(trial.error)
