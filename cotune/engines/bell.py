"""Wakes up a thread that waits in a selector."""

from __future__ import annotations

import contextlib
import os


class Bell:
    """An eventfd to register with a selector for reading; it stays open as long as the object exists."""

    def __init__(self) -> None:
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._event

    def ring(self) -> None:
        """Wakes the waiting thread; may be called from any thread or signal handler."""
        with contextlib.suppress(OSError):
            os.eventfd_write(self._event, 1)

    def hush(self) -> None:
        """Clears all rings so far."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self._event)
