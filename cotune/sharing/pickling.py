"""Sending the trainable to other processes, and knowing what it will import there."""

from __future__ import annotations

import importlib.util
import pickletools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import cloudpickle

from cotune.errors import NotPicklable


@dataclass(frozen=True, slots=True)
class Packed:
    """A trainable on its way to lanes.

    Attributes:
        blob: The trainable, pickled.
        modules: What a zygote imports for it.
    """

    blob: bytes
    modules: tuple[str, ...]


def pack(trainable: Any) -> Packed:
    """Packs a trainable for lanes.

    Raises:
        NotPicklable: It holds something that cannot leave this process.
    """
    blob = dumps(trainable, "the trainable")
    return Packed(blob, tuple(modules_to_preload(blob, trainable)))


def dumps(value: Any, what: str) -> bytes:
    """Pickles by value what other processes cannot import.

    Raises:
        NotPicklable: It holds something that cannot leave this process.
    """
    module = _unimportable_module(value)
    if module is not None:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(value))
    except Exception as error:
        raise NotPicklable(
            f"{what} cannot be sent to a lane process: {type(error).__name__}: {error}",
            hint="locks, open files, sockets, generators and CUDA contexts cannot travel: create them inside the "
            "trainable, or once per lane with cotune.shared()",
        ) from error
    finally:
        if module is not None:
            cloudpickle.unregister_pickle_by_value(module)


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


def modules_to_preload(blob: bytes, trainable: Any, *, torch_if_loaded: bool = True) -> list[str]:
    """Installed modules that the trainable uses, so that the zygote can import them once for all lanes.

    A guess from the names in its pickle and in its module: one too many costs little, one too few is imported by
    the trial itself. Only what this process has loaded counts, and torch wherever it is named.

    Args:
        blob: The pickled trainable.
        trainable: The trainable.
        torch_if_loaded: Whether a torch that this process has loaded counts as used, if it is not named.
    """
    names = {*_strings(blob), *_names_used(getattr(trainable, "func", trainable), set())}
    preload = {name for name in names if name in sys.modules and _is_installed(sys.modules[name])}
    uses_torch = any(name == "torch" or name.startswith("torch.") for name in names)
    uses_torch = uses_torch or (torch_if_loaded and "torch" in sys.modules)
    if uses_torch and importlib.util.find_spec("torch") is not None:
        # The first optimizer imports torch._dynamo: 0.9 s and 110 MB in every lane, unless it is there already.
        preload |= {"torch", "torch._dynamo", "torch.utils.data"}
    return ["numpy", "numpy.random", "cloudpickle", "cotune.sharing.host", *sorted(preload)]


def _strings(blob: bytes) -> Iterator[str]:
    try:
        for _, argument, _ in pickletools.genops(blob):
            if isinstance(argument, str) and len(argument) < 200:
                yield from argument.split()
    except ValueError:
        return


def _names_used(value: Any, seen: set[int]) -> Iterator[str]:
    """Names in the code of a function or class, and of those of the user's own that it uses, in whatever module."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, type):
        for attribute in vars(value).values():
            yield from _names_used(getattr(attribute, "__func__", attribute), seen)
    elif isinstance(value, ModuleType):
        yield value.__name__
    elif isinstance(value, MethodType):
        yield from _names_used(value.__func__, seen)
    elif isinstance(value, FunctionType):
        names = set(_names_in(value.__code__))
        yield from names
        used = [value.__globals__[name] for name in names if name in value.__globals__]
        used += [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
        used += [vars(m)[n] for m in used if isinstance(m, ModuleType) and _is_own(m) for n in names if n in vars(m)]
        for other in used:
            module = sys.modules.get(getattr(other, "__module__", None) or "")
            if isinstance(other, ModuleType) or module is None or _is_own(module):
                yield from _names_used(other, seen)
            else:
                yield module.__name__


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _is_own(module: ModuleType) -> bool:
    """Whether it is neither installed nor part of Python."""
    file = getattr(module, "__file__", None)
    return file is not None and not file.startswith((sys.prefix, sys.base_prefix)) and "-packages" not in file


def _is_installed(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return (
        file is not None
        and ("site-packages" in file or "dist-packages" in file)
        and not module.__name__.startswith(("ray", "cotune", "pytest", "_pytest", "IPython", "ipykernel", "optuna"))
    )
