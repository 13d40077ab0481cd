"""What ended trials may leave behind in their process, and what of it is tidied up for the next one."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
import sys
import threading
import time
import typing
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cotune.script.compiler_settings import default, set_default
from cotune.sharing.cpu import child_processes, has_children
from cotune.sharing.inside.dynamo import dynamo_if_loaded

# Name prefixes of threads that may outlive a trial: trials' own, and torch.compile's, which serve the next trial too.
HELPERS = ("trial-", "InductorSubproc", "subproc_worker_timer")
# Seconds for the threads of an ended trial to end.
ENDS_WITHIN = 0.05


def disarm() -> None:
    """Stops timers and tracing left by ended trials, which would end the process or slow down the next trial."""
    for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        signal.setitimer(timer, 0)
    faulthandler.cancel_dump_traceback_later()
    gc.set_debug(0)
    tracing = sys.modules.get("tracemalloc")
    if tracing is not None and tracing.is_tracing():
        tracing.stop()


# How often torch may compile the same code, before that was raised.
_first_limits: dict[str, int] = {}


def forget_compiled(*, others_run: bool) -> None:
    """Resets torch.compile, which compiles code that all trials share, such as `nn.Sequential`, eight times only.

    Args:
        others_run: Whether compiled code of other trials must stay; then it may be compiled eight times more.
    """
    compiler: Any = dynamo_if_loaded()
    # A reset takes 0.3 ms, so it is left out where nothing was compiled.
    backends = getattr(getattr(compiler, "eval_frame", None), "cached_backends", {})
    if any(backend is not None for backend in backends.values()):
        for limit in ("cache_size_limit", "accumulated_cache_size_limit"):
            now = default(compiler.config, limit)
            first = _first_limits.setdefault(limit, now)
            set_default(compiler.config, limit, now + 8 if others_run else first)
        if not others_run:
            _first_limits.clear()
            compiler.reset()
            _forget_guards()


def _forget_guards() -> None:
    """Drops what torch would call at the end of modules of its own, and what keeps the variables of each trial."""
    # A table of Python's own that is not public. Without it there is nothing to drop.
    for finalizer, told in list(getattr(weakref.finalize, "_registry", {}).items()):
        called = getattr(told.func, "func", told.func)
        if type(getattr(called, "__self__", None)).__name__ == "CheckFunctionManager":
            finalizer.detach()


def forget_types() -> None:
    """Empties the caches of `typing` and torch, whose entries would keep a trial's classes, and so its variables."""
    for clear in getattr(typing, "_cleanups", ()):
        clear()
    getattr(sys.modules.get("torch.distributions.kl"), "_KL_MEMOIZE", {}).clear()


def has_process_group() -> bool:
    """Whether torch has a default process group; a process can have only one."""
    distributed: Any = sys.modules.get("torch.distributed")
    return distributed is not None and bool(distributed.is_available() and distributed.is_initialized())


def children(known: frozenset[int]) -> list[int]:
    """Living child processes, without the known ones and Python's own helpers."""
    return [pid for pid in child_processes() if pid not in known and _counts(pid)] if has_children() else []


def _counts(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return False
    helpers = (b"resource_tracker", b"forkserver", b"compile_worker")
    return state != "Z" and not any(helper in command for helper in helpers)


def live_on(is_known: Callable[[threading.Thread], bool]) -> bool:
    """Whether threads of an ended trial live on, other than known ones, those of trials and helpers."""
    left = [
        thread
        for thread in threading.enumerate()
        if not is_known(thread)
        and not thread.name.startswith(HELPERS)
        and "TMonitor" not in type(thread).__name__
        # A thread that Python did not start, such as that of torch's backward pass on a GPU.
        and not isinstance(thread, threading._DummyThread)
    ]
    # Those of a DataLoader or a pool are told to end, and take a moment.
    deadline = time.monotonic() + ENDS_WITHIN
    for thread in left:
        # RuntimeError: it has not begun yet.
        with contextlib.suppress(RuntimeError):
            thread.join(max(0.0, deadline - time.monotonic()))
    return any(thread.is_alive() or thread.ident is None for thread in left)


def open_files() -> int:
    """How many files the process has open."""
    # Linux says so from 6.2 on, and 0 before. To list them takes 0.1 ms where CUDA has opened hundreds.
    return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))
