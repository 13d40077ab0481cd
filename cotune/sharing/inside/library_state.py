"""Process-wide state of libraries, of which each trial has its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

# Tables by module. accelerate: the state that all its objects share, including whether gradients are synchronised;
# matplotlib: the open figures, one of which is the current one.
_TABLES: dict[str, Callable[[Any], list[dict[Any, Any]]]] = {
    "accelerate.state": lambda module: [
        getattr(module, name)._shared_state for name in ("PartialState", "AcceleratorState", "GradientState")
    ],
    "matplotlib._pylab_helpers": lambda module: [module.Gcf.figs],
}


class LibraryState:
    """One trial's content of these tables, empty at first."""

    def __init__(self) -> None:
        self._kept: dict[str, list[dict[Any, Any]]] = {}

    def enter(self) -> None:
        for name, tables in _loaded():
            kept = self._kept.get(name) or [{} for _ in tables]
            for table, content in zip(tables, kept, strict=True):
                # Refilled in place, since the libraries' objects refer to the tables.
                if table or content:
                    table.clear()
                    table.update(content)

    def leave(self) -> None:
        self._kept = {name: [dict(table) for table in tables] for name, tables in _loaded()}


def _loaded() -> list[tuple[str, list[dict[Any, Any]]]]:
    found = []
    for name, tables in _TABLES.items():
        module = sys.modules.get(name)
        try:
            found += [(name, tables(module))] if module is not None else []
        except AttributeError:
            # Another version of the library, or one whose import is not finished.
            continue
    return found
