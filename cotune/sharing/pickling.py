"""Sending the trainable to other processes, and knowing what it will import there."""

from __future__ import annotations

import importlib.util
import pickletools
import sys
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any

import cloudpickle

from cotune.errors import NotPicklable


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


def modules_to_preload(blob: bytes, trainable: Any) -> list[str]:
    """Installed modules that the trainable uses, so that the zygote can import them once for all lanes.

    A guess from the names in its pickle and in its module: one too many costs little, one too few is imported by
    the trial itself. Only what this process has loaded counts, and torch wherever it is named.
    """
    names = set(_strings(blob))
    inner = getattr(trainable, "func", trainable)
    module = sys.modules.get(getattr(inner, "__module__", "") or "")
    if module is not None and module.__name__ != "__main__":
        for value in list(vars(module).values()):
            names.add(value.__name__ if isinstance(value, ModuleType) else str(getattr(value, "__module__", "")))
    for value in [inner, *(vars(inner).values() if isinstance(inner, type) else ())]:
        names.update(_names_in(getattr(value, "__code__", None)))
    preload = {name for name in names if name in sys.modules and _is_installed(sys.modules[name])}
    uses_torch = any(name == "torch" or name.startswith("torch.") for name in names) or "torch" in sys.modules
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


def _names_in(code: Any) -> Iterator[str]:
    """Names that a function uses, which are those of the modules it imports among others."""
    if isinstance(code, CodeType):
        yield from code.co_names
        for constant in code.co_consts:
            yield from _names_in(constant)


def _is_installed(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return (
        file is not None
        and ("site-packages" in file or "dist-packages" in file)
        and not module.__name__.startswith(("ray", "cotune", "pytest", "_pytest", "IPython", "ipykernel", "optuna"))
    )
