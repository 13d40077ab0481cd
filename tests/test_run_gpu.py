"""`cotune.run` on a real GPU."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import cotune
from cotune.demand import GIB, MIB
from cotune.engines.local import LocalEngine
from cotune.engines.local_options import LocalOptions
from cotune.packer import DeviceChanged
from cotune.script.pickling import pack
from cotune.sharing import cuda
from cotune.sharing.devices import find_devices
from cotune.sharing.lane_options import TrialOptions
from cotune.testing import EngineUnderTest, harness

pytestmark = pytest.mark.gpu

OPTIONS = {"gpus": 1, "devices": None}

# Seconds that a test waits for anything: its own words come before pytest's, which gives it 60.
PATIENCE = 40


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr(harness, "PATIENCE", PATIENCE)


def hold(config):
    import torch

    weights = torch.ones(config["mib"] * MIB, dtype=torch.uint8, device=cotune.device())
    for step in range(4):
        scratch = torch.ones(config["mib"] * MIB // 2, dtype=torch.uint8, device=cotune.device())
        cotune.report({"loss": float(weights[0]) + float(scratch[0]), "pid": os.getpid()}, step=step)
        del scratch
        cotune.report({"loss": 1.0}, step=step)


def dropout(config):
    import torch
    from torch import nn

    torch.use_deterministic_algorithms(True, warn_only=True)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 1)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    for step in range(60):
        x = torch.randn(64, 64, device="cuda")
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.003)  # so that turns of 50 ms change within the trial
        cotune.report({"loss": loss}, step=step)


@pytest.mark.parametrize("mib", [64, 1024])
def test_measured_peaks_are_within_a_hundredth_of_what_is_allocated(run, mib):
    trial = run(hold, {"mib": mib}, trials=1)[0]
    assert trial.persistent + trial.ephemeral == pytest.approx(1.5 * mib * MIB, rel=0.01)


def test_residents_of_one_lane_compute_the_same_bits_as_trials_alone(run):
    space = {"lr": cotune.choice([1e-3, 3e-3, 1e-2])}
    alone = run(dropout, space, sampler="grid", lanes=1)
    together = run(dropout, space, sampler="grid", lanes=1, residents=3)
    for a, b in zip(alone, together, strict=True):
        assert a.error is b.error is None
        assert [r["loss"] for r in a.history] == [r["loss"] for r in b.history]


def test_out_of_memory_is_retried_with_more_and_siblings_do_not_notice(run):
    def train(config):
        size = 6000 if cotune.trial_id() == 5 else 100
        hold({"mib": size})

    results = run(train, {"x": cotune.uniform(0, 1)}, trials=10, lanes=2)
    assert [str(trial.state) for trial in results] == ["done"] * 10
    assert results[5].attempts > 1


def test_residents_hold_what_is_persistent_of_all_and_the_largest_ephemeral_part(run, tmp_path):
    """Two that keep 256 MiB each and take another 1,024 at times hold 1,536 MiB, not 2,560."""

    def train(config):
        import torch

        watch = cuda.GpuWatch(os.environ["CUDA_VISIBLE_DEVICES"])
        other = tmp_path / f"began-{1 - config['x']}"
        kept = torch.ones(256 * MIB, dtype=torch.uint8, device="cuda")
        (tmp_path / f"began-{config['x']}").touch()
        beside, until = 0, time.monotonic() + PATIENCE
        while beside < 20 and time.monotonic() < until:
            scratch = torch.ones(1024 * MIB, dtype=torch.uint8, device="cuda")
            loss, used = float(kept[0] + scratch[0]), watch.used()
            # At a boundary it would count as persistent.
            del scratch
            time.sleep(0.01)  # so that turns of 50 ms change many times
            reserved = torch.cuda.memory_reserved(0)
            cotune.report({"loss": loss, "reserved": reserved, "used": used, "pid": os.getpid()})
            beside += other.exists()
        watch.close()

    watch = cuda.GpuWatch(find_devices(gpus=1)[0].uuid)
    before = watch.used()
    watch.close()
    results = run(train, {"x": cotune.choice([0, 1])}, sampler="grid", lanes=1, residents=2)
    assert [str(trial.state) for trial in results] == ["done", "done"]
    assert len({trial.metrics["pid"] for trial in results}) == 1
    most, used = (max(report[what] for trial in results for report in trial.history) for what in ("reserved", "used"))
    assert 1536 * MIB <= most <= 1600 * MIB
    # By NVML, with the lane's context.
    assert 1536 * MIB <= used - before < 2560 * MIB


def test_the_next_trial_of_a_lane_takes_the_memory_of_the_last(run):
    def train(config):
        import torch

        block = torch.ones(2048 * MIB, dtype=torch.uint8, device="cuda")
        reserved = torch.cuda.memory_reserved(0)
        for step in range(4):
            cotune.report({"loss": float(block[0]), "reserved": reserved, "pid": os.getpid()}, step=step)

    first, *others = run(train, {"x": cotune.uniform(0, 1)}, trials=3, lanes=1)
    for trial in others:
        assert trial.metrics["pid"] == first.metrics["pid"]
        assert trial.metrics["reserved"] <= first.metrics["reserved"]


def test_the_peaks_that_a_trial_reads_from_torch_are_its_own(run):
    def train(config):
        import torch

        scratch = torch.ones((1024 if cotune.trial_id() == 0 else 64) * MIB, dtype=torch.uint8, device="cuda")
        cotune.report({"loss": 0.0})
        del scratch
        cotune.report({"loss": 0.0})
        most = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        cotune.report({"loss": 0.0, "most": most, "after": torch.cuda.max_memory_allocated(), "pid": os.getpid()})

    first, second = run(train, {"x": cotune.uniform(0, 1)}, trials=2, lanes=1)
    assert first.metrics["pid"] == second.metrics["pid"]
    for trial, mib in ((first, 1024), (second, 64)):
        assert mib * MIB <= trial.metrics["most"] < (mib + 16) * MIB
        assert trial.metrics["after"] < 16 * MIB
        assert trial.persistent + trial.ephemeral == pytest.approx(mib * MIB, rel=0.01)


def test_what_another_process_takes_is_no_longer_ours(tmp_path):
    code = """
