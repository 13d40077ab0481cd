"""GPUs as the driver and the zygote see them: through NVML.

Neither ever touches CUDA itself: a process that has can no longer fork lanes. `cuda_memory.py` is what a lane does.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotune.demand import MIB
from cotune.errors import DeviceError

CONTEXT_GUESS = 600 * MIB
RESERVE = 256 * MIB
# What the allocator may hold beyond what a small trial asks for: it takes 2 MiB from the device at once for tensors up
# to 1 MiB and 20 MiB for those up to 10 MiB, of each pool one that is in use and one that is nearly full.
ROUNDING = 44 * MIB
# JAX takes three quarters of a GPU at its first touch and TensorFlow all of it, unless told otherwise.
_AS_NEEDED = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
WITHOUT_MIG = "name whole GPUs, or write gpus=0 to use the CPU"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as NVML shows it.

    Attributes:
        index: NVML's index, which is that of `nvidia-smi`.
        uuid: Its identity, `GPU-...`.
        name: The product.
        total: Bytes on it.
        used: Bytes in use by anyone.
        exclusive: Its compute mode lets only one process at a time use it.
        sliced: It is divided into slices (MIG), of which a process sees one.
    """

    index: int
    uuid: str
    name: str
    total: int
    used: int
    exclusive: bool = False
    sliced: bool = False


@contextlib.contextmanager
def nvml_started() -> Iterator[Any]:
    """NVML, started."""
    import pynvml

    pynvml.nvmlInit()
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def gpus() -> list[Gpu]:
    """All GPUs of this machine, none if there is no driver."""
    import pynvml

    found: list[Gpu] = []
    with contextlib.suppress(pynvml.NVMLError), nvml_started() as nvml:
        for index in range(nvml.nvmlDeviceGetCount()):
            # One that has fallen off the bus must not hide the others.
            with contextlib.suppress(pynvml.NVMLError):
                found.append(_gpu(nvml, index))
    return found


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    name, uuid = nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetUUID(handle)
    exclusive = sliced = False
    with contextlib.suppress(nvml.NVMLError):
        exclusive = nvml.nvmlDeviceGetComputeMode(handle) != nvml.NVML_COMPUTEMODE_DEFAULT
    with contextlib.suppress(nvml.NVMLError):
        sliced = nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
    return Gpu(index, _text(uuid), _text(name), int(memory.total), int(memory.used), exclusive, sliced)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def visible_gpus() -> list[Gpu]:
    """The GPUs that `CUDA_VISIBLE_DEVICES` lets us use, in its order, by index or by UUID (or its beginning).

    As in CUDA, the list ends at the first entry that names no GPU.

    Raises:
        DeviceError: It names a slice of a GPU.
    """
    found = gpus()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return found
    visible: list[Gpu] = []
    for entry in (part.strip() for part in chosen.split(",")):
        if entry.startswith("MIG-"):
            raise DeviceError(
                f"CUDA_VISIBLE_DEVICES={chosen!r} names a slice of a GPU (MIG), which cotune cannot measure yet",
                hint=WITHOUT_MIG,
            )
        if entry.isdigit():
            match = [gpu for gpu in found if gpu.index == int(entry)]
        else:
            match = [gpu for gpu in found if entry and gpu.uuid.startswith(entry)]
        if len(match) != 1 or match[0] in visible:
            break
        visible.append(match[0])
    return visible


def torch_has_cuda() -> bool:
    """Whether the torch that is installed was built for CUDA; told without importing it, which takes a second."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return True
    match = re.search(r"^cuda\b[^=]*=\s*(.+)$", text, re.MULTILINE)
    return match is None or match[1].strip() != "None"


class GpuWatch:
    """What NVML says about one GPU while a run goes on."""

    def __init__(self, uuid: str) -> None:
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)

    def used(self) -> int | None:
        """Bytes in use by anyone; None if the driver cannot tell, as when the GPU was lost."""
        try:
            return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)
        except self._nvml.NVMLError:
            return None

    def is_lost(self) -> bool:
        """Whether it is gone, or must be reset, which nobody can do while it is in use."""
        try:
            self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        except self._nvml.NVMLError as error:
            return error.value in (self._nvml.NVML_ERROR_GPU_IS_LOST, self._nvml.NVML_ERROR_RESET_REQUIRED)
        return False

    def utilization(self) -> float | None:
        """Share of the last sampling period (1/6 s to 1 s) in which a kernel ran, 0 to 1; None if it is not told."""
        try:
            return float(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu) / 100.0
        except self._nvml.NVMLError:
            return None

    def close(self) -> None:
        self._nvml.nvmlShutdown()


def lane_environment(uuid: str) -> dict[str, str]:
    """What the environment of a lane on this GPU must say before CUDA is touched."""
    as_needed = {name: os.environ.get(name, value) for name, value in _AS_NEEDED.items()}
    return as_needed | {"CUDA_VISIBLE_DEVICES": uuid, "CUDA_MODULE_LOADING": "LAZY"}
