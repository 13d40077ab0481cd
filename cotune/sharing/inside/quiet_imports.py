"""Imports take no random numbers from a trial.

Some modules draw or seed when they are imported (`rich` draws from `random`). Only the trial that imports one first
would notice, for later ones find it loaded: what a trial computes would depend on which trials ran in its lane before.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType

from cotune.script.installed import found_behind

_OF_IMPORTS = "<frozen importlib._bootstrap>"


def quiet_imports(quiet: Callable[[], AbstractContextManager[object]]) -> None:
    """Makes every import of a module that is not loaded run within `quiet()`, with the imports it causes."""
    sys.meta_path.insert(0, _QuietImports(quiet))


class _QuietImports(MetaPathFinder):
    """A finder that leaves finding to the others, and wraps the execution of the outermost module."""

    def __init__(self, quiet: Callable[[], AbstractContextManager[object]]) -> None:
        self._quiet = quiet
        self._thread = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        thread = self._thread
        if hasattr(thread, "is_busy"):
            return None
        spec = found_behind(self, fullname, path, target)
        if spec is None or not isinstance(spec.loader, SourceFileLoader):
            return spec
        loader, run = spec.loader, spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            # The loader stays with the module, and may be pickled.
            vars(loader).pop("exec_module", None)
            if hasattr(thread, "is_busy"):
                run(module)
                return
            thread.is_busy = True
            try:
                with self._quiet():
                    run(module)
            finally:
                del thread.is_busy

        # What a module warns of as it is imported is told of the line that imports it, and tracebacks of what it raises
        # begin in it: Python leaves out the frames of its own import system, which it knows by this name.
        exec_module.__code__ = exec_module.__code__.replace(co_filename=_OF_IMPORTS)
        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
