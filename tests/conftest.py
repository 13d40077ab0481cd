"""Skips, with the reason, what this machine cannot run."""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import select
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from cotune.sharing import pickling


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for marker, what, missing in (
        ("gpu", "a CUDA device", missing_gpu),
        ("ray", "Ray Tune", missing_ray),
    ):
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and (reason := missing()):
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=f"needs {what}: {reason}"))
    # Last, since it takes the cluster away that others share.
    items.sort(key=lambda item: "nodes" in getattr(item, "fixturenames", ()))


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
    """The Ray cluster that this process is in: the same one for all tests in a row that ask for the same."""

    def __init__(self) -> None:
        self._gpus: int | None = None

    def start(self, gpus: int) -> None:
        """Two CPUs and so many logical GPUs, on this machine."""
        import ray

        if self._gpus == gpus:
            return
        self.leave()
        ray.init(
            address="local",
            num_cpus=2,
            num_gpus=gpus,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        self._gpus = gpus

    def leave(self) -> None:
        self._gpus = None
        if (ray := sys.modules.get("ray")) is not None:
            ray.shutdown()


@pytest.fixture(scope="session")
def in_ray():
    """Without Tune's own loggers, which load torch, unless a test is about them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
        patch.setenv("RAY_AIR_NEW_OUTPUT", "0")
        patch.setenv("RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS", "0")
        patch.setenv("PYTHONPATH", os.getcwd())
        cluster = Ray()
        yield cluster
        cluster.leave()
