"""Sending the trainable to other processes."""

from __future__ import annotations

import importlib
import io
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import cloudpickle

from cotune.errors import NotPicklable
from cotune.sharing.preload import TORCH, modules_to_preload


@dataclass(frozen=True, slots=True)
class Packed:
    """A trainable on its way to lanes.

    Attributes:
        blob: The trainable, pickled.
        modules: What a zygote imports for it.
        rehearses: Whether it may be rehearsed.
    """

    blob: bytes
    modules: tuple[str, ...]
    rehearses: bool = False


def pack(trainable: Any) -> Packed:
    """Packs a trainable for lanes.

    Raises:
        NotPicklable: It holds something that cannot leave this process.
    """
    blob = dumps(trainable, "the trainable")
    rehearses = isinstance(trainable, type) and callable(getattr(trainable, "rehearse", None))
    modules = modules_to_preload(blob, trainable)
    if rehearses:
        modules += [name for name in TORCH if name not in modules]
    return Packed(blob, tuple(modules), rehearses)


def dumps(value: Any, what: str) -> bytes:
    """Pickles by value what other processes cannot import.

    Raises:
        NotPicklable: It holds something that cannot leave this process.
    """
    module = _unimportable_module(value)
    if module is not None:
        cloudpickle.register_pickle_by_value(module)
    try:
        buffer = io.BytesIO()
        _Pickler(buffer).dump(value)
        return buffer.getvalue()
    except Exception as error:
        raise NotPicklable(
            f"{what} cannot be sent to a lane process: {type(error).__name__}: {error}",
            hint="locks, open files, sockets, generators and CUDA contexts cannot travel: create them inside the "
            "trainable, or once per lane with cotune.shared()",
        ) from error
    finally:
        if module is not None:
            cloudpickle.unregister_pickle_by_value(module)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Sends modules of a class of their own by name, as cloudpickle does others; `optuna.integration` is one."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, ModuleType) and type(obj) is not ModuleType:
            return importlib.import_module, (obj.__name__,)
        return super().reducer_override(obj)


def _unimportable_module(value: Any) -> ModuleType | None:
    """The module of `value`, if a fresh process would not find the same one under its name."""
    name = getattr(getattr(value, "func", value), "__module__", None) or type(value).__module__
    module = sys.modules.get(name)
    if module is None or name == "__main__":
        return None
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
