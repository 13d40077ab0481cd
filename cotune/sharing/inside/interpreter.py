"""What a trial may set for its whole process, and its successors must not find."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple


class Interpreter(NamedTuple):
    """Settings of the interpreter and the process that Python has no other place for.

    Which mode files get is not read with the others: it can only be set, and files may be made meanwhile.
    """

    collects: bool
    thresholds: tuple[int, int, int]
    recursion: int
    switch: float
    hooks: tuple[Callable[..., Any], ...]
    arguments: tuple[Any, ...]
    timeout: float | None
    digits: int

    @classmethod
    def now(cls) -> Interpreter:
        hooks = sys.excepthook, sys.unraisablehook, sys.displayhook, threading.excepthook
        arguments = tuple(getattr(sys, "argv", None) or ())
        return cls(
            gc.isenabled(),
            gc.get_threshold(),
            sys.getrecursionlimit(),
            sys.getswitchinterval(),
            hooks,
            arguments,
            socket.getdefaulttimeout(),
            sys.get_int_max_str_digits(),
        )

    def apply(self) -> None:
        """Sets what is other than this."""
        now = Interpreter.now()
        if now == self:
            return
        (gc.enable if self.collects else gc.disable)()
        gc.set_threshold(*self.thresholds)
        with contextlib.suppress(RecursionError):
            sys.setrecursionlimit(self.recursion)
        sys.setswitchinterval(self.switch)
        sys.excepthook, sys.unraisablehook, sys.displayhook, threading.excepthook = self.hooks
        sys.argv = list(self.arguments)
        socket.setdefaulttimeout(self.timeout)
        sys.set_int_max_str_digits(self.digits)


def file_mode() -> int:
    """The mask of the modes of new files."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
