"""Killing a lane with all that it has started."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def kill_group(group: int) -> None:
    """Kills a lane and what it has started, but for those who clean up after the killed.

    The resource trackers of multiprocessing and loky remove semaphores and shared memory once their users are gone, and
    end; else all that would stay in /dev/shm.
    """
    with contextlib.suppress(OSError):
        # So that nobody forks meanwhile.
        os.killpg(group, signal.SIGSTOP)
        try:
            for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
                with contextlib.suppress(OSError):
                    if os.getpgid(pid) == group and not _is_tracker(pid):
                        os.kill(pid, signal.SIGKILL)
        except OSError:
            # Out of file descriptors, for one: then with those who would have cleaned up.
            os.killpg(group, signal.SIGKILL)
        finally:
            os.killpg(group, signal.SIGCONT)


def kill_children() -> None:
    """Kills every child of this process, and those that fall to it as the subreaper of what they were started by."""
    while True:
        for pid in _children():
            with contextlib.suppress(OSError):
                if not _is_tracker(pid):
                    os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _is_tracker(pid: int) -> bool:
    try:
        return b"resource_tracker import main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _children() -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return []
