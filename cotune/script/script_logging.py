"""Loggers that a script has set up itself, such as `logging.getLogger("app")` with a handler, print in its trials, too.

Where the script's root logger has handlers, all loggers print, by a handler of Python's own for the root logger.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import sys
from typing import NamedTuple, TextIO

from cotune.script.installed import is_own


class Handler(NamedTuple):
    """A handler that prints.

    Attributes:
        stream: `"stdout"` or `"stderr"`.
        level: Its level.
        formatter: Its formatter, pickled; None if it has none.
    """

    stream: str
    level: int
    formatter: bytes | None


class Told(NamedTuple):
    """A logger, as far as it travels."""

    level: int
    propagate: bool
    handlers: list[Handler]


def levels() -> dict[str, int] | None:
    """Levels of all loggers of this process; None if its root logger has no handlers."""
    root = logging.getLogger()
    if not root.handlers:
        return None
    # Of a copy: a module that another thread imports may add its logger.
    loggers = [logger for logger in root.manager.loggerDict.copy().values() if isinstance(logger, logging.Logger)]
    return {logger.name: logger.level for logger in [root, *loggers] if logger.level}


def set_levels(told: dict[str, int] | None) -> None:
    """Has loggers print what they print where `levels` told that."""
    if told is not None:
        logging.basicConfig()
        for name, level in told.items():
            logging.getLogger(name).setLevel(level)


def loggers_of_script() -> dict[str, Told]:
    """The loggers with handlers that print, but for those of installed modules, which set up their own."""
    found = {}
    # Of a copy: a module that another thread imports may add its logger.
    for name, logger in logging.root.manager.loggerDict.copy().items():
        module = sys.modules.get(name, sys.modules.get(name.partition(".")[0]))
        is_ours = module is None or module.__name__ == "__main__" or is_own(module)
        if isinstance(logger, logging.Logger) and is_ours:
            handlers = [_told(handler) for handler in logger.handlers if _prints(handler)]
            if handlers:
                found[name] = Told(logger.level, logger.propagate, handlers)
    return found


class _OfScript(logging.StreamHandler):  # type: ignore[type-arg]
    """Prints unless the logger has got a handler that does: that of a module, which sets it up when it is imported."""

    def __init__(self, stream: TextIO | None, logger: logging.Logger) -> None:
        super().__init__(stream)
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        if not any(type(handler) is logging.StreamHandler for handler in self._logger.handlers):
            super().emit(record)


def _prints(handler: logging.Handler) -> bool:
    return type(handler) is logging.StreamHandler and handler.stream in (sys.stdout, sys.stderr)


def _told(handler: logging.Handler) -> Handler:
    # Only here: lanes have no use for it.
    from cotune.script import by_value

    stream = "stdout" if getattr(handler, "stream", None) is sys.stdout else "stderr"
    formatter = None
    with contextlib.suppress(Exception):
        formatter = by_value.dumps(handler.formatter) if handler.formatter is not None else None
    return Handler(stream, handler.level, formatter)


def set_up(told: dict[str, Told]) -> None:
    """Sets these loggers up, unless a module has done so when it was imported."""
    for name, (level, propagate, handlers) in told.items():
        logger = logging.getLogger(name)
        if logger.handlers:
            continue
        for stream, least, formatter in handlers:
            # The lane's own streams: those of a trial end with it.
            handler = _OfScript(sys.__stdout__ if stream == "stdout" else sys.__stderr__, logger)
            handler.setLevel(least)
            with contextlib.suppress(Exception):
                handler.setFormatter(pickle.loads(formatter) if formatter is not None else None)
            logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
