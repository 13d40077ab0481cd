"""Process-wide settings that a trial may change and later trials must not see."""

from __future__ import annotations

import contextlib
import gc
import locale
import logging
import operator
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Collection
from typing import Any, NamedTuple

from cotune.script.settings import OF_PYTHON
from cotune.script.torch_flags import Setting


def _stack_size() -> int:
    # Asking for it sets it to 0.
    size = threading.stack_size()
    threading.stack_size(size)
    return size


# Those of the script do not travel: a lane has its own, since its globals are others.
OF_LANE: dict[str, Setting] = {
    "switch": (sys.getswitchinterval, sys.setswitchinterval),
    "collects": (gc.isenabled, lambda value: (gc.enable if value else gc.disable)()),
    "thresholds": (gc.get_threshold, lambda value: gc.set_threshold(*value)),
    "debugs": (gc.get_debug, gc.set_debug),
    "called at collections": (lambda: list(gc.callbacks), lambda value: gc.callbacks.__setitem__(slice(None), value)),
    "stacks": (_stack_size, threading.stack_size),
}
_GETTERS, _SETTERS = zip(*(OF_PYTHON | OF_LANE).values(), strict=True)

_warnings: Any = warnings
_logging: Any = logging


def _shows_warnings() -> tuple[Any, ...]:
    # The last is there while warnings are logged (`captureWarnings`).
    return _warnings.showwarning, _warnings._showwarnmsg_impl, _logging._warnings_showwarning


class Interpreter(NamedTuple):
    """Settings of the interpreter and the process.

    The umask is not among them: reading it means setting it, and another thread may create a file meanwhile.

    Attributes:
        values: The values of `OF_PYTHON` and `OF_LANE`, in this order.
        variables: Those of modules; the directory of temporary files is what Python found in the environment.
    """

    values: list[Any]
    variables: tuple[Any, ...]
    arguments: tuple[Any, ...]
    logs: tuple[int, int, tuple[logging.Handler, ...]]
    words: str

    @classmethod
    def now(cls) -> Interpreter:
        hooks = sys.excepthook, sys.unraisablehook, sys.displayhook, sys.breakpointhook, threading.excepthook
        variables = getattr(sys, "stdin", None), tempfile.tempdir, *hooks, *_shows_warnings()
        root = logging.root
        arguments = tuple(getattr(sys, "argv", None) or ())
        return cls(
            list(map(operator.call, _GETTERS)),
            variables,
            arguments,
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
        for put, value in zip(_SETTERS, self.values, strict=True):
            with contextlib.suppress(RecursionError):
                put(value)
        sys.stdin, tempfile.tempdir, *hooks = self.variables
        sys.excepthook, sys.unraisablehook, sys.displayhook, sys.breakpointhook, threading.excepthook, *shows = hooks
        _warnings.showwarning, _warnings._showwarnmsg_impl, _logging._warnings_showwarning = shows
        sys.argv = list(self.arguments)
        level, logging.root.manager.disable, handlers = self.logs
        logging.root.setLevel(level)
        logging.root.handlers[:] = handlers
        with contextlib.suppress(locale.Error):
            locale.setlocale(locale.LC_ALL, self.words)

    def close_logs(self, kept: Collection[logging.Handler]) -> None:
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
