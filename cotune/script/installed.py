"""Finds modules without importing them, and tells those that are being imported, installed, or the user's own."""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Modules that lanes do not use, or replace by their own; `__main__` may be a script of an installed package.
_OTHERS = ("ray", "cotune", "pytest", "_pytest", "IPython", "ipykernel", "optuna", "__main__")
# Not everything below `sys.prefix`: that may be /usr, and a user's own code may be in /usr/src.
_PYTHONS = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib", "scripts"))


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


def is_own(module: ModuleType) -> bool:
    """Whether a module is the user's own: neither installed nor part of Python."""
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and is_own_file(file)


def is_own_file(file: str) -> bool:
    """Whether a source file is the user's own."""
    return not file.startswith(_PYTHONS) and not is_of_a_package(file)


def is_installed(module: ModuleType) -> bool:
    """Whether a module is part of an installed package that lanes may use."""
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and is_of_a_package(file) and not is_useless(module.__name__)


def is_useless(name: str) -> bool:
    """Whether lanes do not use a module, or replace it by their own."""
    return name.partition(".")[0] in _OTHERS


def is_of_a_package(file: str) -> bool:
    """Whether a source file is part of an installed package."""
    return "site-packages" in file or "dist-packages" in file
