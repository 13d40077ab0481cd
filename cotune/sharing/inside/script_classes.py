"""The classes of a user's script, of which each trial has its own."""

from __future__ import annotations

import sys
import weakref
from typing import Any

from cotune.script import by_value

# cloudpickle's own table of the classes that it has made or pickled, and that of the copy in Ray.
_TABLE = "_DYNAMIC_CLASS_TRACKER_BY_ID"
_LIBRARIES = ("cloudpickle.cloudpickle", "ray.cloudpickle.cloudpickle")
# By module, the classes that were there when objects of `cotune.shared` were made.
_of_shared: dict[str, Any] = {}


class ScriptClasses:
    """One trial's classes, by cloudpickle's ids.

    A trial that found the class of another would set its methods to functions with its own globals.

    Args:
        inherits: Whether classes of shared objects become this trial's, set anew, so that the objects are instances of
            its classes. There must be no other trial.
    """

    def __init__(self, *, inherits: bool) -> None:
        self._kept: dict[str, Any] = {}
        if inherits:
            by_value.forget_classes()
            self._kept = {name: weakref.WeakValueDictionary(table) for name, table in _of_shared.items()}

    def enter(self) -> None:
        for module in _loaded():
            kept = self._kept.get(module.__name__)
            setattr(module, _TABLE, weakref.WeakValueDictionary() if kept is None else kept)

    def now(self) -> list[type]:
        """What the trial, which has the turn, has of them by now."""
        return [cls for module in _loaded() for cls in getattr(module, _TABLE).values() if by_value.is_complete(cls)]

    def share(self) -> None:
        """Notes that a shared object may be of the classes of this trial, which has the turn."""
        for module in _loaded():
            known = _of_shared.setdefault(module.__name__, weakref.WeakValueDictionary())
            for number, cls in getattr(module, _TABLE).items():
                known.setdefault(number, cls)

    def leave(self) -> None:
        self._kept = {module.__name__: getattr(module, _TABLE) for module in _loaded()}


def _loaded() -> list[Any]:
    modules = [sys.modules.get(name) for name in _LIBRARIES]
    return [module for module in modules if hasattr(module, _TABLE)]
