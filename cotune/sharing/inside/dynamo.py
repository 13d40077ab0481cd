"""Loads torch's compiler when a trial compiles, not when an optimizer is made.

Every optimizer imports `torch._dynamo`, only to mark functions that the compiler, if there is one, must skip. At the
start of a lane that takes longer than anything but torch itself (1.5 s and 75 MB). This module answers these few calls
without loading it.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from cotune.script.compiler_settings import COMPILER

# The module whose calls `_hide` answers, and the attribute in which it caches the answer.
_ASKS = "torch._compile"
_KEPT = "__dynamo_disable"


class _Deferred(ModuleType):
    """Stands for the module until any attribute is used that optimizers do not need, which loads it.

    Attributes:
        hidden: Functions that were to be hidden from the compiler.
        during: Makes a context manager for the loading.
    """

    def __init__(self, name: str, spec: ModuleSpec) -> None:
        super().__init__(name)
        self.hidden: list[Any] = []
        self.during: Callable[[], AbstractContextManager[object]] = nullcontext
        self._real = spec
        self._lock = threading.Lock()
        self._is_wanted = False
        vars(self).update(__file__=spec.origin, __spec__=spec, __loader__=spec.loader, __package__=name)
        vars(self).update(graph_break=_break_nothing, disable=_hide)

    def __getattr__(self, name: str) -> Any:
        # Code that searches all modules for a name, as pickle does, must not load this one.
        if name not in _names(str(self.__file__)):
            raise AttributeError(f"module {COMPILER!r} has no attribute {name!r}")
        with self._lock:
            if name in vars(self):
                return vars(self)[name]
        # Not self.load(): another thread may have changed self.__class__ by now.
        _Deferred.load(self)
        if isinstance(self, _Deferred) and name not in vars(self):
            raise AttributeError(f"module {COMPILER!r}, which is being imported, has no attribute {name!r} yet")
        return getattr(self, name)

    def load(self) -> None:
        """Loads the module by a normal import, so that Python's import locks order the threads."""
        with self._lock:
            if not self._is_wanted:
                self._is_wanted = True
                # First, so that a thread that imports a submodule, and so holds its import lock, need not wait here.
                self.__path__ = self._real.submodule_search_locations or []
                sys.modules.pop(COMPILER, None)
        try:
            importlib.import_module(COMPILER)
        except BaseException:
            # The next use tries again.
            with self._lock:
                vars(self).pop("__path__", None)
                sys.modules.setdefault(COMPILER, self)
                self._is_wanted = False
            raise

    # ---- as the loader of itself

    def create_module(self, _spec: ModuleSpec) -> ModuleType:
        return self

    def exec_module(self, _module: ModuleType) -> None:
        assert self._real.loader is not None
        with self.during():
            self._real.loader.exec_module(self)
        for function in self.hidden:
            # Without the cached answer torch asks again, and the compiler really hides the function.
            with contextlib.suppress(AttributeError):
                delattr(function, _KEPT)
        self.__spec__ = self._real
        self.__class__ = ModuleType  # type: ignore[assignment]


class _Finder(MetaPathFinder):
    """Makes Python load the module into its `_Deferred` object, and submodules that are there already only once."""

    def __init__(self, module: _Deferred) -> None:
        self._module = module

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if target is not None:
            # importlib.reload().
            return None
        if fullname == COMPILER and isinstance(self._module, _Deferred):
            # No submodule_search_locations: load() has set __path__.
            return ModuleSpec(COMPILER, cast(Any, self._module), origin=self._module.__file__, is_package=True)
        there = sys.modules.get(fullname) if fullname.startswith(COMPILER + ".") else None
        return ModuleSpec(fullname, _There(there)) if there is not None else None


class _There(Loader):
    """Returns a submodule that its package has imported after Python had begun to look for it."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, getattr(module, "__spec__", None)

    def create_module(self, _spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        # Python ignores it, too, if a module refuses the attribute.
        with contextlib.suppress(AttributeError):
            module.__spec__ = self._spec


def defer_dynamo(during: Callable[[], AbstractContextManager[object]] = nullcontext) -> None:
    """Defers the loading of `torch._dynamo` to its first use, if torch is loaded and `torch._dynamo` is not.

    The module object is in `sys.modules` at once, and stays the same when it is loaded.

    Args:
        during: Makes a context manager for the loading.
    """
    torch = sys.modules.get("torch")
    module = sys.modules.get(COMPILER)
    if torch is not None and module is None and _ASKS in sys.modules:
        spec = importlib.util.find_spec(COMPILER)
        if spec is None or spec.loader is None or not str(spec.origin).endswith("__init__.py"):
            return
        module = _Deferred(COMPILER, spec)
        sys.meta_path.insert(0, _Finder(module))
        sys.modules[COMPILER] = vars(torch)[COMPILER.rpartition(".")[2]] = module
    if isinstance(module, _Deferred):
        module.during = during


def dynamo_if_loaded() -> ModuleType | None:
    """`torch._dynamo`; None if it is not loaded."""
    module = sys.modules.get(COMPILER)
    return None if isinstance(module, _Deferred) else module


def _break_nothing(msg: str = "") -> None:
    """Stands for `graph_break`, which has no effect outside the compiler."""


def _hide(fn: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Stands for `disable`, which torch calls at the first call of each function to be hidden from the compiler."""
    module: Any = sys.modules[COMPILER]
    if isinstance(module, _Deferred):
        if sys._getframe(1).f_globals.get("__name__") == _ASKS:
            module.hidden.append(fn)
            return fn
        # A call from elsewhere needs the real function.
        _Deferred.load(module)
    return module.disable(fn, *args, **kwargs)


@functools.cache
def _names(file: str) -> frozenset[str]:
    """The names that a package will have once it is loaded, from its source and the files beside it."""
    source = Path(file)
    beside = (path.stem for path in source.parent.iterdir())
    return frozenset({"__path__", *beside, *_defined(ast.parse(source.read_bytes()).body)})


def _defined(statements: list[ast.stmt]) -> Iterator[str]:
    for statement in statements:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
        elif isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            yield statement.name
        elif isinstance(statement, ast.Assign):
            yield from (target.id for target in statement.targets if isinstance(target, ast.Name))
        elif isinstance(statement, (ast.If, ast.Try)):
            yield from _defined([*statement.body, *statement.orelse])
