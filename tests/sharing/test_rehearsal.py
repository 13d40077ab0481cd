"""Rehearsals in processes of their own, forked from a real zygote: what they find, what they are kept from doing."""

import contextlib
import errno
import os
import select
import selectors
from unittest import mock

import pytest

import cotune
from cotune.demand import GIB, MIB
from cotune.script.pickling import pack
from cotune.sharing import estimator as estimator_module
from cotune.sharing.estimator import Estimator
from cotune.sharing.zygote import ZygoteHandle

PATIENCE = 60
WIDTH = 512
BATCH = 256
SQUARE = 4 * WIDTH * WIDTH


class Does:
    """Trains one square matrix, and does beside it what its config says."""

    def rehearse(self, config):
        import torch

        self.does = config["does"]
        width = config.get("width", WIDTH)
        self.model = torch.nn.Linear(width, width, bias=False)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.steps = config.get("steps", 1)
        self.config = config
        getattr(self, "rehearse_" + self.does, lambda: None)()

    def step(self):
        import torch

        if self.does == "nothing":
            return None
        for _ in range(self.steps):
            x = torch.randn(BATCH, self.model.weight.shape[0])
            loss = self.model(x).square().mean()
            self.optimizer.zero_grad()
            if self.does == "scales":
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
                continue
            loss.backward()
            self.optimizer.step()
        return getattr(self, "step_" + self.does, lambda loss: {"loss": 0.0})(loss)

    def setup(self, config):
        raise AssertionError("rehearse() stands for it")

    def step_reads_a_float(self, loss):
        return {"loss": loss.item(), "again": float(loss)}

    def rehearse_reads_an_integer(self):
        import torch

        self.model.weight.data[: torch.randint(0, 9, (1,)).item()] = 0

    def rehearse_branches(self):
        if self.model.weight.sum() > 0:
            self.steps = 2

    def rehearse_uses_numpy(self):
        self.model.weight.detach().numpy()

    def rehearse_scales(self):
        import torch

        self.scaler = torch.amp.GradScaler(cotune.device())

    def rehearse_raises(self):
        raise RuntimeError("no such model\nsecond line")

    def rehearse_prints(self):
        import sys

        print("out", flush=True)
        print("err", file=sys.stderr, flush=True)
        os.system  # noqa: B018 - looking at it is no harm

    def rehearse_hangs(self):
        import threading

        threading.Event().wait()

    def rehearse_exits(self):
        os._exit(3)

    def rehearse_writes(self):
        with open(self.config["path"], "w") as file:
            file.write("harm")

    def rehearse_writes_by_descriptor(self):
        os.write(os.open(self.config["path"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), b"harm")

    def rehearse_writes_in_c(self):
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        file = libc.open(self.config["path"].encode(), os.O_WRONLY | os.O_CREAT, 0o644)
        assert libc.write(file, b"harm", 4) == -1
        assert os.strerror(ctypes.get_errno()) == "File too large"

    def rehearse_removes(self):
        os.remove(self.config["path"])

    def rehearse_connects(self):
        import socket

        socket.create_connection(("127.0.0.1", self.config["port"]))

    def rehearse_starts_a_process(self):
        import subprocess

        subprocess.run(["touch", self.config["path"]], check=True)

    def rehearse_loads_with_workers(self):
        import torch

        data = torch.utils.data.TensorDataset(torch.zeros(8, 1))
        next(iter(torch.utils.data.DataLoader(data, num_workers=1)))

    def rehearse_takes_memory(self):
        import numpy as np

        np.ones(GIB)


class World:
    def __init__(self, cls, folder):
        packed = pack(cls)
        assert packed.rehearses
        self.log = folder / "zygote.log"
        self.zygote = ZygoteHandle(packed.modules, packed.blob, 1, self.log)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.zygote, selectors.EVENT_READ, self.hear_zygote)
        self.told = []
        self.estimator = Estimator(self.selector, lambda: self.zygote, self.told.append)
        self.config = packed.series.then
        self.pid = None

    def hear_zygote(self):
        what, number, value = self.zygote.receive()
        if what == "forked":
            self.pid = value
            self.estimator.forked(number)

    def rehearse(self, does="trains", **config):
        self.estimator.begin(7, self.config({"does": does, **config}, "the config"))
        while not self.told:
            left = self.estimator.due - estimator_module.time.monotonic()
            for key, _ in self.selector.select(min(PATIENCE, max(0.0, left))):
                key.data()
            self.estimator.look()
        told = self.told.pop()
        assert told.trial == 7
        return told

    def close(self):
        self.estimator.close()
        self.zygote.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    world = World(Does, tmp_path_factory.mktemp("rehearsal"))
    yield world
    world.close()


def test_bytes_and_operations_are_those_of_the_second_iteration(world):
    estimate = world.rehearse().estimate
    activations = 4 * BATCH * WIDTH
    # Weights, gradients and two moments; and, at the optimizer's step, the batch.
    assert 4 * SQUARE <= estimate.persistent <= 4 * SQUARE + 3 * activations
    assert 4 * SQUARE + 2 * activations <= estimate.peak <= 6 * SQUARE + 4 * activations
    # Forward, and the gradient of the weights: 2 * m * n * k each.
    assert estimate.flops == 2 * 2 * BATCH * WIDTH * WIDTH