import sys, torch
kept = torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
print("holds", flush=True)
sys.stdin.read()
"""
    info = find_devices(gpus=1)
    engine = LocalEngine(pack(hold), info, tmp_path, LocalOptions(TrialOptions("loss")))
    with EngineUnderTest(engine, tmp_path) as under_test:
        environ = {**os.environ, "CUDA_VISIBLE_DEVICES": info[0].uuid}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen([sys.executable, "-c", code], text=True, env=environ, **pipes) as other:
            assert other.stdout.readline() == "holds\n"
            changed = under_test.wait(DeviceChanged, lambda event: event.capacity <= info[0].capacity - 4 * GIB)
            assert changed.capacity > info[0].capacity - 6 * GIB
            other.stdin.close()
        under_test.wait(DeviceChanged, lambda event: event.capacity > info[0].capacity - GIB)


def test_a_trial_beyond_the_whole_gpu_fails_with_figures(run):
    (failed,) = run(hold, {"mib": 10**6}, trials=1).errors
    assert isinstance(failed.error, cotune.TrialTooLarge)


def test_a_device_side_assert_costs_its_own_lane_only(run):
    def train(config):
        import torch

        cotune.report({"loss": 1.0})
        if config["x"] == 1:
            torch.zeros(4, device="cuda")[torch.tensor([100], device="cuda")].sum().item()

    results = run(train, {"x": cotune.choice([0, 1, 2])}, sampler="grid", lanes=2)
    states = {trial.config["x"]: str(trial.state) for trial in results}
    assert states == {0: "done", 1: "failed", 2: "done"}


def test_a_graph_that_is_captured_with_its_optimizer_step_is_left_alone(run):
    def train(config):
        import torch

        weight = torch.ones(64, 64, device="cuda", requires_grad=True)
        optimizer = torch.optim.Adam([weight], lr=0.1, capturable=True)

        def step():
            optimizer.zero_grad(set_to_none=False)
            (weight @ weight).square().mean().backward()
            optimizer.step()

        for _ in range(3):
            step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            # As many as it takes for a boundary to have something to do.
            until = time.monotonic() + 1.0
            while time.monotonic() < until:
                step()
        for number in range(3):
            graph.replay()
            cotune.report({"loss": weight.sum()}, step=number)

    trial = run(train, {"x": 1}, trials=1)[0]
    assert trial.error is None
    assert len(trial.history) == 3


def test_residents_whose_models_are_compiled_with_cuda_graphs_compute_the_same_bits_as_alone(run):
    pytest.importorskip("triton")

    def train(config):
        import torch
        from torch import nn

        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).cuda()
        compiled = torch.compile(model, mode="reduce-overhead")
        optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
        for step in range(20):
            x = torch.randn(32, 64, device="cuda")
            loss = compiled(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            cotune.report({"loss": loss}, step=step)

    space = {"lr": cotune.choice([1e-3, 1e-2])}
    alone = run(train, space, sampler="grid", lanes=1)
    together = run(train, space, sampler="grid", lanes=1, residents=2)
    for a, b in zip(alone, together, strict=True):
        assert a.error is None
        # If a capture was broken off, in a lane of its own.
        assert b.error is None
        assert [r["loss"] for r in a.history] == [r["loss"] for r in b.history]


def test_nobody_else_has_the_turn_while_a_graph_is_captured(run, tmp_path):
    def train(config):
        import torch

        there = tmp_path / f"there-{config['role']}"
        there.touch()
        if config["role"] == "looks on":
            while not (tmp_path / "captured").exists():
                torch.cuda.synchronize()
                cotune.report({"loss": 0.0})
            return
        weight = torch.ones(64, 64, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        optimizer.step()
        while not (tmp_path / "there-looks on").exists():
            cotune.report({"loss": 0.0})
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            weight.detach().mul_(2.0)
            until = time.monotonic() + 1.0
            while time.monotonic() < until:
                optimizer.step()
                cotune.report({"loss": 0.0})
        graph.replay()
        torch.cuda.synchronize()

    def train_until_both_are_over(config):
        try:
            train(config)
        finally:
            (tmp_path / f"there-{config['role']}").touch()
            (tmp_path / "captured").touch()

    roles = cotune.choice(["captures", "looks on"])
    trials = run(train_until_both_are_over, {"role": roles}, sampler="grid", lanes=1, residents=2)
    assert [trial.error for trial in trials] == [None, None]


def test_nobody_else_has_the_turn_while_a_trial_profiles_its_kernels(run, tmp_path):
    def train(config):
        import torch
        from torch.profiler import ProfilerActivity, profile

        weight = torch.ones(64, 64, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        with open(tmp_path / "seen", "a", buffering=1) as seen:
            for _ in range(3):
                with profile(activities=[ProfilerActivity.CUDA]):
                    print("begins", file=seen)
                    until = time.monotonic() + 0.2
                    while time.monotonic() < until:
                        optimizer.step()
                        cotune.report({"loss": 0.0})
                    print("ends", file=seen)
                optimizer.step()

    trials = run(train, {"lr": cotune.uniform(0, 1)}, trials=3, lanes=1, residents=3)
    assert [(trial.error, trial.attempts) for trial in trials] == [(None, 1)] * 3
    assert (tmp_path / "seen").read_text().split() == ["begins", "ends"] * 9


def test_a_trial_that_profiles_its_kernels_can_be_stopped(run):
    from optuna.pruners import ThresholdPruner

    def train(config):
        import torch
        from torch.profiler import ProfilerActivity, profile

        weight = torch.ones(64, 64, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        with profile(activities=[ProfilerActivity.CUDA]):
            for step in itertools.count():
                optimizer.step()
                cotune.report({"loss": float(step)}, step=step)

    pruner = ThresholdPruner(upper=10.0)
    trials = run(train, {"lr": cotune.uniform(0, 1)}, trials=2, lanes=1, residents=2, pruner=pruner)
    assert [str(trial.state) for trial in trials] == ["stopped"] * 2


def test_the_trials_of_a_lane_choose_between_kernels_of_attention_in_the_same_order(run):
    """torch puts cuDNN's first on some GPUs, once in a process, when it first chooses."""

    def train(config):
        import torch

        query = torch.ones(1, 1, 16, 16, dtype=torch.float16, device="cuda")
        chosen = torch._fused_sdp_choice(query, query, query)
        cotune.report({"loss": float(chosen), "order": str(torch._C._get_sdp_priority_order())})

    trials = run(train, {"lr": cotune.uniform(0, 1)}, trials=3, lanes=1)
    first, *later = [(trial.metrics["loss"], trial.metrics["order"]) for trial in trials]
    assert later == [first] * 2


