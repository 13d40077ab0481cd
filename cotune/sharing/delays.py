"""What a thread has waited for a core: without that, what it computes beside others says how much it would alone."""

from __future__ import annotations

import contextlib
import os

_OWN = "/proc/thread-self/schedstat"
_NANOSECOND = 1e-9


def are_counted() -> bool:
    """Whether the kernel counts delays, which not every one is built to, nor every sandbox."""
    return os.path.exists(_OWN)


class ThreadDelays:
    """Delays of the thread that makes it, whichever reads them: the time in which it was ready to run, and did not.

    Time in which a control group has used up its share of the cores counts as well.
    """

    def __init__(self) -> None:
        try:
            self._fd = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            # There is none, or the trials here have left too many files open.
            self._fd = -1
        self._seconds = 0.0

    def seconds(self) -> float:
        """All of them so far, up to the end of the thread; 0 if that is not counted."""
        if self._fd >= 0:
            with contextlib.suppress(ProcessLookupError):
                self._seconds = int(os.pread(self._fd, 64, 0).split()[1]) * _NANOSECOND
        return self._seconds

    def close(self) -> None:
        """Gives the file back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
