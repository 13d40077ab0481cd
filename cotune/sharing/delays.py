"""The time a thread has waited for a core; its running time less these delays is what it would take alone."""

from __future__ import annotations

import contextlib
import os

_OWN = "/proc/thread-self/schedstat"
_NANOSECOND = 1e-9


def are_counted() -> bool:
    """Whether the kernel counts delays; some kernels and sandboxes do not."""
    return os.path.exists(_OWN)


class ThreadDelays:
    """Delays of the thread that creates the object: time in which it was ready to run but did not run.

    Any thread may read them. Time in which its control group had used up its CPU quota counts as well.
    """

    def __init__(self) -> None:
        try:
            self._fd = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            # The kernel counts no delays, or trials have left too many files open.
            self._fd = -1
        self._seconds = 0.0

    def seconds(self) -> float:
        """All delays so far, or up to the end of the thread, in seconds; 0 if they are not counted."""
        if self._fd >= 0:
            with contextlib.suppress(ProcessLookupError):
                self._seconds = int(os.pread(self._fd, 64, 0).split()[1]) * _NANOSECOND
        return self._seconds

    def close(self) -> None:
        """Closes the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
