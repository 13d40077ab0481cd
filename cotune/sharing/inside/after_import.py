"""Calls a function once a module has been imported, by whichever thread and whenever."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from types import ModuleType

from cotune.script.installed import found_behind, is_unfinished

During = Callable[[], AbstractContextManager[object]]


def after_import(name: str, then: Callable[[ModuleType], None], during: During = nullcontext) -> None:
    """Calls `then` with a module now, or in whichever thread finishes its import later.

    Args:
        name: The module's name.
        then: Called with the module.
        during: Makes a context manager for the import, if that is still to come.
    """
    watcher = _AfterImport(name, then, during)
    # Installed before the check, so that an import which begins in between is seen.
    sys.meta_path.insert(0, watcher)
    if _is_being_imported(name):
        # Another thread may be importing it: wait for that by importing the module itself. Importing parts of it here
        # could deadlock with that thread.
        with suppress(Exception):
            importlib.import_module(name)
    module = sys.modules.get(name)
    if module is not None and not _is_being_imported(name):
        watcher.tell(module)


def _is_being_imported(name: str) -> bool:
    return is_unfinished(getattr(sys.modules.get(name), "__spec__", None))


class _AfterImport(importlib.abc.MetaPathFinder):
    """A finder that calls back when one module has been imported."""

    def __init__(self, name: str, then: Callable[[ModuleType], None], during: During) -> None:
        self._name = name
        self._then = then
        self._during = during

    def tell(self, module: ModuleType) -> None:
        """Calls back, unless an earlier call has done so."""
        try:
            sys.meta_path.remove(self)
        except ValueError:
            return
        self._then(module)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        spec = found_behind(self, fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        run, during = spec.loader.exec_module, self._during

        def exec_module(module: ModuleType) -> None:
            with during():
                run(module)
            # Here and not in find_spec, which is also called merely to see if the module is installed.
            self.tell(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
