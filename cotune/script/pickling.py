"""Pickles trainables and configs for other processes."""

from __future__ import annotations

import contextlib
import functools
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
from cotune.script import by_value, torch_pickling
from cotune.script.compiler_settings import COMPILER
from cotune.script.installed import found_behind, is_unfinished
from cotune.script.module_variables import with_variables
from cotune.script.named import Named, named_by
from cotune.script.own_modules import OwnModule, own_modules
from cotune.script.preload import TORCH, modules_to_preload
from cotune.script.script_imports import script_imports
from cotune.script.settings import of_script
from cotune.trainable import called_by
from cotune.used_code import globals_read_by

# Bytes of a trainable above which there is a warning: loading them takes a tenth of a second at every trial's start.
LARGE = 64 * MIB


@dataclass(frozen=True, slots=True)
class Packed:
    """A trainable, pickled for lanes.

    Attributes:
        blob: The pickled trainable.
        modules: Modules that a zygote imports for it.
        imports: The user's own modules that a lane imports before it loads the trainable.
        own: All of them, by name.
        named: What annotations of the script's classes name.
        settings: What the script has set (`settings.of_script`).
        rehearses: Whether it can be rehearsed.
        series: Pickles configs in the series of `blob`; None outside the driver, or if all configs are plain.
    """

    blob: bytes
    modules: tuple[str, ...]
    imports: tuple[str, ...]
    own: Mapping[str, OwnModule]
    named: Mapping[str, Named]
    settings: Mapping[str, bytes]
    rehearses: bool
    series: Series | None


def pack(trainable: Any, *, plainly: bool = False, what: str = "the trainable", blamed: Any = None) -> Packed:
    """Packs a trainable for lanes.

    Args:
        trainable: The trainable.
        plainly: Whether all configs are plain, so that no series is kept for them (unless rehearsals need it).
        what: Its name in messages.
        blamed: What the user has passed, if the trainable is made from it: its parts are named in messages.

    Raises:
        NotPicklable: The trainable holds something that cannot leave this process.
    """
    series = Series(trainable, what, blamed)
    blob = series.first
    if len(blob) > LARGE:
        warnings.warn(
            f"{what} takes {format_bytes(len(blob))} along{_most_of(trainable, len(blob))}, which every trial loads "
            "anew; data made with cotune.shared() is there once per lane",
            stacklevel=_level(),
        )
    rehearses = isinstance(trainable, type) and callable(getattr(trainable, "rehearse", None))
    modules = modules_to_preload(blob, trainable)
    installed, own = script_imports()
    modules += [name for name in installed if name not in modules]
    if rehearses:
        # Fake tensors use the compiler.
        modules += [name for name in (*TORCH, COMPILER) if name not in modules]
    kept = None if plainly and not rehearses else series
    # A module that travels by value must not be there twice.
    found = {name: module for name, module in own_modules().items() if name != series.module}
    return Packed(blob, tuple(modules), tuple(own), found, series.named(), of_script(), rehearses, kept)


def dumps(value: Any, what: str) -> bytes:
    """Pickles a value; what other processes cannot import is pickled by value.

    Raises:
        NotPicklable: The value holds something that cannot leave this process.
    """
    return Series(value, what).first


class Series:
    """Pickles one object, and then others, each as if it were part of the first.

    Objects that they share are shared again once loaded: a function in the config is the one that the trainable knows.
    `wire.load_series` loads them.

    Args:
        value: The first object.
        what: Its name in error messages.
        blamed: The object whose parts are named in error messages, if not the first.

    Attributes:
        first: The first object, pickled.
        module: Name of the module that travels by value, if one does.

    Raises:
        NotPicklable: The object holds something that cannot leave this process.
    """

    def __init__(self, value: Any, what: str, blamed: Any = None) -> None:
        self._module = _unimportable_module(value)
        self.module = self._module.__name__ if self._module is not None else None
        self._buffer = io.BytesIO()
        self._pickler = _Pickler(self._buffer)
        # What the pickler knows after the first object; copied only when there is another, since it may be a lot.
        self._known: dict[int, Any] | None = None
        told = with_variables(value) if self._module is None else value
        self.first = self._dumps(told, what, value if blamed is None else blamed)
        # Copies: keys are ids, and another object may get the id once a config is gone.
        self._globals = dict(self._pickler.globals_ref)
        self._cells = dict(self._pickler.cells)

    def then(self, value: Any, what: str) -> bytes:
        """Pickles another object, which may refer to parts of the first, and of no other.

        Raises:
            NotPicklable: The object holds something that cannot leave this process.
        """
        pickler = self._pickler
        if self._known is None:
            self._known = pickler.memo.copy()
        pickler.memo, pickler.globals_ref, pickler.cells = self._known, dict(self._globals), dict(self._cells)
        return self._dumps(value, what, value)

    def named(self) -> dict[str, Named]:
        """What annotations of the classes in the first object name, and no code does."""
        return named_by(self._pickler.classes, _dumps_alone)

    def _dumps(self, value: Any, what: str, blamed: Any) -> bytes:
        try:
            with _by_value(self._module) if self._module is not None else contextlib.nullcontext():
                self._pickler.dump(value)
            return self._buffer.getvalue()
        except Exception as error:
            where = " of ".join(reversed([what, *_path_to_blame(blamed)]))
            raise NotPicklable(
                f"{where} cannot be sent to a lane process: {type(error).__name__}: {error}",
                hint="locks, open files, sockets, generators, compiled functions and CUDA contexts cannot travel: "
                "create them in the trial, once per lane with cotune.shared(), or in a module that the script "
                "imports",
            ) from error
        finally:
            self._buffer.seek(0)
            self._buffer.truncate()


