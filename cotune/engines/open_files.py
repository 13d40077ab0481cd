"""How many files this process may have open."""

from __future__ import annotations

import os
import resource
import sys

# Files of this process for other things than lanes.
OTHER_FILES = 64


class OpenFiles:
    """The limit of open files of this process, raised while lanes need more.

    Many machines allow 1,024, and a million to those who ask. Trials have the limit that the script had: it is raised
    after the process that lanes are forked from has begun.
    """

    def __init__(self) -> None:
        self._before: int | None = None

    @staticmethod
    def left() -> int:
        """How many more can be opened for lanes, if the limit is raised as far as it goes."""
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        return sys.maxsize if hard == resource.RLIM_INFINITY else hard - _in_use()

    def allow(self, count: int) -> None:
        """Raises the limit, if it has to be, and can be, for so many more to be opened."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        needed = _in_use() + count
        if soft == resource.RLIM_INFINITY or needed <= soft:
            return
        most = 2 * needed if hard == resource.RLIM_INFINITY else min(2 * needed, hard)
        if most > soft:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            self._before = soft if self._before is None else self._before

    def restore(self) -> None:
        """Lowers the limit to what it was."""
        if self._before is not None:
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (self._before, hard))
            self._before = None


def files_of_a_lane(seats: int) -> int:
    """How many files a lane takes in this process: a socket, and an eventfd per seat."""
    return 1 + seats


def _in_use() -> int:
    """Open files, and those to be kept for other things than lanes."""
    return len(os.listdir("/proc/self/fd")) + OTHER_FILES
