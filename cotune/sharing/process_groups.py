"""Kills a lane with all processes that it has started."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from cotune.sharing.cpu import child_processes


def kill_group(group: int) -> None:
    """Kills the processes of a lane's group, except resource trackers.

    The resource trackers of multiprocessing and loky remove semaphores and shared memory once their users are gone, and
    then end; without them these would stay in /dev/shm.
    """
    with contextlib.suppress(OSError):
        # Stopped, so that no process of the group forks meanwhile.
        os.killpg(group, signal.SIGSTOP)
        try:
            for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
                with contextlib.suppress(OSError):
                    if os.getpgid(pid) == group and not _is_tracker(pid):
                        os.kill(pid, signal.SIGKILL)
        except OSError:
            # Without free file descriptors, say: then the trackers are killed, too.
            os.killpg(group, signal.SIGKILL)
        finally:
            os.killpg(group, signal.SIGCONT)


def kill_children() -> None:
    """Kills all children of this process, and orphans it adopts as their subreaper; waits for resource trackers."""
    while True:
        for pid in child_processes():
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
