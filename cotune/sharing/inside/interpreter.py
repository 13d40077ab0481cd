"""Process-wide settings that a trial may change and later trials must not see."""

from __future__ import annotations

import contextlib
import gc
import locale
import logging
import multiprocessing.context
import operator
import os
import sys
import tempfile
import threading
import warnings
from functools import partial
from typing import Any

from cotune.script.settings import OF_PYTHON
from cotune.script.torch_flags import Setting

# Holds the chosen start method, which can be set only once.
_processes: Any = multiprocessing.context._default_context


def _attribute(owner: Any, name: str) -> Setting:
    # A trial may have deleted it, such as `sys.stdin`.
    return lambda: getattr(owner, name, None), partial(setattr, owner, name)


def _content(owner: Any, name: str) -> Setting:
    """A list that others hold, too."""
    return lambda: list(getattr(owner, name)), lambda value: getattr(owner, name).__setitem__(slice(None), value)


def _stack_size() -> int:
    # Asking for it sets it to 0.
    size = threading.stack_size()
    threading.stack_size(size)
    return size


# Those of the script do not travel: a lane has its own, since its globals, its way to log and its processes are others.
OF_LANE: dict[str, Setting] = {
    "switch": (sys.getswitchinterval, sys.setswitchinterval),
    "collects": (gc.isenabled, lambda value: (gc.enable if value else gc.disable)()),
    "thresholds": (gc.get_threshold, lambda value: gc.set_threshold(*value)),
    "debugs": (gc.get_debug, gc.set_debug),
    "called at collections": _content(gc, "callbacks"),
    "stacks": (_stack_size, threading.stack_size),
    "level": (lambda: logging.root.level, logging.root.setLevel),
    "start method": _attribute(_processes, "_actual_context"),
}
# What modules set of these when they are imported counts as the trial's own.
_OF_TRIAL: list[Setting] = [
    (lambda: list(getattr(sys, "argv", None) or ()), lambda value: setattr(sys, "argv", list(value))),
    (lambda: locale.setlocale(locale.LC_ALL), lambda value: locale.setlocale(locale.LC_ALL, value)),
    _content(logging.root, "handlers"),
    _attribute(logging.root.manager, "disable"),
    *(_attribute(sys, name) for name in ("stdin", "excepthook", "unraisablehook", "displayhook", "breakpointhook")),
    _attribute(threading, "excepthook"),
    # The directory of temporary files is what Python found in the environment.
    _attribute(tempfile, "tempdir"),
    *(_attribute(warnings, name) for name in ("showwarning", "_showwarnmsg_impl")),
    # There while warnings are logged (`captureWarnings`).
    _attribute(logging, "_warnings_showwarning"),
]
# The umask is not among them: reading it means setting it, and another thread may create a file meanwhile.
_GETTERS, _SETTERS = zip(*OF_PYTHON.values(), *OF_LANE.values(), *_OF_TRIAL, strict=True)


def settings_now() -> list[Any]:
    """The values of all of these."""
    return list(map(operator.call, _GETTERS))


def put_settings(values: list[Any]) -> None:
    """Puts values that `settings_now` told in place."""
    for put, value in zip(_SETTERS, values, strict=True):
        # Where the stack is too deep for a limit, or the words of a language have been removed.
        with contextlib.suppress(RecursionError, locale.Error):
            put(value)


def current_umask() -> int:
    """The process's umask."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