def test_a_model_larger_than_this_machine_is_estimated(world):
    estimate = world.rehearse(width=1 << 18).estimate
    assert estimate.persistent == pytest.approx(4 * 4 * (1 << 36), rel=0.01)


def test_it_ends_with_the_second_iteration_however_long_a_step_is(world):
    assert world.rehearse(steps=10**9).estimate == world.rehearse(steps=1).estimate


def test_a_float_that_is_read_out_is_no_obstacle(world):
    assert world.rehearse("reads_a_float").estimate == world.rehearse().estimate


def test_a_gradient_scaler_makes_its_steps(world):
    scaled, plain = world.rehearse("scales").estimate, world.rehearse().estimate
    assert scaled.persistent == pytest.approx(plain.persistent, rel=0.01)


@pytest.mark.parametrize("does", ["reads_an_integer", "branches"])
def test_what_may_decide_about_sizes_and_branches_ends_it(world, does):
    told = world.rehearse(does)
    assert told.estimate is None
    assert told.reason.startswith("DataDependentOutputException")


def test_numpy_ends_it(world):
    assert "numpy() is not supported" in world.rehearse("uses_numpy").reason


def test_what_is_raised_is_told_in_a_line(world):
    assert world.rehearse("raises").reason == "RuntimeError: no such model"


def test_what_is_printed_is_shown_to_nobody(world):
    before = world.log.read_text()
    assert world.rehearse("prints").estimate is not None
    assert world.log.read_text() == before


def test_one_that_hangs_is_killed(world, monkeypatch):
    monkeypatch.setattr(estimator_module, "BUDGET", 0.5)
    told = world.rehearse("hangs")
    assert told.reason == "it took more than 0.5 s"
    with contextlib.suppress(ProcessLookupError):
        process = os.pidfd_open(world.pid)
        assert select.select([process], [], [], PATIENCE)[0], "its process is still there"
        os.close(process)
    monkeypatch.undo()
    assert world.rehearse().estimate is not None, "the next one goes on"


def test_one_that_ends_its_process_is_told(world):
    assert world.rehearse("exits").reason == "its process died"


@pytest.mark.parametrize("does", ["writes", "writes_by_descriptor", "removes", "starts_a_process"])
@pytest.mark.parametrize("there", [True, False])
def test_no_file_is_written_or_removed(world, tmp_path, does, there):
    path = tmp_path / "precious"
    if there:
        path.write_text("kept")
    told = world.rehearse(does, path=str(path))
    assert told.reason.startswith("PermissionError")
    assert told.reason.endswith("is not for a rehearsal")
    assert (path.read_text() if path.exists() else None) == ("kept" if there else None)


def test_what_native_code_writes_has_no_content(world, tmp_path):
    path = tmp_path / "empty"
    assert world.rehearse("writes_in_c", path=str(path)).estimate is not None
    assert path.read_bytes() == b""


def test_the_network_is_not_reached(world):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        told = world.rehearse("connects", port=server.getsockname()[1])
        assert told.reason.startswith("PermissionError: socket.")
        assert not select.select([server], [], [], 0)[0]


def test_workers_of_a_loader_end_it(world):
    assert world.rehearse("loads_with_workers").estimate is None


def test_real_memory_is_short(world):
    assert "MemoryError" in world.rehearse("takes_memory").reason


def test_a_config_of_any_size_and_kind_arrives(world):
    assert world.rehearse(extra=[bytes(4 * MIB), lambda: None]).estimate is not None


def test_a_class_that_trains_nothing_has_no_estimate(world):
    assert world.rehearse("nothing").reason == "ValueError: it has trained nothing that torch knows of"


def test_a_zygote_that_dies_ends_the_rehearsal(tmp_path):
    world = World(Does, tmp_path)
    try:
        world.selector.unregister(world.zygote)
        world.estimator.begin(0, world.config({"does": "hangs"}, "the config"))
        os.kill(world.zygote.pid, 9)
        assert world.selector.select(PATIENCE)
        world.estimator.receive()
        assert world.told[0].reason == "its process died"
    finally:
        world.close()


def test_only_a_class_with_rehearse_is_rehearsed_and_then_torch_is_imported_ahead():
    class With:
        def rehearse(self, config): ...

    class Without:
        def setup(self, config): ...

        def step(self): ...

    assert pack(With).rehearses
    assert {"torch", "torch._dynamo"} <= set(pack(With).modules)
    assert not pack(Without).rehearses
    assert not pack(Does().rehearse).rehearses


def test_a_rehearsal_that_cannot_be_asked_for_leaves_no_pipe_open():
    def zygote():
        raise OSError("no zygote")

    estimator = Estimator(selectors.SelectSelector(), zygote, [].append)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="no zygote"):
        estimator.begin(7, b"")
    assert os.listdir("/proc/self/fd") == before
    assert estimator.due == float("inf")


@pytest.mark.parametrize("what", ["pipe2", "memfd_create"])
def test_a_rehearsal_for_which_no_file_is_left_leaves_none_open(world, monkeypatch, what):
    monkeypatch.setattr(os, what, mock.Mock(side_effect=OSError(errno.EMFILE, os.strerror(errno.EMFILE))))
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
        world.estimator.begin(7, b"")
    assert os.listdir("/proc/self/fd") == before
