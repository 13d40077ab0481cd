"""Puts a trainable's part of the user's script into the main module of its lane.

A lane runs no script: what the trainable uses of its script travels in its pickle. `pickle`, and so `torch.save` and
multiprocessing in a trial, looks functions and classes up by name in the main module, where they would be missing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import Any

from cotune.sharing.named import Named, load
from cotune.trainable import unwrapped


class MainModule:
    """The names that a trainable brought along from its script.

    Args:
        trainable: The unpickled trainable.
        classes: Classes that came with it, among them those of objects whose class it does not name.
        named: What annotations name.
    """

    def __init__(self, trainable: Any, classes: Iterable[type] = (), named: Mapping[str, Named] | None = None) -> None:
        found = _function_of(trainable)
        self._names: dict[str, Any] = load(named or {}) | {cls.__name__: cls for cls in classes if _is_of_script(cls)}
        if found is not None and found.__globals__.get("__name__") == "__main__":
            own = {name: value for name, value in found.__globals__.items() if not name.startswith("__")}
            self._names |= {found.__name__: found} | own

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


def _is_of_script(cls: type) -> bool:
    return cls.__module__ == "__main__" and cls.__qualname__ == cls.__name__


def _function_of(trainable: Any) -> FunctionType | None:
    """A function of the trainable that is the user's own."""
    found = unwrapped(trainable if isinstance(trainable, type) else getattr(trainable, "func", trainable))
    if isinstance(found, FunctionType):
        return found
    return next((value for value in vars(found).values() if isinstance(value, FunctionType)), None)
