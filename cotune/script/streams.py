"""Standard streams travel by name, whatever stands for them, as in a notebook or under pytest.

A copy of loguru's logger, to which the script has added sinks, prints to those of a trial.
"""

from __future__ import annotations

import io
import sys
from typing import Any

_NAMES = "stdout", "stderr"
# What loguru's handlers with `enqueue=True` have, which only the process that made them can use.
_OF_QUEUE = "_queue", "_queue_lock", "_confirmation_event", "_confirmation_lock", "_thread", "_multiprocessing_context"


def reduced(obj: Any) -> Any:
    """How to pickle a standard stream or a core of loguru; NotImplemented for any other object."""
    if isinstance(obj, io.TextIOBase):
        # A buffer that the script has put there may be read.
        name = None if type(obj) is io.StringIO else _name(obj)
        return NotImplemented if name is None else (getattr, (sys, name))
    if (type(obj).__module__, type(obj).__name__) == ("loguru._logger", "Core"):
        return _core(obj)
    return NotImplemented


def _name(stream: Any) -> str | None:
    return next((name for name in _NAMES if stream is getattr(sys, name)), None)


def _core(core: Any) -> Any:
    """As it is, without the sinks that neither print nor call a function: they write to files, or hold locks."""
    make, args, state, *rest = core.__reduce_ex__(4)
    try:
        handlers = {number: _of_trial(handler) for number, handler in dict(state["handlers"]).items()}
    except Exception:
        # Another loguru.
        return NotImplemented
    state = {**state, "handlers": {number: handler for number, handler in handlers.items() if handler is not None}}
    return make, args, state, *rest


def _of_trial(handler: Any) -> Any:
    """What a trial has for a handler of loguru's; None if nothing."""
    sink = handler._sink
    kind = type(sink).__name__
    if kind != "CallableSink" and not (kind == "StreamSink" and _name(sink._stream)):
        return None
    if not handler._enqueue:
        return handler
    made = object.__new__(type(handler))
    vars(made).update(vars(handler), _enqueue=False, **dict.fromkeys(_OF_QUEUE))
    return made
