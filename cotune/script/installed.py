"""Finds modules without importing them, and tells those that are being imported."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def spec_of(name: str) -> ModuleSpec | None:
    """The spec of a top-level module; None if none is installed, or the program has put something else in its place."""
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        # ValueError: a module without a spec, such as the stand-ins that tests put into `sys.modules`.
        return None


def loaded_modules() -> list[tuple[str, dict[str, Any]]]:
    """The modules that this process has loaded, and their variables; loads nothing that a module has put off."""
    # Of a copy: while list() makes its tuples, the garbage collector may let another thread import something.
    loaded = sys.modules.copy().items()
    # By type: a library of cffi's, such as cryptography's, says that it is a module, and has no variables.
    modules = [(name, module) for name, module in loaded if issubclass(type(module), ModuleType)]
    # Not by vars(), which asks the module.
    return [(name, object.__getattribute__(module, "__dict__")) for name, module in modules]


def is_unfinished(spec: object) -> bool:
    """Whether the import of the module with this spec has begun and not ended; False without a spec."""
    return bool(getattr(spec, "_initializing", False))


def found_behind(
    finder: object | None, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
) -> ModuleSpec | None:
    """What the finders behind one in `sys.meta_path` say of a module; behind None are all of them.

    A finder that wraps what others find asks only these: Python has asked those in front of it before.
    """
    finders = [None, *sys.meta_path]
    # Another thread may have removed it.
    behind = finders[finders.index(finder) + 1 :] if finder in finders else []
    for other in behind:
        find = getattr(other, "find_spec", None)
        spec: ModuleSpec | None = find(fullname, path, target) if find is not None else None
        if spec is not None:
            return spec
    return None