@pytest.mark.usefixtures("needs_mps")
def test_lanes_are_mps_clients_unless_that_is_not_wanted(run):
    def train(config):
        return {"loss": 0.0, "client": "CUDA_MPS_PIPE_DIRECTORY" in os.environ}

    assert run(train, {"x": 1}, trials=1)[0].metrics["client"]
    assert not run(train, {"x": 1}, trials=1, mps=False)[0].metrics["client"]


def keep_busy(seconds):
    """Gives the device work for some time, and waits for none of it."""
    import torch

    big = torch.ones(2048, 2048, device="cuda")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(50):
            big @ big
        torch.cuda.synchronize()
    for _ in range(100):
        big @ big


@pytest.mark.usefixtures("needs_mps")
def test_an_mps_client_that_dies_at_work_costs_others_an_attempt_at_most(run, tmp_path):
    def train(config):
        if config["lr"] == 3e-2 and not (tmp_path / "died").exists():
            cotune.report({"loss": 0.0})
            keep_busy(1.0)
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        dropout(config)
        if not (tmp_path / "died").exists():
            # There when the other dies.
            keep_busy(5.0)

    space = {"lr": cotune.choice([1e-3, 3e-3, 1e-2, 3e-2])}
    alone = run(dropout, space, sampler="grid", lanes=1)
    beside = run(train, space, sampler="grid", lanes=4, mps=True)
    assert [trial.error for trial in beside] == [None] * 4
    assert all(trial.attempts <= 2 for trial in beside)
    for a, b in zip(alone, beside, strict=True):
        assert a.config == b.config
        assert [r["loss"] for r in a.history] == [r["loss"] for r in b.history[-60:]]


