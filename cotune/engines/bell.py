"""Wakes a thread that waits in a selector."""

from __future__ import annotations

import contextlib
import os


class Bell:
    """To be registered for reading; it may be rung for as long as anybody has it."""

    def __init__(self) -> None:
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._event

    def ring(self) -> None:
        """From any thread or signal handler."""
        with contextlib.suppress(OSError):
            os.eventfd_write(self._event, 1)

    def hush(self) -> None:
        """Takes note of all rings so far."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self._event)
