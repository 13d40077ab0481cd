"""Doing something once a module is there, whoever imports it and whenever."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from types import ModuleType

During = Callable[[], AbstractContextManager[object]]


def after_import(name: str, then: Callable[[ModuleType], None], during: During = nullcontext) -> None:
    """Calls `then` with a module now, or as soon as all of it has been imported; the latter by another thread, too.

    Args:
        name: The module's.
        then: Called with it.
        during: Makes what surrounds the import, if that is still to come.
    """
    watcher = _AfterImport(name, then, during)
    # Before it is looked for, so that a thread that begins to import it in between is seen.
    sys.meta_path.insert(0, watcher)
    if _is_being_imported(name):
        # By another thread, perhaps: what that needs of it could not be imported here without locking both out.
        with suppress(Exception):
            importlib.import_module(name)
    module = sys.modules.get(name)
    if module is not None and not _is_being_imported(name):
        watcher.tell(module)


def _is_being_imported(name: str) -> bool:
    return bool(getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls back when one module has been imported."""

    def __init__(self, name: str, then: Callable[[ModuleType], None], during: During) -> None:
        self._name = name
        self._then = then
        self._during = during
        self._looking = False

    def tell(self, module: ModuleType) -> None:
        """The module is there; only the first to say so is heard."""
        try:
            sys.meta_path.remove(self)
        except ValueError:
            return
        self._then(module)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking = False
        if spec is None or spec.loader is None:
            return spec
        run, during = spec.loader.exec_module, self._during

        def exec_module(module: ModuleType) -> None:
            with during():
                run(module)
            # Only now: who merely looks for the module, to see if it is installed, does not import it.
            self.tell(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
