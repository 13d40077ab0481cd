"""torch's compiler is loaded by who compiles, not by whoever makes a step.

Every optimizer imports `torch._dynamo`, which takes longer than anything else at the start of a lane but torch itself
(1.5 s and 75 MB), in order to tell a compiler that seldom is there what it should not look at. The little that is asked
of it for that is answered here, without it.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

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

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.hidden: list[Any] = []
        self.during: Callable[[], AbstractContextManager[object]] = nullcontext
        self._loading = threading.RLock()
        self._is_loading = False

    def __getattr__(self, name: str) -> Any:
        # Who looks through all modules for something, as pickle does, is not to have this one loaded.
        if name not in _names(Path(str(self.__file__))):
            raise AttributeError(f"module {NAME!r} has no attribute {name!r}")
        with self._loading:
            if self._is_loading:
                raise AttributeError(f"module {NAME!r}, which is being imported, has no attribute {name!r} yet")
            if isinstance(self, _Deferred):
                self._load()
        return getattr(self, name)

    def _load(self) -> None:
        spec = self.__spec__
        assert spec is not None
        assert spec.loader is not None
        self._is_loading = True
        try:
            self.__path__ = spec.submodule_search_locations or []
            with self.during():
                spec.loader.exec_module(self)
        except BaseException:
            del self.__path__
            raise
        finally:
            self._is_loading = False
        for function in self.hidden:
            # It is asked for again, and hidden for good.
            with contextlib.suppress(AttributeError):
                delattr(function, _KEPT)
        self.__class__ = ModuleType  # type: ignore[assignment]
        for name in ("hidden", "during", "_loading", "_is_loading"):
            vars(self).pop(name)


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
        module = _Deferred(NAME)
        vars(module).update(__file__=spec.origin, __spec__=spec, __loader__=spec.loader, __package__=NAME)
        vars(module).update(graph_break=_break_nothing, disable=_hide)
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
        # Somebody else's, to whom it makes a difference. Whatever is not here yet has it loaded.
        _ = module.reset
    return module.disable(fn, *args, **kwargs)


def _names(source: Path) -> frozenset[str]:
    """What there is in a package once it is loaded, by its source and the modules beside it."""
    if not _known:
        _known.update(_defined(ast.parse(source.read_bytes()).body))
        _known.update(path.stem for path in source.parent.iterdir())
        _known.add("__path__")
    return frozenset(_known)


_known: set[str] = set()


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
