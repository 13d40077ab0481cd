"""Pickles what other processes cannot import by value, with cloudpickle."""

from __future__ import annotations

import functools
import io
import weakref
from collections.abc import Callable
from enum import Enum
from types import CodeType
from typing import Any

import cloudpickle

# The place of the file's name among the arguments of a code object.
_FILE = 10
# Classes that have all their attributes in this process.
_complete: weakref.WeakSet[type] = weakref.WeakSet()


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A cloudpickle pickler that leaves the classes of the process that loads as they are.

    cloudpickle makes a class once per process. What is loaded later finds that class and sets its attributes again: in
    the driver to copies from a lane, in a lane to what they were when the trial began.
    """

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is CodeType:
            make, args = self.dispatch_table[CodeType](obj)
            # cloudpickle 3.1.3 leaves out the file, by which tracebacks and inspect.getsource() find the source.
            return make, (*args[:_FILE], obj.co_filename, *args[_FILE + 1 :])
        found = super().reducer_override(obj)
        if isinstance(obj, type) and isinstance(found, tuple) and len(found) == 6:
            _complete.add(obj)
            return *found[:5], functools.partial(_complete_class, found[5])
        return found


def dumps(value: Any) -> bytes:
    """Pickles a value; what other processes cannot import is pickled by value."""
    buffer = io.BytesIO()
    Pickler(buffer).dump(value)
    return buffer.getvalue()


def forget_classes() -> None:
    """Has all classes set anew when they are loaded next, for a trial that begins."""
    _complete.clear()


def _complete_class(fill: Callable[[type, Any], Any], cls: type, state: tuple[dict[str, Any], Any]) -> None:
    """Gives a class its attributes, unless it has them.

    Args:
        fill: cloudpickle's function for it.
        cls: The class, just made or found.
        state: Its attributes by name, without its slots; and nothing.
    """
    if cls in _complete:
        return
    if not issubclass(cls, Enum):
        for name, value in list(vars(cls).items()):
            # What an earlier trial has added. A slot is an attribute that knows its class.
            if name not in state[0] and not name.startswith("__") and not hasattr(value, "__objclass__"):
                delattr(cls, name)
    fill(cls, state)
    _complete.add(cls)
