"""Where a lane's output goes: what a trial prints to its own log, all else to the lane's."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer


# What <stdio.h> calls _IOLBF.
_LINE_BUFFERED = 1


class _Log(io.FileIO):
    """What cannot be written is lost: a line of a log is worth no trial.

    It stays open whoever closes it, as a stream does that a trial has put round it, once nobody has that any more.
    """

    def write(self, data: Buffer, /) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            return memoryview(data).nbytes

    def close(self) -> None: ...


class LaneOutput:
    """Redirects this process for good.

    Args:
        log: Where output goes that belongs to no trial.
    """

    def __init__(self, log: Path) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        os.dup2(self._log, 1)
        os.dup2(self._log, 2)
        with contextlib.suppress(ValueError):
            # What C code prints by whole lines: to a file it would come when its buffer is full, to whichever log.
            libc = ctypes.CDLL(None)
            libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _LINE_BUFFERED, 0)
        self._raw = [_Log(fd, "wb", closefd=False) for fd in (1, 2)]
        sys.stdout, sys.stderr = self.streams()

    def streams(self) -> tuple[TextIO, TextIO]:
        """New ones for output and errors: a trial may take its own apart."""
        stream = functools.partial(io.TextIOWrapper, encoding="utf-8", errors="backslashreplace", line_buffering=True)
        out, err = self._raw
        # Output by whole lines, of which print() writes the parts one by one; errors at once.
        return stream(out), stream(err, write_through=True)

    @staticmethod
    def put_back() -> None:
        """Has a stream that a trial has deleted be None, without which Python starts no thread."""
        for name in ("stdout", "stderr"):
            if not hasattr(sys, name):
                setattr(sys, name, None)

    def redirect(self, log: int) -> None:
        """Sends what is printed, also by subprocesses and C code, to a trial's log; -1 for the lane's own."""
        self.put_back()
        for stream in (sys.stdout, sys.stderr):
            # What is no whole line yet; a trial may have put others in the place of ours.
            with contextlib.suppress(Exception):
                stream.flush()
        target = log if log >= 0 else self._log
        os.dup2(target, 1)
        os.dup2(target, 2)
