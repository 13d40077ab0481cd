"""Process-wide settings that a trial may change and later trials must not see."""

from __future__ import annotations

import contextlib
import gc
import locale
import logging
import os
import socket
import sys
import threading
import warnings
from collections.abc import Collection
from typing import Any, NamedTuple

_warnings: Any = warnings
_logging: Any = logging


def _shows_warnings() -> tuple[Any, ...]:
    # The last is there while warnings are logged (`captureWarnings`).
    return _warnings.showwarning, _warnings._showwarnmsg_impl, _logging._warnings_showwarning


class Interpreter(NamedTuple):
    """Settings of the interpreter and the process.

    The umask is not among them: reading it means setting it, and another thread may create a file meanwhile.
    """

    collects: bool
    thresholds: tuple[int, int, int]
    recursion: int
    switch: float
    hooks: tuple[Any, ...]
    arguments: tuple[Any, ...]
    timeout: float | None
    digits: int
    logs: tuple[int, int, tuple[logging.Handler, ...]]
    words: str

    @classmethod
    def now(cls) -> Interpreter:
        hooks = sys.excepthook, sys.unraisablehook, sys.displayhook, threading.excepthook, *_shows_warnings()
        root = logging.root
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
            (root.level, root.manager.disable, tuple(root.handlers)),
            locale.setlocale(locale.LC_ALL),
        )

    def apply(self, left: Interpreter | None) -> None:
        """Puts these settings in place.

        Args:
            left: The settings in place now, if known.
        """
        if (left or Interpreter.now()) == self:
            return
        (gc.enable if self.collects else gc.disable)()
        gc.set_threshold(*self.thresholds)
        with contextlib.suppress(RecursionError):
            sys.setrecursionlimit(self.recursion)
        sys.setswitchinterval(self.switch)
        sys.excepthook, sys.unraisablehook, sys.displayhook, threading.excepthook, *shows = self.hooks
        _warnings.showwarning, _warnings._showwarnmsg_impl, _logging._warnings_showwarning = shows
        sys.argv = list(self.arguments)
        socket.setdefaulttimeout(self.timeout)
        sys.set_int_max_str_digits(self.digits)
        level, logging.root.manager.disable, handlers = self.logs
        logging.root.setLevel(level)
        logging.root.handlers[:] = handlers
        with contextlib.suppress(locale.Error):
            locale.setlocale(locale.LC_ALL, self.words)

    def close_logs(self, kept: Collection[logging.Handler] = ()) -> None:
        """Removes the log handlers that were added to the root logger since, and closes all but the `kept` ones."""
        for handler in [handler for handler in logging.root.handlers if handler not in self.logs[2]]:
            logging.root.removeHandler(handler)
            if handler not in kept:
                with contextlib.suppress(Exception):
                    handler.close()


def current_umask() -> int:
    """The process's umask."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