def _dumps_alone(value: Any) -> tuple[bytes, list[type]]:
    buffer = io.BytesIO()
    pickler = _Pickler(buffer)
    pickler.dump(value)
    return buffer.getvalue(), pickler.classes


@process_wide
def _by_value(module: ModuleType) -> Iterator[None]:
    """Registers a module for pickling by value within the block; a registration by the user stays."""
    if module.__name__ in cloudpickle.list_registry_pickle_by_value():
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _path_to_blame(value: Any, above: tuple[Any, ...] = ()) -> list[str]:
    """The path of names from a value to the part of it that cannot be pickled; empty if none is found.

    What is above a part cannot be to blame: a function may name itself, or another that names it.
    """
    above = (*above, value)
    for name, part in _parts(value):
        if _is_one_of(above, part):
            continue
        try:
            _Pickler(io.BytesIO()).dump(part)
        except Exception:
            path = _path_to_blame(part, above) if len(above) < 5 else []
            if path or not any(_is_one_of(above, inner) for _, inner in _parts(part)):
                return [repr(name), *path]
    return []


def _is_one_of(values: tuple[Any, ...], value: Any) -> bool:
    return any(value is one for one in values)


def _level() -> int:
    """The `stacklevel` of a warning that the caller issues, at which the user's code is blamed."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "cotune":
        frame, level = frame.f_back, level + 1
    return level


def _most_of(trainable: Any, total: int) -> str:
    """Words that name the array or tensor with more than half of a trainable's bytes; empty if there is none."""
    parts = dict(_parts(trainable))
    for part in list(parts.values()):
        if isinstance(part, FunctionType | MethodType):
            parts.update(_parts(part))
    for name, part in parts.items():
        # nbytes of a sparse tensor raises.
        with contextlib.suppress(Exception):
            if part.nbytes > total // 2:
                return f", most of it {name!r}"
    return ""


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a value that are pickled with it, by name."""
    if isinstance(value, functools.partial):
        yield from value.keywords.items()
        yield from ((f"argument {number}", part) for number, part in enumerate(value.args))
        yield from _parts(value.func)
    elif isinstance(value, MethodType):
        yield from _parts(value.__self__)
    elif type(value) is FunctionType:
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):
                yield name, cell.cell_contents
        names = sorted(globals_read_by(value.__code__))
        yield from ((name, value.__globals__[name]) for name in names if name in value.__globals__)
    elif isinstance(value, Mapping):
        yield from ((str(name), part) for name, part in value.items())
    else:
        # Of a copy: pickling a part may add another to the object, and so may another thread to a module.
        yield from dict(vars(value)).items() if hasattr(value, "__dict__") else ()


class _Pickler(by_value.Pickler):
    """A pickler for trainables and configs.

    It has torch's rules besides (`torch_pickling`). Values of `ray.tune.with_parameters` are sent along, since they may
    be in the object store of a Ray that lanes do not join.
    """

    def reducer_override(self, obj: Any) -> Any:
        if (type(obj).__module__, type(obj).__name__) == ("ray.tune.registry", "_ParameterRegistry"):
            return dict, ({name: obj.get(name) for name in (*obj.to_flush, *obj.references)},)
        found = super().reducer_override(obj)
        return torch_pickling.reduced(obj) if found is NotImplemented else found


def _unimportable_module(value: Any) -> ModuleType | None:
    """The module of `value`, if a fresh process would not find the same one under its name."""
    inner = called_by(value)
    name = getattr(inner, "__module__", None) or type(inner).__module__
    module = sys.modules.get(name)
    if not isinstance(module, ModuleType) or name == "__main__":
        return None
    if is_unfinished(module.__spec__):
        # The module calls us during its import, and would do so again in a process that imports it.
        return module
    try:
        parent = name.rpartition(".")[0]
        if parent and not hasattr(sys.modules.get(parent), "__path__"):
            return module
        # Not importlib.util.find_spec, which answers from sys.modules, even for a module only this process has.
        spec = found_behind(None, name, sys.modules[parent].__path__ if parent else None)
    except (ImportError, ValueError, AttributeError):
        return module
    return module if spec is None or spec.origin != getattr(module, "__file__", spec.origin) else None
