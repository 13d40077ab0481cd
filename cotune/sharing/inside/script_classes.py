"""The classes of a user's script, of which each trial has its own."""

from __future__ import annotations

import sys
import weakref
from typing import Any

from cotune import by_value

# cloudpickle's own table of the classes that it has made or pickled, and that of the copy in Ray.
_TABLE = "_DYNAMIC_CLASS_TRACKER_BY_ID"
_LIBRARIES = ("cloudpickle.cloudpickle", "ray.cloudpickle.cloudpickle")


class ScriptClasses:
    """One trial's classes, by cloudpickle's ids.

    A trial that found the class of another would set its methods to functions with its own globals.

    Args:
        inherits: Whether classes of ended trials that are still alive become this one's, set anew: no other trial uses
            them, and objects of `cotune.shared` are instances of the classes of this trial, too.
    """

    def __init__(self, *, inherits: bool) -> None:
        self._inherits = inherits
        self._kept: dict[str, Any] = {}

    def enter(self) -> None:
        if self._inherits:
            self._inherits = False
            by_value.forget_classes()
            return
        for module in _loaded():
            setattr(module, _TABLE, self._kept.get(module.__name__) or weakref.WeakValueDictionary())

    def now(self) -> list[type]:
        """What the trial, which has the turn, has of them by now."""
        return [cls for module in _loaded() for cls in getattr(module, _TABLE).values() if by_value.is_complete(cls)]

    def leave(self) -> None:
        self._kept = {module.__name__: getattr(module, _TABLE) for module in _loaded()}


def _loaded() -> list[Any]:
    modules = [sys.modules.get(name) for name in _LIBRARIES]
    return [module for module in modules if hasattr(module, _TABLE)]