@pytest.mark.usefixtures("needs_mps")
def test_an_mps_client_that_we_kill_at_work_costs_others_nothing(run):
    def train(config):
        cotune.report({"loss": 0.0})
        if config["x"] == 0:
            keep_busy(3600.0)
        for step in range(10):
            keep_busy(0.5)
            cotune.report({"loss": 1.0}, step=step)

    results = run(train, {"x": cotune.choice([0, 1, 2])}, sampler="grid", lanes=3, mps=True, iteration_timeout=2.5)
    assert [type(trial.error) for trial in results.errors] == [cotune.TrialOverdue]
    assert [trial.attempts for trial in results] == [1, 1, 1]


@pytest.mark.usefixtures("needs_mps")
def test_lanes_that_are_mps_clients_compute_the_same_bits_as_others(run):
    space = {"lr": cotune.choice([1e-3, 3e-3, 1e-2])}
    apart, clients = (run(dropout, space, sampler="grid", lanes=3, mps=mps) for mps in (False, True))
    for a, b in zip(apart, clients, strict=True):
        assert [r["loss"] for r in a.history] == [r["loss"] for r in b.history]


@pytest.mark.usefixtures("needs_mps")
def test_a_fatal_fault_of_an_mps_client_fails_its_own_trial_only(run):
    def train(config):
        import torch

        x = torch.ones(1000, device="cuda")
        for step in range(200):
            cotune.report({"loss": float(x.sum())}, step=step)
            if config["x"] == 1 and step == 50:
                torch.zeros(4, device="cuda")[torch.tensor([100], device="cuda")].sum().item()

    results = run(train, {"x": cotune.choice([0, 1, 2, 3])}, sampler="grid", lanes=4, mps=True)
    states = {trial.config["x"]: str(trial.state) for trial in results}
    assert states == {0: "done", 1: "failed", 2: "done", 3: "done"}


