"""Sending the trainable to other processes."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import io
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any

import cloudpickle

from cotune.demand import MIB, format_bytes
from cotune.errors import NotPicklable
from cotune.process_wide import process_wide
from cotune.sharing.inside.dynamo import NAME as COMPILER
from cotune.sharing.preload import TORCH, modules_to_preload
from cotune.sharing.script_imports import script_imports

# Bytes of a trainable of which a word is said: they take a tenth of a second at the start of every trial.
LARGE = 64 * MIB


@dataclass(frozen=True, slots=True)
class Packed:
    """A trainable on its way to lanes.

    Attributes:
        blob: The trainable, pickled.
        modules: What a zygote imports for it.
        imports: The user's own modules that his script imports, which a lane imports first.
        rehearses: Whether it may be rehearsed.
        series: Continues `blob` with a config; None once it has left the driver.
    """

    blob: bytes
    modules: tuple[str, ...]
    imports: tuple[str, ...] = ()
    rehearses: bool = False
    series: Series | None = None


def pack(trainable: Any, *, plainly: bool = False) -> Packed:
    """Packs a trainable for lanes.

    Args:
        trainable: What is to run.
        plainly: All configs are plain: nothing is kept of the trainable to tell what they share with it.

    Raises:
        NotPicklable: It holds something that cannot leave this process.
    """
    series = Series(trainable, "the trainable")
    blob = series.first
    if len(blob) > LARGE:
        warnings.warn(
            f"the trainable takes {format_bytes(len(blob))} along{_most_of(trainable, len(blob))}, which every trial "
            "loads anew; "
            "data made with cotune.shared() is there once per lane",
            stacklevel=_level(),
        )
    rehearses = isinstance(trainable, type) and callable(getattr(trainable, "rehearse", None))
    modules = modules_to_preload(blob, trainable)
    installed, own = script_imports()
    modules += [name for name in installed if name not in modules]
    if rehearses:
        # Fake tensors ask the compiler.
        modules += [name for name in (*TORCH, COMPILER) if name not in modules]
    return Packed(blob, tuple(modules), tuple(own), rehearses, None if plainly and not rehearses else series)


def dumps(value: Any, what: str) -> bytes:
    """Pickles by value what other processes cannot import.

    Raises:
        NotPicklable: It holds something that cannot leave this process.
    """
    return Series(value, what).first


class Series:
    """Pickles one object, and then others, each as if it were part of the first.

    What several of them hold is one object again where they are loaded: a function that is in the config is the one
    that the trainable knows. To be loaded with `wire.load_series`.

    Args:
        value: The first.
        what: What to call it if that fails.

    Attributes:
        first: The first, pickled.

    Raises:
        NotPicklable: It holds something that cannot leave this process.
    """

    def __init__(self, value: Any, what: str) -> None:
        self._module = _unimportable_module(value)
        self._buffer = io.BytesIO()
        self._pickler = _Pickler(self._buffer)
        self._known: dict[int, Any] = {}
        self.first = self._dumps(value, what)
        self._known = self._pickler.memo.copy()
        # By the identity of namespaces, which may be another's once a config is gone.
        self._globals = dict(self._pickler.globals_ref)

    def then(self, value: Any, what: str) -> bytes:
        """Pickles another object, which holds nothing of the others but the first.

        Raises:
            NotPicklable: It holds something that cannot leave this process.
        """
        self._pickler.memo, self._pickler.globals_ref = self._known, dict(self._globals)
        return self._dumps(value, what)

    def _dumps(self, value: Any, what: str) -> bytes:
        try:
            with _by_value(self._module) if self._module is not None else contextlib.nullcontext():
                self._pickler.dump(value)
            return self._buffer.getvalue()
        except Exception as error:
            where = " of ".join(reversed([what, *_path_to_blame(value)]))
            raise NotPicklable(
                f"{where} cannot be sent to a lane process: {type(error).__name__}: {error}",
                hint="locks, open files, sockets, generators, compiled functions and CUDA contexts cannot travel: "
                "create them inside the trainable, once per lane with cotune.shared(), or in a module that the script "
                "imports",
            ) from error
        finally:
            self._buffer.seek(0)
            self._buffer.truncate()


@process_wide
def _by_value(module: ModuleType) -> Iterator[None]:
    """Makes what a module defines travel by value for a while; what the user has registered stays so."""
    if module.__name__ in cloudpickle.list_registry_pickle_by_value():
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _path_to_blame(value: Any, depth: int = 4) -> list[str]:
    """By which names one comes from a value to what in it cannot be pickled; empty if that is not to be found."""
    for name, part in _parts(value):
        try:
            _Pickler(io.BytesIO()).dump(part)
        except Exception:
            return [repr(name), *(_path_to_blame(part, depth - 1) if depth else ())]
    return []


def _level() -> int:
    """How far up the stack of whoever asks the user's code is."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "cotune":
        frame, level = frame.f_back, level + 1
    return level


