"""Wakes a thread that waits in a selector."""

from __future__ import annotations

import contextlib
import os


class Bell:
    """A pipe to oneself; to be registered for reading."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        return self._read

    def ring(self) -> None:
        """From any thread or signal handler, also after `close()`."""
        with contextlib.suppress(OSError):
            os.write(self._write, b"x")

    def hush(self) -> None:
        """Takes note of all rings so far."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)

    def close(self) -> None:
        os.close(self._read)

    def __del__(self) -> None:
        # Not before: another thread may still ring.
        with contextlib.suppress(AttributeError, OSError):
            os.close(self._write)