def test_the_bytes_of_a_killed_lane_come_back(tmp_path):
    info = find_devices(gpus=1)
    watch = cuda.GpuWatch(info[0].uuid)
    before = watch.used()
    from cotune.packer import CloseLane, LaneLost

    with EngineUnderTest(
        LocalEngine(pack(hold), info, tmp_path, LocalOptions(TrialOptions("loss"), residents=2)), tmp_path
    ) as under_test:
        under_test.open(quota=8 << 30)
        under_test.begin(0, mib=2048)
        under_test.collect(0)
        assert watch.used() - before > 2000 * MIB
        under_test.engine.execute(CloseLane(1, kill=True))
        under_test.wait(LaneLost)
        deadline = time.monotonic() + 10
        while watch.used() - before > 64 * MIB and time.monotonic() < deadline:
            under_test.engine.poll(0.05)
        assert watch.used() - before <= 64 * MIB
    watch.close()


def test_the_last_trial_is_lent_idle_memory_and_computes_the_same(run):
    def train(config):
        import torch
        from torch import nn

        torch.manual_seed(0)
        net = nn.Sequential(*[nn.Linear(256, 256) for _ in range(40)], nn.BatchNorm1d(256), nn.Linear(256, 1)).cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        x = torch.randn(64, 256, device="cuda")
        alone, most, until = None, 1, time.monotonic() + PATIENCE
        while most == 1 and time.monotonic() < until:
            loan = cotune.session.current().micro_batches(8)
            optimizer.zero_grad()
            loss = cotune.micro_batches(x, 8).backward(lambda part: net(part).square().mean())
            grads = torch.cat([p.grad.flatten() for p in net.parameters()])
            alone = grads if alone is None else alone
            most = max(most, loan.concurrency)
            optimizer.step()
        difference = (grads - alone).abs().max() / alone.abs().max()
        cotune.report({"loss": loss, "most": most, "difference": difference})

    metrics = run(train, {"x": 1}, trials=1)[0].metrics
    assert metrics["most"] > 1
    assert metrics["difference"] < 1e-4


class Square:
    """Trains one matrix on the GPU."""

    def setup(self, config):
        import torch

        self.weight = torch.nn.Parameter(torch.ones(config["width"], config["width"], device=cotune.device()))
        self.optimizer = torch.optim.SGD([self.weight], lr=0.01, momentum=0.9)
        self.left = 3

    rehearse = setup

    def step(self):
        import torch

        self.optimizer.zero_grad()
        (torch.ones(64, len(self.weight), device=self.weight.device) @ self.weight).sum().backward()
        self.optimizer.step()
        self.left -= 1
        return {"loss": 0.0, "done": not self.left}


def test_an_estimate_made_without_a_gpu_is_what_is_measured_on_one(run):
    results = run(Square, {"width": cotune.randint(2000, 10000)}, trials=8, sampler="random", lanes=1)
    for trial in results.trials[3:]:
        measured = trial.persistent + trial.ephemeral
        assert measured < trial.expected < 1.15 * measured + 64 * MIB


def test_a_trial_whose_memory_another_program_takes_goes_on_once_it_is_back(run, meeting):
    """A third is left when it asks for more; at what it had held then it would fit nowhere."""
    code = """
import sys, torch
torch.cuda.init()
kept = torch.empty(torch.cuda.mem_get_info()[1] * 2 // 3, dtype=torch.uint8, device="cuda")
print("holds", flush=True)
sys.stdin.read()
"""
    arrived, go = meeting.arrived, meeting.go

    def train(config):
        import torch

        arrived.write_text(f"{os.getpid()}\n")
        with go.open("rb", buffering=0) as fifo:
            fifo.read(1)
        total = torch.cuda.mem_get_info()[1]
        try:
            kept = torch.empty(total // 2, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            arrived.write_text("0\n")
            raise
        for step in range(3):
            cotune.report({"loss": 1.0, "kept": kept.numel()}, step=step)

    def take():
        meeting.wait_for(1)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen([sys.executable, "-c", code], text=True, **pipes) as other:
            assert other.stdout.readline() == "holds\n"
            meeting.let_go(1)
            assert meeting.wait_for(1) == [0]
            other.stdin.close()
        meeting.wait_for(1)
        meeting.let_go(1)

    taker = threading.Thread(target=take)
    taker.start()
    results = run(train, {"x": 1}, trials=1)
    taker.join()
    assert [str(trial.state) for trial in results] == ["done"]
    assert results[0].attempts == 2
