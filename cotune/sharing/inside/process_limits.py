"""Limits of a lane's process that a trial may change, or use up, at the expense of its lane-mates and successors."""

from __future__ import annotations

import contextlib
import os
import resource

from cotune.sharing.inside.leftovers import open_files

# Most files that ended trials may leave open.
MOST_FILES = 64
# All that a trial may change but RLIMIT_DATA, which is the lane's quota.
_LIMITS = (
    resource.RLIMIT_AS,
    resource.RLIMIT_CPU,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_NOFILE,
    resource.RLIMIT_NPROC,
    resource.RLIMIT_STACK,
)


class ProcessLimits:
    """The limits of this process as they are now, before any trial."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._cores = os.sched_getaffinity(self._process)
        self._niceness = os.getpriority(os.PRIO_PROCESS, self._process)
        self._user = _user()
        self._limits = {which: resource.getrlimit(which) for which in _LIMITS}
        self._most_data = resource.getrlimit(resource.RLIMIT_DATA)[1]
        self._files = -1

    def put_back(self) -> bool:
        """Undoes the changes of an ended trial; False if one cannot be undone."""
        if os.sched_getaffinity(self._process) != self._cores:
            # Only the main thread's affinity: the trials' threads have ended.
            with contextlib.suppress(OSError):
                os.sched_setaffinity(self._process, self._cores)
        if os.getpriority(os.PRIO_PROCESS, self._process) != self._niceness or _user() != self._user:
            return False
        for which, before in self._limits.items():
            now = resource.getrlimit(which)
            # RLIM_INFINITY is -1.
            if any(a % 2**64 < b % 2**64 for a, b in zip(now, before, strict=True)):
                try:
                    resource.setrlimit(which, before)
                except (ValueError, OSError):
                    return False
        return resource.getrlimit(resource.RLIMIT_DATA)[1] == self._most_data

    def are_files_left(self, others_run: bool) -> bool:
        """Whether ended trials have left so many files open that later trials would run out of descriptors.

        Args:
            others_run: Whether other trials run, which may have files open themselves.
        """
        try:
            count = open_files()
        except OSError:
            return True
        if self._files < 0:
            # Files open after the first trial belong to libraries, which keep them open.
            self._files = count
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        is_scarce = most != resource.RLIM_INFINITY and count > most // 2
        return is_scarce or (not others_run and count > self._files + MOST_FILES)


def _user() -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Whose rights this process has."""
    return os.getresuid(), os.getresgid()
