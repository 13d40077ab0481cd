"""Finds modules without importing them."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec


def spec_of(name: str) -> ModuleSpec | None:
    """The spec of a top-level module; None if none is installed, or the program has put something else in its place."""
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        # ValueError: a module without a spec, such as the stand-ins that tests put into `sys.modules`.
        return None
