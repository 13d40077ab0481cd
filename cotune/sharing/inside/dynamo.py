"""torch's compiler is loaded by who compiles, not by whoever makes a step.

Every optimizer imports `torch._dynamo`, which takes longer than anything else at the start of a lane but torch itself
(1.5 s and 75 MB), in order to tell a compiler that seldom is there what it should not look at. The little that is asked
of it for that is answered here, without it.
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

NAME = "torch._dynamo"
# Whom `_hide` may answer, and what is kept of the answer there.
_ASKS = "torch._compile"
_KEPT = "__dynamo_disable"


class _Deferred(ModuleType):
    """The module until it is loaded, which is when anything else is asked of it than what optimizers ask.

    Attributes:
        hidden: What the compiler would have been told not to look at.
        during: Makes what surrounds the loading.
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
        # Who looks through all modules for something, as pickle does, is not to have this one loaded.
        if name not in _names(str(self.__file__)):
            raise AttributeError(f"module {NAME!r} has no attribute {name!r}")
        with self._lock:
            if name in vars(self):
                return vars(self)[name]
        # By its class, which another thread may have changed by now.
        _Deferred.load(self)
        if isinstance(self, _Deferred) and name not in vars(self):
            raise AttributeError(f"module {NAME!r}, which is being imported, has no attribute {name!r} yet")
        return getattr(self, name)

    def load(self) -> None:
        """Imports it, as Python imports anything, so that threads wait for each other as they ever do."""
        with self._lock:
            if not self._is_wanted:
                self._is_wanted = True
                # Before anything else: who imports a module from below it, and so holds its lock, is not to wait here.
                self.__path__ = self._real.submodule_search_locations or []
                sys.modules.pop(NAME, None)
        try:
            importlib.import_module(NAME)
        except BaseException:
            # For the next one who wants it.
            with self._lock:
                vars(self).pop("__path__", None)
                sys.modules.setdefault(NAME, self)
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
            # It is asked for again, and hidden for good.
            with contextlib.suppress(AttributeError):
                delattr(function, _KEPT)
        self.__spec__ = self._real
        self.__class__ = ModuleType  # type: ignore[assignment]


class _Finder(MetaPathFinder):
    """Has the deferred module loaded into the object that stands for it, and what it has imported by then only once."""

    def __init__(self, module: _Deferred) -> None:
        self._module = module

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if target is not None:
            # It is reloaded.
            return None
        if fullname == NAME and isinstance(self._module, _Deferred):
            # Where its modules are it has noted by now.
            return ModuleSpec(NAME, cast(Any, self._module), origin=self._module.__file__, is_package=True)
        there = sys.modules.get(fullname) if fullname.startswith(NAME + ".") else None
        return ModuleSpec(fullname, _There(there)) if there is not None else None


class _There(Loader):
    """Gives a module that the one above it has imported, when Python had already begun to look for it."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, getattr(module, "__spec__", None)

    def create_module(self, _spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        # As Python does: a module may refuse it.
        with contextlib.suppress(AttributeError):
            module.__spec__ = self._spec


def defer_dynamo(during: Callable[[], AbstractContextManager[object]] = nullcontext) -> None:
    """Has `torch._dynamo` loaded at its first use, where torch is there and it is not.

    It is in its place at once, and the same object later.

    Args:
        during: Makes what surrounds the loading.
    """
    torch = sys.modules.get("torch")
    module = sys.modules.get(NAME)
    if torch is not None and module is None and _ASKS in sys.modules:
        spec = importlib.util.find_spec(NAME)
        if spec is None or spec.loader is None or not str(spec.origin).endswith("__init__.py"):
            return
        module = _Deferred(NAME, spec)
        sys.meta_path.insert(0, _Finder(module))
        sys.modules[NAME] = vars(torch)[NAME.rpartition(".")[2]] = module
    if isinstance(module, _Deferred):
        module.during = during


def dynamo_if_loaded() -> ModuleType | None:
    """The module, where it has been loaded."""
    module = sys.modules.get(NAME)
    return None if isinstance(module, _Deferred) else module


def _break_nothing(msg: str = "") -> None:
    """Stands for `graph_break`, which only says something to a compiler."""


def _hide(fn: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Stands for `disable`, as torch itself calls it at the first call of what it wants hidden from the compiler."""
    module: Any = sys.modules[NAME]
    if isinstance(module, _Deferred):
        if sys._getframe(1).f_globals.get("__name__") == _ASKS:
            module.hidden.append(fn)
            return fn
        # Somebody else's, to whom it makes a difference.
        _Deferred.load(module)
    return module.disable(fn, *args, **kwargs)


@functools.cache
def _names(file: str) -> frozenset[str]:
    """What there is in a package once it is loaded, by its source and the modules beside it."""
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
