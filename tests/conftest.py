"""Skips, with the reason, what this machine cannot run."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.util
import logging
import os
import select
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import cotune
from cotune.demand import GIB
from cotune.errors import DeviceError
from cotune.script import pickling
from cotune.sharing.devices import find_devices
from cotune.sharing.mps import MpsDaemon

# Tests are collected by path, not as packages.
sys.path.insert(0, str(Path(__file__).parent / "fakes"))
# How long an example takes says more about what else the machine does.
settings.register_profile("unhurried", settings(deadline=None))
settings.load_profile("unhurried")


@functools.cache
def missing_gpu() -> str | None:
    """What keeps a CUDA device from being used, or None; asks the driver, so torch stays unloaded."""
    try:
        import pynvml
    except ImportError:
        return "nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return f"NVML says: {error}"
    try:
        return None if pynvml.nvmlDeviceGetCount() else "the driver is there, but no GPU is"
    finally:
        pynvml.nvmlShutdown()


@functools.cache
def missing_ray() -> str | None:
    return None if importlib.util.find_spec("ray") else "ray is not installed (the 'ray' extra)"


def pytest_configure() -> None:
    """Has tests run alike however they are started."""
    # With more cores a lane has more headroom, and what tests take too much would be within it.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:16])
    # What a shell has started in the background ignores Ctrl-C, and so would the programs that tests send one.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for marker, what, missing in (
        ("gpu", "a CUDA device", missing_gpu),
        ("ray", "Ray Tune", missing_ray),
    ):
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and (reason := missing()):
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=f"needs {what}: {reason}"))


@pytest.fixture(scope="session", autouse=True)
def torch_of_the_tests_own():
    """Tests that compute with torch load it into this process; a trainable that does not name it pays nothing for that.

    Importing torch takes a zygote 4 s.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            pickling, "modules_to_preload", functools.partial(pickling.modules_to_preload, torch_if_loaded=False)
        )
        yield


@pytest.fixture(scope="session")
def needs_mps():
    """Skips where no MPS daemon can be had. That is tried once: a refusal can take half a minute."""
    try:
        MpsDaemon(find_devices(gpus=1)[0].uuid).close()
    except DeviceError as error:
        pytest.skip(error.message)


@pytest.fixture
def run(request, tmp_path):
    """`cotune.run` with options that most tests have in common, and those that a module's have: its `OPTIONS`."""
    common = {"metric": "loss", "devices": ["cpu:0@4GiB"], "storage": tmp_path, "dashboard": False, "seed": 0}
    common |= getattr(request.module, "OPTIONS", {})
    return lambda trainable, space, **options: cotune.run(trainable, space, **{**common, **options})


@pytest.fixture
def optimize(tmp_path):
    """`cotune.optimize` with options that most tests have in common."""
    common = {"devices": ["cpu:0@2GiB"], "storage": tmp_path / "runs", "dashboard": False}
    return lambda study, objective, n_trials=None, **options: cotune.optimize(
        study, objective, n_trials, **{**common, **options}
    )


@contextlib.contextmanager
def _grown_at_collections(names: dict[str, Any], value: Any) -> Iterator[None]:
    came: list[str] = []

    def add(phase: str, info: object) -> None:
        came.append(f"came_{len(came)}")
        names[came[-1]] = value

    thresholds = gc.get_threshold()
    gc.callbacks.append(add)
    # This also drops the tuples that Python keeps to use again, for which it would not collect.
    gc.collect()
    gc.set_threshold(1)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(add)
        for name in came:
            del names[name]


@pytest.fixture(scope="session")
def grown_at_collections() -> Callable[[dict[str, Any], Any], contextlib.AbstractContextManager[None]]:
    """Within the block, a dictionary gets a further name whenever the garbage collector runs, which it does very often.

    That stands for another thread, which may have its turn then, and import something.
    """
    return _grown_at_collections


class Meeting:
    """Trials say that they have come, by a line with their pid in `arrived`, and read a byte of `go` to go on."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.arrived, self.go = folder / "arrived", folder / "go"
        for path in (self.arrived, self.go):
            os.mkfifo(path)
        # For reading and writing, so that no end ever waits for the other one to be opened.
        self._arrived, self._go = os.open(self.arrived, os.O_RDWR), os.open(self.go, os.O_RDWR)

    def wait_for(self, count: int) -> list[int]:
        """The pids of that many."""
        heard = b""
        while heard.count(b"\n") < count:
            assert select.select([self._arrived], [], [], 60)[0], f"only {heard!r} have come"
            heard += os.read(self._arrived, 4096)
        return [int(pid) for pid in heard.split()]

    def let_go(self, count: int) -> None:
        os.write(self._go, count * b"x")

    def close(self) -> None:
        os.close(self._arrived)
        os.close(self._go)


@pytest.fixture
def meeting(tmp_path):
    made = Meeting(tmp_path / "meeting")
    yield made
    made.close()


@pytest.fixture(scope="session")
def wait_gone() -> Callable[[Iterable[int]], None]:
    """Waits until these processes have ended."""

    def wait(pids: Iterable[int]) -> None:
        for pid in pids:
            try:
                fd = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            assert select.select([fd], [], [], 30)[0], f"process {pid} is still there"
            os.close(fd)

    return wait


class Ray:
    """A Ray cluster on this machine, for all tests that need one: Ray starts in ten seconds, a further node in two."""

    def __init__(self) -> None:
        self._cluster: Any = None
        self._with_gpus: Any = None

    def start(self, gpus: int) -> Any:
        """Connects this process to a node of two CPUs and, if there are to be GPUs, one more that has as many in name.

        Returns:
            The cluster, to which nodes can be added.
        """
        import ray
        from ray.cluster_utils import Cluster

        node = {"num_cpus": 2, "memory": 4 * GIB}
        if self._cluster is None:
            # A node that is killed is missed within a second, instead of a quarter of a minute.
            system = {
                "health_check_initial_delay_ms": 0,
                "health_check_period_ms": 200,
                "health_check_failure_threshold": 5,
            }
            head = {**node, "include_dashboard": False, "_system_config": system}
            self._cluster = Cluster(initialize_head=True, head_node_args=head)
        # Others were left by tests that failed; or Ray would connect us to any, which then could not be removed.
        kept = {self._with_gpus} if gpus and ray.is_initialized() else set()
        for other in self._cluster.worker_nodes - kept:
            self._cluster.remove_node(other)
        if not ray.is_initialized():
            ray.init(address=self._cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        if gpus and self._with_gpus not in self._cluster.worker_nodes:
            self._with_gpus = self._cluster.add_node(**node, num_gpus=gpus)
        return self._cluster

    def leave(self) -> None:
        """Disconnects this process; the cluster stays."""
        if (ray := sys.modules.get("ray")) is not None:
            ray.shutdown()

    def close(self) -> None:
        self.leave()
        if self._cluster is not None:
            self._cluster.shutdown()


@pytest.fixture(scope="session")
def in_ray():
    """Without Tune's own loggers, which load torch, unless a test is about them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
        patch.setenv("RAY_AIR_NEW_OUTPUT", "0")
        # Tune's handler would stay in this process, and take the Ctrl-C of later tests.
        patch.setenv("TUNE_DISABLE_SIGINT_HANDLER", "1")
        patch.setenv("RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (os.getcwd(), os.environ.get("PYTHONPATH")))))
        # Or tests beside these, which are not as nice, leave its processes next to no CPU time.
        patch.setenv("RAY_worker_niceness", "0")
        cluster = Ray()
        yield cluster
        cluster.close()
