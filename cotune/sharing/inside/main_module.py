"""Puts a trainable's part of the user's script into the main module of its lane.

A lane runs no script: what the trainable uses of its script travels in its pickle. `pickle`, and so `torch.save` and
multiprocessing in a trial, looks functions and classes up by name in the main module, where they would be missing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from types import FunctionType, SimpleNamespace
from typing import Any

from cotune.script.named import Named, load


class MainModule:
    """The names that a trainable brought along from its script.

    Args:
        functions: Functions of the script that came with the trainable, in the order in which they were made.
        classes: Classes that came with it, among them those of objects whose class it does not name.
        named: What annotations name.
    """

    def __init__(
        self,
        functions: Sequence[FunctionType],
        classes: Iterable[type] = (),
        named: Mapping[str, Named] | None = None,
    ) -> None:
        self._names: dict[str, Any] = load(named or {})
        # A decorator's function, which has the name of the one behind it, is made before that.
        own: list[type | FunctionType] = [*classes, *reversed(functions)]
        self._names |= {one.__name__: one for one in own if _is_of_script(one)}
        for names in {id(function.__globals__): function.__globals__ for function in functions}.values():
            self._names |= {name: value for name, value in names.items() if not name.startswith("__")}
        for cls in classes:
            if cls.__module__ == "__main__" and "<locals>" not in cls.__qualname__:
                _place(self._names, cls)

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


class _Outer(SimpleNamespace):
    """Stands for a class that has not come with those nested in it."""


def _place(names: dict[str, Any], cls: type) -> None:
    """Has a nested class be found by its name, which begins with that of the outermost."""
    outermost, *inner = cls.__qualname__.split(".")
    if not inner:
        return
    outer = names.setdefault(outermost, _Outer())
    for name in inner[:-1]:
        if isinstance(outer, _Outer):
            vars(outer).setdefault(name, _Outer())
        outer = getattr(outer, name, None)
    if isinstance(outer, _Outer):
        setattr(outer, inner[-1], cls)


def _is_of_script(one: type | FunctionType) -> bool:
    return one.__module__ == "__main__" and one.__qualname__ == one.__name__
