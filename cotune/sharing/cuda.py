"""GPUs as the driver and the zygote see them: through NVML.

Neither process touches CUDA itself, after which it could not fork lanes. Lanes use `inside/cuda_memory.py`.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotune.demand import MIB
from cotune.errors import DeviceError, RunError
from cotune.script.installed import spec_of

CONTEXT_GUESS = 600 * MIB
RESERVE = 256 * MIB
# Bytes the allocator may hold beyond what a small trial asks for: it takes 2 MiB at once from the device for tensors up
# to 1 MiB and 20 MiB for tensors up to 10 MiB, and each pool may have one segment in use and one nearly full.
ROUNDING = 44 * MIB
# By default JAX takes three quarters of a GPU at its first use, and TensorFlow all of it.
_AS_NEEDED = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
WITHOUT_MIG = "name whole GPUs, or write gpus=0 to use the CPU"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as NVML shows it.

    Attributes:
        index: NVML's index, as `nvidia-smi` shows it.
        uuid: Its UUID, `GPU-...`.
        name: Product name.
        total: Bytes of memory on it; 0 if NVML does not tell, as of a GPU that shares the memory of the CPU.
        used: Bytes in use by all processes.
        exclusive: Whether its compute mode lets only one process at a time use it.
        sliced: Whether it is divided into slices (MIG), of which a process sees one.
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
    """Starts NVML, yields the `pynvml` module and shuts NVML down."""
    import pynvml

    pynvml.nvmlInit()
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def gpus() -> list[Gpu]:
    """All GPUs of this machine; none if there is no driver."""
    import pynvml

    found: list[Gpu] = []
    with contextlib.suppress(pynvml.NVMLError), nvml_started() as nvml:
        for index in range(nvml.nvmlDeviceGetCount()):
            # A GPU that has fallen off the bus must not hide the others.
            with contextlib.suppress(pynvml.NVMLError):
                found.append(_gpu(nvml, index))
    return found


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    total = used = 0
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        total, used = int(memory.total), int(memory.used)
    except nvml.NVMLError as error:
        if error.value != nvml.NVML_ERROR_NOT_SUPPORTED:
            raise
    name, uuid = nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetUUID(handle)
    exclusive = sliced = False
    with contextlib.suppress(nvml.NVMLError):
        exclusive = nvml.nvmlDeviceGetComputeMode(handle) != nvml.NVML_COMPUTEMODE_DEFAULT
    with contextlib.suppress(nvml.NVMLError):
        sliced = nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
    return Gpu(index, _text(uuid), _text(name), total, used, exclusive, sliced)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def visible_gpus() -> list[Gpu]:
    """The GPUs in `CUDA_VISIBLE_DEVICES`, in its order; it may name them by index, UUID or prefix of a UUID.

    As in CUDA, the list ends at the first entry that names no GPU.

    Raises:
        DeviceError: The variable names a slice of a GPU.
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


def assigned_gpu(number: object) -> Gpu | None:
    """The visible GPU to which Ray has given this number or UUID; None if no GPU is visible.

    Usually it is the only one. Ray can be told to leave `CUDA_VISIBLE_DEVICES` alone
    (`RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES`).
    """
    visible, name = visible_gpus(), str(number)
    matches = [gpu for gpu in visible if str(gpu.index) == name or gpu.uuid.startswith(name)]
    if len(visible) == 1 or not matches:
        matches = visible
    return matches[0] if matches else None


def torch_has_cuda() -> bool:
    """Whether the installed torch was built for CUDA; found out without importing it, which takes a second."""
    spec = spec_of("torch")
    if spec is None or spec.origin is None:
        return False
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return True
    match = re.search(r"^cuda\b[^=]*=\s*(.+)$", text, re.MULTILINE)
    return match is None or match[1].strip() != "None"


class GpuWatch:
    """NVML's figures of one GPU during a run.

    Raises:
        RunError: NVML does not know the GPU any more.
    """

    def __init__(self, uuid: str) -> None:
        import pynvml

        with contextlib.ExitStack() as undo:
            try:
                self._nvml = undo.enter_context(nvml_started())
                self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
            except pynvml.NVMLError as error:
                raise lost_gpu() from error
            self._opened = undo.pop_all()

    def used(self) -> int | None:
        """Bytes in use by all processes; None if the driver cannot tell, as when the GPU was lost."""
        try:
            return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)
        except self._nvml.NVMLError:
            return None

    def is_lost(self) -> bool:
        """Whether the GPU is lost, or must be reset, which is impossible while it is in use."""
        try:
            self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        except self._nvml.NVMLError as error:
            return error.value in (self._nvml.NVML_ERROR_GPU_IS_LOST, self._nvml.NVML_ERROR_RESET_REQUIRED)
        return False

    def utilization(self) -> float | None:
        """Share of the last sampling period (1/6 s to 1 s) in which a kernel ran, 0 to 1; None if not known."""
        try:
            return float(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu) / 100.0
        except self._nvml.NVMLError:
            return None

    def close(self) -> None:
        self._opened.close()


def lost_gpu() -> RunError:
    """The error of a run that goes on without a GPU, or ends with the last one."""
    return RunError("the driver has lost it", hint="see `nvidia-smi` and the kernel's log; what has run is kept")


def lane_environment(uuid: str) -> dict[str, str]:
    """Environment variables that a lane on this GPU must set before it touches CUDA."""
    as_needed = {name: os.environ.get(name, value) for name, value in _AS_NEEDED.items()}
    return as_needed | {"CUDA_VISIBLE_DEVICES": uuid, "CUDA_MODULE_LOADING": "LAZY"}
