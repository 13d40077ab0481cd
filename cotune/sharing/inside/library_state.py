"""Process-wide state of libraries, of which each trial has its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

# Tables by module, which are dicts or sets. accelerate: the state that all its objects share, including whether
# gradients are synchronised; matplotlib: the open figures, one of which is the current one; tqdm: the bars that are
# shown, below which a new one goes.
_TABLES: dict[str, Callable[[Any], list[Any]]] = {
    "accelerate.state": lambda module: [
        getattr(module, name)._shared_state for name in ("PartialState", "AcceleratorState", "GradientState")
    ],
    "matplotlib._pylab_helpers": lambda module: [module.Gcf.figs],
    "tqdm.std": lambda module: [module.tqdm._instances],
}


class LibraryState:
    """One trial's content of these tables, empty at first."""

    def __init__(self) -> None:
        self._kept: dict[str, list[Any]] = {}

    def enter(self) -> None:
        for name, tables in _loaded():
            kept = self._kept.get(name) or [()] * len(tables)
            for table, content in zip(tables, kept, strict=True):
                # Refilled in place, since the libraries' objects refer to the tables.
                if table or content:
                    table.clear()
                    table.update(content)

    def leave(self) -> None:
        self._kept = {
            name: [dict(table) if isinstance(table, Mapping) else table.copy() for table in tables]
            for name, tables in _loaded()
        }


def _loaded() -> list[tuple[str, list[Any]]]:
    found = []
    for name, tables in _TABLES.items():
        module = sys.modules.get(name)
        try:
            found += [(name, tables(module))] if module is not None else []
        except AttributeError:
            # Another version of the library, or one whose import is not finished.
            continue
    return found
