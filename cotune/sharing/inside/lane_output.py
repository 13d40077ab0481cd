"""A lane's output: a trial's goes to the trial's log, everything else to the lane's log."""

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


# _IOLBF of <stdio.h>.
_LINE_BUFFERED = 1


class _Log(io.FileIO):
    """A log file that drops what cannot be written, since a lost line must not fail a trial.

    close() does nothing: a stream that a trial wraps around it would close it when the stream is collected.
    """

    def write(self, data: Buffer, /) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            return memoryview(data).nbytes

    def close(self) -> None: ...


class LaneOutput:
    """Redirects the output of this process for good.

    Args:
        log: File for output that belongs to no trial.
    """

    def __init__(self, log: Path) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        os.dup2(self._log, 1)
        os.dup2(self._log, 2)
        with contextlib.suppress(ValueError):
            # Line-buffered: C code would write to a file when its buffer is full, perhaps in another trial's turn.
            libc = ctypes.CDLL(None)
            libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _LINE_BUFFERED, 0)
        self._raw = [_Log(fd, "wb", closefd=False) for fd in (1, 2)]
        sys.stdout, sys.stderr = self.streams()

    def streams(self) -> tuple[TextIO, TextIO]:
        """New streams for output and errors, for each trial, since a trial may break its own."""
        stream = functools.partial(io.TextIOWrapper, encoding="utf-8", errors="backslashreplace", line_buffering=True)
        out, err = self._raw
        # Output line by line, since print() writes a line in parts; errors at once.
        return stream(out), stream(err, write_through=True)

    @staticmethod
    def put_back() -> None:
        """Sets a stream that a trial has deleted to None; without the attribute Python starts no thread."""
        for name in ("stdout", "stderr"):
            if not hasattr(sys, name):
                setattr(sys, name, None)

    def redirect(self, log: int) -> None:
        """Sends all output, also of subprocesses and C code, to a trial's log; to the lane's log for -1."""
        self.put_back()
        for stream in (sys.stdout, sys.stderr):
            # Flushes unfinished lines; the streams may be a trial's own, which may raise.
            with contextlib.suppress(Exception):
                stream.flush()
        target = log if log >= 0 else self._log
        os.dup2(target, 1)
        os.dup2(target, 2)
