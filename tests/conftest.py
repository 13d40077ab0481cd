"""Skips, with the reason, what this machine cannot run."""

from __future__ import annotations

import functools
import importlib.util

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
