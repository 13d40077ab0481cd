"""Puts a trainable's part of the user's script into the main module of its lane.

A lane runs no script: what the trainable uses of its script travels in its pickle. `pickle`, and so multiprocessing in
a trial, looks such functions up by name in the main module, where they would be missing.
"""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any

from cotune.trainable import unwrapped


class MainModule:
    """The names that a trainable brought along from its script.

    Args:
        trainable: The unpickled trainable.
    """

    def __init__(self, trainable: Any) -> None:
        found = _function_of(trainable)
        self._names: dict[str, Any] = {}
        if found is not None and found.__globals__.get("__name__") == "__main__":
            own = {name: value for name, value in found.__globals__.items() if not name.startswith("__")}
            self._names = {found.__name__: found} | own

    def enter(self) -> None:
        """Puts the names into the main module."""
        if self._names:
            vars(sys.modules["__main__"]).update(self._names)

    def leave(self) -> None:
        """Removes the names, and drops the references to their values."""
        main = vars(sys.modules["__main__"])
        for name, value in self._names.items():
            if main.get(name) is value:
                del main[name]
        self._names = {}


def _function_of(trainable: Any) -> FunctionType | None:
    """A function of the trainable that is the user's own."""
    found = unwrapped(trainable if isinstance(trainable, type) else getattr(trainable, "func", trainable))
    if isinstance(found, FunctionType):
        return found
    return next((value for value in vars(found).values() if isinstance(value, FunctionType)), None)
