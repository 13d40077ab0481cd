"""Everything that speaks to CUDA: discovery through NVML in the driver, the torch allocator in a lane.

The driver and the zygote never touch CUDA itself: a process that has can no longer fork lanes.
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
from cotune.sharing.after_import import after_import
from cotune.sharing.cupy_pool import use_lane_allocator
from cotune.sharing.memory import LaneMemory

CONTEXT_GUESS = 600 * MIB
LEAST_CONTEXT = 8 * MIB
MOST_CONTEXT = 2000 * MIB
RESERVE = 256 * MIB
# What the allocator may hold beyond what a small trial asks for: it takes 2 MiB from the device at once for tensors up
# to 1 MiB and 20 MiB for those up to 10 MiB, of each pool one that is in use and one that is nearly full.
ROUNDING = 44 * MIB


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
    """

    index: int
    uuid: str
    name: str
    total: int
    used: int
    exclusive: bool = False


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
    exclusive = False
    with contextlib.suppress(nvml.NVMLError):
        exclusive = nvml.nvmlDeviceGetComputeMode(handle) != nvml.NVML_COMPUTEMODE_DEFAULT
    return Gpu(index, _text(uuid), _text(name), int(memory.total), int(memory.used), exclusive)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def visible_gpus(environ: dict[str, str] | None = None) -> list[Gpu]:
    """The GPUs that `CUDA_VISIBLE_DEVICES` lets us use, in its order, by index or by UUID (or its beginning).

    As in CUDA, the list ends at the first entry that names no GPU.
    """
    found = gpus()
    chosen = (environ if environ is not None else dict(os.environ)).get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return found
    visible: list[Gpu] = []
    for entry in (part.strip() for part in chosen.split(",")):
        if entry.startswith("MIG-"):
            raise DeviceError(
                f"CUDA_VISIBLE_DEVICES={chosen!r} names a slice of a GPU (MIG), which cotune cannot measure yet",
                hint="name whole GPUs, or write devices=['cpu:0'] to use the CPU",
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
    return {"CUDA_VISIBLE_DEVICES": uuid, "CUDA_MODULE_LOADING": "LAZY"}


class CudaMemory(LaneMemory):
    """The torch caching allocator of the process, on its only visible GPU.

    Trials are measured by allocated bytes, the lane is capped by reserved bytes: the memory fraction is checked
    before every `cudaMalloc`, and the cache is freed and the call retried before it is refused. The fraction does
    not cover the CUDA context, which is therefore part of the quota here, as is what the allocator takes in advance.
    """

    torch_device = "cuda:0"

    def __init__(self) -> None:
        import torch

        self._torch: Any = torch
        self._total = 0
        self._context = CONTEXT_GUESS
        self._reserved = self._room = 0

    def start(self) -> int:
        torch = self._torch
        before = _used_here()
        torch.cuda.init()
        # A matrix product loads what nearly every trial will, and what the allocator does not count.
        square = torch.ones(64, 64, device="cuda:0")
        (square @ square).sum().item()
        del square
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        torch.cuda.synchronize()
        self._total = int(torch.cuda.get_device_properties(0).total_memory)
        self._context = self._measure_context(before)
        after_import("cupy", lambda cupy: use_lane_allocator(cupy, torch))
        self.reset_peak()
        return self._context + ROUNDING

    def _measure_context(self, before: int | None) -> int:
        """What NVML books on this process, less what the allocator holds.

        Where NVML cannot see us, as in a container, it is what the GPU has lost since `before`; too much if other
        lanes came up meanwhile, which wastes room and endangers nobody. A guess if neither is to be had.
        """
        reserved = int(self._torch.cuda.memory_reserved(0))
        seen = [_booked_on_us(), None if before is None else (_used_here() or 0) - before]
        # Our number may be another process's in another PID namespace: only a likely figure is believed.
        likely = (bytes - reserved for bytes in seen if bytes is not None)
        return next((own for own in likely if LEAST_CONTEXT < own < MOST_CONTEXT), CONTEXT_GUESS)

    def read(self) -> tuple[int, int]:
        # Unlike torch.cuda.memory_stats(), this does not flatten 200 entries in Python, which takes 60 us.
        stats = self._torch._C._cuda_memoryStats(0)
        allocated = stats["allocated_bytes"]["all"]
        self._reserved = int(stats["reserved_bytes"]["all"]["current"])
        return int(allocated["current"]), int(allocated["peak"])

    def held(self) -> int:
        return self._context + self._reserved

    def reset_peak(self) -> None:
        self._torch._C._cuda_resetPeakMemoryStats(0)

    def set_quota(self, quota: int) -> int:
        torch = self._torch
        self._room = room = max(quota - self._context, MIB)
        # A byte more, since the fraction is turned into bytes again and rounded down there.
        torch.cuda.set_per_process_memory_fraction(min(1.0, (room + 1) / self._total), 0)
        reserved = int(torch.cuda.memory_reserved(0))
        if reserved > room:
            torch.cuda.empty_cache()
            reserved = int(torch.cuda.memory_reserved(0))
        self._reserved = reserved
        return max(quota, self._context + reserved)

    def room(self) -> int:
        return self._room - self.read()[0]

    def relax(self) -> None:
        """Unwinding frees device memory without asking for more: the cap may stay."""

    def finish(self) -> None:
        self._torch.cuda.synchronize()

    def trim(self, *, shared: bool) -> None:
        # A resident that still runs would only allocate its workspace again, and be charged for it twice.
        if not shared:
            self._torch._C._cuda_clearCublasWorkspaces()

    def is_sound(self) -> bool:
        """False after a sticky error, such as a device-side assert: every later CUDA call would fail too."""
        try:
            self._torch.cuda.synchronize()
        except Exception:
            return False
        return True

    def busy_seconds(self) -> float | None:
        return None


def _used_here() -> int | None:
    """Bytes that anyone uses of the GPU this lane is on, if NVML can tell."""
    with contextlib.suppress(Exception), nvml_started() as nvml:
        return int(nvml.nvmlDeviceGetMemoryInfo(_own_handle(nvml)).used)
    return None


def _booked_on_us() -> int | None:
    """Bytes of that GPU that NVML books on this process, if it sees it."""
    with contextlib.suppress(Exception), nvml_started() as nvml:
        for process in nvml.nvmlDeviceGetComputeRunningProcesses(_own_handle(nvml)):
            if process.pid == os.getpid():
                return int(process.usedGpuMemory or 0)
    return None


def _own_handle(nvml: Any) -> Any:
    return nvml.nvmlDeviceGetHandleByUUID(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
