"""The CPU as a device: measured by the peak resident set, capped by `RLIMIT_DATA`, with real out-of-memory errors."""

from __future__ import annotations

import contextlib
import ctypes
import heapq
import math
import os
import re
import resource
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from cotune.demand import MIB
from cotune.sharing.memory import LaneMemory

_HEADROOM = 128 * MIB
# Libraries start a pool of threads each, as large as the number of cores: room for the stacks of four pools.
_HEADROOM_A_CORE = 8 * MIB
# Bytes to go on with when memory has run out; less than malloc would map by itself, which the cap refuses.
SPARE = 64 * 1024
# For the environment of lanes, unless the user has set it there. mimalloc, pyarrow's allocator, would otherwise
# make 1 GiB writable at its first allocation, and RLIMIT_DATA counts that. It reads its settings when it is loaded.
ALLOCATORS = {"MIMALLOC_ARENA_EAGER_COMMIT": "0"}
_M_ARENA_MAX = -8
_RESIDENT = re.compile(rb"VmHWM:\s+(\d+) kB\nVmRSS:\s+(\d+) kB\nRssAnon:\s+(\d+) kB")


class CpuMemory(LaneMemory):
    """Anonymous resident bytes of the process.

    `RLIMIT_DATA` counts reserved bytes, which exceed resident ones (thread stacks, allocator reserves). So the
    limit is set to the reserved bytes plus the room under the quota plus `headroom()`, whenever the quota changes or a
    trial ends. A lane may exceed its quota by that headroom and by bytes that were reserved but not yet used. Mapped
    files and pages shared with the zygote are not counted. Child processes are neither capped nor measured.

    Args:
        cores: Cores the device stands for, for `busy_seconds`.
    """

    torch_device = "cpu"

    def __init__(self, cores: int) -> None:
        self._cores = max(cores, 1)
        self._libc = ctypes.CDLL(None)
        # With one arena a resident can use memory that another has freed. Only glibc has mallopt.
        getattr(self._libc, "mallopt", _nothing)(_M_ARENA_MAX, 1)
        self._gives_back = _what_gives_back(self._libc)
        # Ray's crash handler needs memory; refused it, the handler aborts and so calls itself, hundreds of times.
        self._libc.signal(signal.SIGABRT, int(signal.SIG_DFL))
        self._status = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
        # In a sandbox it may be read-only, or missing: then a peak is that of all trials so far.
        self._refs: int | None = None
        with contextlib.suppress(OSError):
            self._refs = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
        # /proc/self/status is longer for a member of hundreds of groups.
        self._length = 4096
        while len(os.pread(self._status, self._length, 0)) == self._length:
            self._length *= 2
        self._context = self._quota = self._bare = 0
        self._limit = math.inf
        # Reasons to lift the cap: a trial unwinds; libraries are being loaded, or threads and processes started.
        self._is_relaxed = False
        self._spare = bytes(SPARE)
        # For each of the latter, by how much it raises the cap. A heap, since its changes are atomic.
        self._raised: list[float] = []
        self._resident = 0

    def start(self) -> int:
        with open("/proc/self/smaps_rollup", "rb") as rollup:
            private = [line for line in rollup if line.startswith(b"Private_Dirty:")]
        self._context = int(private[0].split()[1]) * 1024 if private else 0
        self.reset_peak()
        self._bare = self.read()[0]
        return self._context

    def read(self) -> tuple[int, int]:
        match = _RESIDENT.search(os.pread(self._status, self._length, 0))
        assert match is not None
        high, resident, anonymous = (int(kib) * 1024 for kib in match.groups())
        self._resident = anonymous
        return anonymous, anonymous + max(0, high - resident)

    def held(self) -> int:
        # Pages still shared with the zygote cost nothing.
        return self._context + max(0, self._resident - self._bare)

    def reset_peak(self) -> None:
        if self._refs is not None:
            os.pwrite(self._refs, b"5", 0)

    def set_quota(self, quota: int) -> int:
        self._quota = quota
        self._tighten()
        return max(quota, self.held())

    def room(self) -> int:
        return self._quota - self._context - (self.read()[0] - self._bare)

    def relax(self) -> None:
        # Where small objects have filled all memory, not even a tuple could be made.
        self._spare = b""
        self._is_relaxed = True
        self._apply()

    def is_short(self) -> bool:
        return self._limit - self._reserved() < _HEADROOM // 2

    def uncap(self, spare: float = math.inf) -> None:
        # What has been loaded without a cap may exceed it.
        raised = spare if spare == math.inf else spare + max(0.0, self._reserved() - self._limit)
        heapq.heappush(self._raised, raised)
        self._apply()

    def cap(self) -> None:
        with contextlib.suppress(IndexError):
            # Of the others the one that needs most may still be under way.
            heapq.heappop(self._raised)
        self._apply()

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        # A CUDA build of torch reserves 700 MB when imported, uses 280 MB, and crashes if refused any of it.
        with self.uncapped():
            try:
                yield
            finally:
                # Within the block: what has been loaded may already take more than the cap from before.
                self._tighten()

    def trim(self, *, others_run: bool) -> None:
        for give_back in self._gives_back:
            give_back()
        # While the cap is still lifted: what a trial has left behind may take all room below it.
        self._spare = self._spare or bytes(SPARE)
        self._is_relaxed = False
        self._tighten()

    def busy_seconds(self) -> float | None:
        # The CPU time of child processes is not known before they end.
        if has_children():
            return None
        ended = os.times()
        return (time.process_time() + ended.children_user + ended.children_system) / self._cores

    def _reserved(self) -> int:
        return reserved_in(os.pread(self._status, self._length, 0))

    def _tighten(self) -> None:
        self._limit = self._reserved() + max(0, self.room()) + headroom()
        self._apply()

    def _apply(self) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        put = None
        # Another thread may have changed the wanted limit since it was read, so it is read again after it is set.
        while put != (soft := self._wanted(hard)):
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
            put = soft

    def _wanted(self, hard: int) -> int:
        limit = self._limit + max(self._raised, default=0.0)
        soft = resource.RLIM_INFINITY if self._is_relaxed or limit == math.inf else int(limit)
        if hard != resource.RLIM_INFINITY and (soft == resource.RLIM_INFINITY or soft > hard):
            return hard
        return soft


