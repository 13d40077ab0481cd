"""Skips, with the reason, what this machine cannot run."""

from __future__ import annotations

import functools
import importlib.util
import os
import select
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
    """Trials say that they have come so far, by a byte into `arrived`, and read one from `go` before they go on."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.arrived, self.go = folder / "arrived", folder / "go"
        for path in (self.arrived, self.go):
            os.mkfifo(path)
        # For reading and writing, so that no end ever waits for the other one to be opened.
        self._arrived, self._go = os.open(self.arrived, os.O_RDWR), os.open(self.go, os.O_RDWR)

    def wait_for(self, count: int) -> None:
        for _ in range(count):
            assert select.select([self._arrived], [], [], 60)[0], "not as many as expected have come"
            os.read(self._arrived, 1)

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
