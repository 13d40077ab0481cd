"""The memory of a lane on a GPU: torch's caching allocator, measured and capped."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cotune.demand import MIB
from cotune.sharing.cuda import CONTEXT_GUESS, ROUNDING, nvml_started
from cotune.sharing.inside.after_import import after_import
from cotune.sharing.inside.captures import Captures
from cotune.sharing.inside.cupy_pool import use_lane_allocator
from cotune.sharing.inside.peaks import Peaks
from cotune.sharing.memory import LaneMemory

LEAST_CONTEXT = 8 * MIB
MOST_CONTEXT = 2000 * MIB
# With a matrix product done, hardly any context is smaller.
LEAST_GROWTH = 250 * MIB
# Free bytes below which even a library's handle may be refused.
NEARLY_FULL = 64 * MIB
# Inode number of Linux's initial PID namespace.
FIRST_NAMESPACE = 0xEFFFFFFC
# Environment variables with the user's settings of torch's allocator.
_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


class CudaMemory(LaneMemory):
    """The torch caching allocator of the process, on its only visible GPU.

    Trials are measured by allocated bytes, the lane is capped by reserved bytes: the allocator checks the memory
    fraction before it takes more from the device, and frees its cache and retries before it refuses. The fraction does
    not cover the CUDA context, which is therefore part of the quota here, as is what the allocator reserves in advance.

    The cache consists of expandable segments, unless the user has set options of the allocator. A segment of the other
    kind returns to the device only as a whole, so that a part that a trial keeps for long wastes the rest.
    """

    torch_device = "cuda:0"

    def __init__(self) -> None:
        import torch

        self._torch: Any = torch
        self._captures = Captures(torch.cuda.CUDAGraph)
        self._total = 0
        self._context = CONTEXT_GUESS
        self._reserved = self._room = 0
        self._peaks = Peaks(torch._C)
        self._refusals = 0

    def start(self) -> int:
        torch = self._torch
        with _alone_on_gpu():
            before = _used_here()
            torch.cuda.init()
            _use_expandable_segments(torch)
            # A matrix product makes CUDA load what nearly every trial needs, and what the allocator does not count.
            square = torch.ones(64, 64, device="cuda:0")
            (square @ square).sum().item()
            del square
            self.shrink()
            _order_attention(torch)
            torch.cuda.empty_cache()
            torch.cuda.synchronize()
            self._total = int(torch.cuda.get_device_properties(0).total_memory)
            self._context = self._measure_context(before)
        after_import("cupy", lambda cupy: use_lane_allocator(cupy, torch))
        self.reset_peak()
        return self._context + ROUNDING

    def _measure_context(self, before: int | None) -> int:
        """The bytes that NVML books on this process, less what the allocator holds.

        Where NVML cannot see the process, as in a container, the growth of the GPU's used bytes since `before` counts;
        that is too much if others took memory meanwhile, which is safe, and not believed if they may have returned
        some. Else a guess.
        """
        reserved = int(self._torch.cuda.memory_reserved(0))
        seen = [(_booked_on_us(), LEAST_CONTEXT)]
        if before is not None:
            seen.append(((_used_here() or 0) - before, LEAST_GROWTH))
        # Our process id may be another process's in another PID namespace: only a likely figure is believed.
        likely = ((bytes - reserved, least) for bytes, least in seen if bytes is not None)
        return next((own for own, least in likely if least < own < MOST_CONTEXT), CONTEXT_GUESS)

    def read(self) -> tuple[int, int]:
        held, peak, self._reserved = self._peaks.read()
        return held, peak

    def held(self) -> int:
        return self._context + self._reserved

    def reset_peak(self) -> None:
        self._peaks.reset()

    def forget_peaks(self) -> None:
        self._peaks.forget()

    def set_quota(self, quota: int) -> int:
        torch = self._torch
        self._room = room = max(quota - self._context, MIB)
        self._cap()
        reserved = int(torch.cuda.memory_reserved(0))
        if reserved > room:
            with self._captures.held_off() as may_free:
                # Not freed here, the cache would stay reserved until the next change of the quota.
                if may_free:
                    torch.cuda.empty_cache()
            reserved = int(torch.cuda.memory_reserved(0))
        self._reserved = reserved
        return max(quota, self._context + reserved)

    def _cap(self) -> None:
        put = None
        # Another thread may have changed the quota since it was read, so it is read again after it is set.
        while put != (room := self._room):
            # One byte more, since torch turns the fraction into bytes again and rounds down.
            self._torch.cuda.set_per_process_memory_fraction(min(1.0, (room + 1) / self._total), 0)
            put = room

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

    def is_recording(self) -> bool:
        # The second also sees captures begun without `CUDAGraph`, but only in this thread.
        return bool(self._captures) or bool(self._torch.cuda.is_current_stream_capturing())

    def is_profiled(self) -> bool:
        # torch's profiler records the kernels of the whole process, and a second one fails.
        return bool(self._torch.autograd._profiler_enabled())

    def synchronize(self) -> None:
        self._torch.cuda.synchronize()

    def trim(self, *, others_run: bool) -> None:
        self._refusals = int(self._torch._C._cuda_memoryStats(0)["num_ooms"])
        # A trial's code may have set a memory fraction of its own.
        self._cap()
        # A resident that still runs would allocate its workspace again, and be charged for it twice.
        if not others_run:
            self.shrink()

    def shrink(self) -> None:
        # cuBLAS has a workspace for every stream.
        self._torch._C._cuda_clearCublasWorkspaces()

    def is_sound(self) -> bool:
        """False after a sticky error, such as a device-side assert: every later CUDA call would fail too.

        After a failed capture torch's generator may be left as if it went on, so that every later draw would fail.
        """
        if self._captures:
            # The trial has left a capture open.
            return False
        try:
            self._torch.cuda.synchronize()
            if self._captures.has_failed:
                with contextlib.suppress(self._torch.OutOfMemoryError):
                    self._torch.rand(1, device="cuda:0")
        except Exception:
            return False
        return True


def _use_expandable_segments(torch: Any) -> None:
    """Makes the allocator use segments that grow and shrink by pages, if the driver supports them."""
    if any(os.environ.get(name) for name in _SETTINGS):
        return
    # The second is the older name.
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


def _order_attention(torch: Any) -> None:
    """Has torch settle which attention comes first on this GPU, as it does once in a process (ATen's sdp_utils.cpp).

    The order is one of the flags of a trial. Settled within the first trial, it would be that trial's alone.
    """
    query = torch.empty(0, 1, 1, 8, dtype=torch.float16, device="cuda:0")
    torch._fused_sdp_choice(query, query, query)


@contextlib.contextmanager
def _alone_on_gpu() -> Iterator[None]:
    """Keeps other lanes from coming up on the same GPU meanwhile, if NVML cannot tell their bytes from ours."""
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
        # A file system may have no locks.
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _sees_host_pids() -> bool:
    """Whether our process ids are the host's, which are those that NVML knows."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == FIRST_NAMESPACE
    except OSError:
        return False


def _used_here() -> int | None:
    """Bytes in use by any process on this lane's GPU; None if NVML cannot tell."""
    with contextlib.suppress(Exception), nvml_started() as nvml:
        return int(nvml.nvmlDeviceGetMemoryInfo(_own_handle(nvml)).used)
    return None


def _booked_on_us() -> int | None:
    """Bytes of that GPU that NVML books on this process; None if NVML does not see it."""
    with contextlib.suppress(Exception), nvml_started() as nvml:
        for process in nvml.nvmlDeviceGetComputeRunningProcesses(_own_handle(nvml)):
            if process.pid == os.getpid():
                return int(process.usedGpuMemory or 0)
    return None


def _own_handle(nvml: Any) -> Any:
    return nvml.nvmlDeviceGetHandleByUUID(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