def _what_gives_back(libc: Any) -> list[Callable[[], object]]:
    """Calls by which the allocators of this process give memory back that nothing uses.

    What an ended trial leaves with its allocator would otherwise not count as the next one's. tcmalloc and jemalloc are
    there where they were preloaded.
    """
    found: list[Callable[[], object]] = []
    if hasattr(libc, "malloc_trim"):
        found.append(partial(libc.malloc_trim, 0))
    if hasattr(libc, "MallocExtension_ReleaseFreeMemory"):
        found.append(libc.MallocExtension_ReleaseFreeMemory)
    if hasattr(libc, "mallctl"):
        # jemalloc's number for all arenas is 4096.
        for name in (b"thread.tcache.flush", b"arena.4096.purge"):
            found.append(partial(libc.mallctl, name, None, None, None, ctypes.c_size_t(0)))
    return found


def headroom() -> int:
    """Bytes by which a lane may exceed its quota."""
    return max(_HEADROOM, _HEADROOM_A_CORE * len(os.sched_getaffinity(0)))


def reserved_in(status: bytes) -> int:
    """The bytes that `RLIMIT_DATA` counts, according to /proc/self/status."""
    return int(status[status.index(b"VmData:") + 7 :].split(None, 1)[0]) * 1024


def has_children() -> bool:
    """Whether this process has children, ended ones included."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def child_processes() -> list[int]:
    """The children of this process, whichever of its threads has started them, as far as that can be read."""
    found: list[int] = []
    # Without free file descriptors, say, nothing can be; the end of a trial must still be told.
    with contextlib.suppress(OSError):
        for task in os.listdir("/proc/self/task"):
            # The thread may have ended meanwhile.
            with contextlib.suppress(OSError):
                found += map(int, Path(f"/proc/self/task/{task}/children").read_text(encoding="ascii").split())
    return found


def _nothing(*_: int) -> None: ...
