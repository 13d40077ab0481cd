"""The memory of a lane on a GPU: torch's caching allocator, measured and capped."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cotune.demand import MIB
from cotune.sharing.cuda import CONTEXT_GUESS, ROUNDING, nvml_started
from cotune.sharing.inside.after_import import after_import
from cotune.sharing.inside.captures import Captures
from cotune.sharing.inside.cupy_pool import use_lane_allocator
from cotune.sharing.memory import LaneMemory

LEAST_CONTEXT = 8 * MIB
MOST_CONTEXT = 2000 * MIB
# So little is left where even a library's handle is refused.
NEARLY_FULL = 64 * MIB
# The inode that Linux gives the namespace of processes it starts with.
FIRST_NAMESPACE = 0xEFFFFFFC
# Where users say how torch's allocator is to work.
_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


class CudaMemory(LaneMemory):
    """The torch caching allocator of the process, on its only visible GPU.

    Trials are measured by allocated bytes, the lane is capped by reserved bytes: the memory fraction is checked
    before every call for more, and the cache is freed and the call retried before it is refused. The fraction does
    not cover the CUDA context, which is therefore part of the quota here, as is what the allocator takes in advance.

    Its cache consists of expandable segments, unless the user has settings of the allocator's own. A segment of the
    other kind goes back to the device only as a whole, and what a trial keeps of it for long is in the way of the next.
    """

    torch_device = "cuda:0"

    def __init__(self) -> None:
        import torch

        self._torch: Any = torch
        self._captures = Captures(torch.cuda.CUDAGraph)
        self._total = 0
        self._context = CONTEXT_GUESS
        self._reserved = self._room = 0
        self._fraction = 1.0
        # A trial may have the allocator forget its peak.
        self._forgotten_peak = 0
        self._forget_peak: Callable[[int], None] = torch._C._cuda_resetPeakMemoryStats
        self._refusals = 0

    def start(self) -> int:
        torch = self._torch
        with _alone_on_gpu():
            before = _used_here()
            torch.cuda.init()
            _use_expandable_segments(torch)
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
        for name in ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats"):
            if hasattr(torch._C, name):
                setattr(torch._C, name, self._noting_peak(getattr(torch._C, name)))
        self.reset_peak()
        return self._context + ROUNDING

    def _noting_peak(self, forget: Callable[[Any], None]) -> Callable[[Any], None]:
        """What a trial may call instead of `forget`."""

        def noted(device: Any) -> None:
            self._forgotten_peak = self.read()[1]
            forget(device)

        return noted

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
        return int(allocated["current"]), max(int(allocated["peak"]), self._forgotten_peak)

    def held(self) -> int:
        return self._context + self._reserved

    def reset_peak(self) -> None:
        self._forgotten_peak = 0
        self._forget_peak(0)

    def set_quota(self, quota: int) -> int:
        torch = self._torch
        self._room = room = max(quota - self._context, MIB)
        # A byte more, since the fraction is turned into bytes again and rounded down there.
        self._fraction = min(1.0, (room + 1) / self._total)
        self._cap()
        reserved = int(torch.cuda.memory_reserved(0))
        if reserved > room:
            with self._captures.held_off() as may_free:
                # Else what is held stays so until the next change.
                if may_free:
                    torch.cuda.empty_cache()
            reserved = int(torch.cuda.memory_reserved(0))
        self._reserved = reserved
        return max(quota, self._context + reserved)

    def _cap(self) -> None:
        self._torch.cuda.set_per_process_memory_fraction(self._fraction, 0)

    def room(self) -> int:
        return self._room - self.read()[0]

    def is_short(self) -> bool:
        torch = self._torch
        refusals = int(torch._C._cuda_memoryStats(0)["num_ooms"])
        try:
            free = int(torch.cuda.mem_get_info(0)[0])
        except RuntimeError:
            return False
        return refusals > self._refusals or free < NEARLY_FULL

    def relax(self) -> None:
        """Unwinding frees device memory without asking for more: the cap may stay."""

    def is_recording(self) -> bool:
        # The latter knows of captures that are begun past `CUDAGraph`, but in this thread only.
        return bool(self._captures) or bool(self._torch.cuda.is_current_stream_capturing())

    def synchronize(self) -> None:
        self._torch.cuda.synchronize()

    def trim(self, *, shared: bool) -> None:
        self._refusals = int(self._torch._C._cuda_memoryStats(0)["num_ooms"])
        # Whoever shared a GPU before may set a fraction of his own.
        self._cap()
        # A resident that still runs would only allocate its workspace again, and be charged for it twice.
        if not shared:
            self.shrink()

    def shrink(self) -> None:
        # There is one for every stream.
        self._torch._C._cuda_clearCublasWorkspaces()

    def is_sound(self) -> bool:
        """False after a sticky error, such as a device-side assert: every later CUDA call would fail too."""
        if self._captures:
            # Which the trial has left open.
            return False
        try:
            self._torch.cuda.synchronize()
        except Exception:
            return False
        return True

    def busy_seconds(self) -> float | None:
        return None


def _use_expandable_segments(torch: Any) -> None:
    """Makes the allocator take memory in segments that grow, and shrink again by pages; where the driver can."""
    if any(os.environ.get(name) for name in _SETTINGS):
        return
    # The second is what it was called before.
    names = ("_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings")
    settings = next((getattr(torch._C, name) for name in names if hasattr(torch._C, name)), None)
    if settings is None:
        return
    settings("expandable_segments:True")
    try:
        torch.ones(1, device="cuda:0")
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        # Virtual GPUs and some sandboxes have no virtual memory management.
        settings("expandable_segments:False")


@contextlib.contextmanager
def _alone_on_gpu() -> Iterator[None]:
    """Keeps other lanes from coming up on the same GPU, where NVML could not tell their bytes from ours."""
    if _sees_host_pids():
        yield
        return
    name = f"cotune-{os.getuid()}-{os.environ.get('CUDA_VISIBLE_DEVICES', '')}.lock"
    try:
        lock = os.open(Path(tempfile.gettempdir(), name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        yield
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _sees_host_pids() -> bool:
    """Whether our process numbers are the host's, which are those that NVML knows."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == FIRST_NAMESPACE
    except OSError:
        return False


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