def _most_of(trainable: Any, total: int) -> str:
    """Words for an array or tensor that a function takes along, if it is most of that."""
    parts = dict(_parts(trainable))
    for part in list(parts.values()):
        if isinstance(part, FunctionType | MethodType):
            parts.update(_parts(part))
    for name, part in parts.items():
        # A sparse tensor raises.
        with contextlib.suppress(Exception):
            if part.nbytes > total // 2:
                return f", most of it {name!r}"
    return ""


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What a value takes along when it is pickled, by name."""
    if isinstance(value, functools.partial):
        yield from value.keywords.items()
        yield from ((f"argument {number}", part) for number, part in enumerate(value.args))
        yield from _parts(value.func)
    elif isinstance(value, MethodType):
        yield from _parts(value.__self__)
    elif isinstance(value, FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):
                yield name, cell.cell_contents
        yield from ((name, value.__globals__[name]) for name in value.__code__.co_names if name in value.__globals__)
    elif isinstance(value, Mapping):
        yield from ((str(name), part) for name, part in value.items())
    else:
        yield from vars(value).items() if hasattr(value, "__dict__") else ()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Sends modules of a class of their own by name, as cloudpickle does others; `optuna.integration` is one.

    What `functools.cache` has made of a function of the user's it sends as that function with an empty cache.
    cloudpickle leaves that to its name, under which another process finds nothing. A
    `functools.cached_property` has a lock until Python 3.12. What `ray.tune.with_parameters` keeps for a trainable
    may be in the store of a Ray that lanes are no part of.
    """

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, functools._lru_cache_wrapper) and not _is_found_by_name(obj):
            return _cached, (obj.__wrapped__, obj.cache_parameters())
        if type(obj) is functools.cached_property:
            return _cached_property, (obj.func, obj.attrname)
        if isinstance(obj, ModuleType) and type(obj) is not ModuleType:
            return importlib.import_module, (obj.__name__,)
        if (type(obj).__module__, type(obj).__name__) == ("ray.tune.registry", "_ParameterRegistry"):
            return dict, ({name: obj.get(name) for name in (*obj.to_flush, *obj.references)},)
        return super().reducer_override(obj)


def _cached(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _cached_property(function: Any, name: str) -> Any:
    made = functools.cached_property(function)
    made.__set_name__(type(None), name)
    return made


def _is_found_by_name(value: Any) -> bool:
    """Whether another process that imports its module has it there."""
    if value.__module__ == "__main__" or value.__module__ in cloudpickle.list_registry_pickle_by_value():
        return False
    found: Any = sys.modules.get(value.__module__)
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is value


def _unimportable_module(value: Any) -> ModuleType | None:
    """The module of `value`, if a fresh process would not find the same one under its name."""
    name = getattr(getattr(value, "func", value), "__module__", None) or type(value).__module__
    module = sys.modules.get(name)
    if not isinstance(module, ModuleType) or name == "__main__":
        return None
    if getattr(module.__spec__, "_initializing", False):
        # It calls us while it is imported, and would again where it is imported by name.
        return module
    try:
        parent = name.rpartition(".")[0]
        if parent and not hasattr(sys.modules.get(parent), "__path__"):
            return module
        # A private module cache entry would answer from sys.modules: ask the finders.
        spec = None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            path = getattr(sys.modules.get(parent), "__path__", None) if parent else None
            spec = find(name, path) if find else None
            if spec is not None:
                break
    except (ImportError, ValueError, AttributeError):
        return module
    return module if spec is None or spec.origin != getattr(module, "__file__", spec.origin) else None
