"""Settings of Python, numpy and torch, by name, and how those that a script has made reach its trials.

A script sets torch's default dtype or ignores warnings once, at its top, and means its trials, too. So what the script
has set travels with it (here); what a trial sets is its own, and swapped when the turn changes (`inside/context.py`);
what modules set when trials import them stays in the lane (`inside/import_settings.py`).
"""

from __future__ import annotations

import contextlib
import csv
import importlib
import pickle
import socket
import sys
import warnings
from collections.abc import Mapping
from functools import partial
from importlib.machinery import ModuleSpec
from typing import Any

from cotune.script.compiler_settings import compiler_settings
from cotune.script.script_logging import levels, loggers_of_script, set_levels, set_up
from cotune.script.torch_flags import Setting, torch_flags

_LOGGERS = "loggers"
# The least double above 0.
_LEAST = 5e-324
# What the script has set, pickled: in a lane not all that it needs is imported yet.
_script: dict[str, bytes] = {}
_come: set[str] = set()


def of_script() -> dict[str, bytes]:
    """What is set in this process and thread, as far as it can be pickled; for `take_over` in another process."""
    found = {}
    for name, (get, _) in (_of_process() | of_thread()).items():
        with contextlib.suppress(Exception):
            found[name] = pickle.dumps(get())
    return found | {_LOGGERS: pickle.dumps(loggers_of_script())}


def take_over(script: Mapping[str, bytes]) -> None:
    """Sets what `of_script` told, in this process; threads have settings of their own, see `take_over_in_thread`."""
    _script.update(script)
    _come.update(script)
    _take_over(_of_process())


def has_come(name: str) -> bool:
    """Whether it was told how a script has set this."""
    return name in _come


def take_over_torch(*, on_gpu: bool) -> None:
    """Sets what was told of torch, for a thread that has just imported it."""
    _take_over(_of_torch() | _of_libraries() | _device(on_gpu))


def take_over_in_thread(*, on_gpu: bool) -> None:
    """Sets in this new thread what the script's thread had.

    Args:
        on_gpu: Whether this process may use a GPU.
    """
    for name in _take_over(_of_libraries() | _device(on_gpu)):
        # So will later threads have it.
        del _script[name]


def take_over_compiler(module: str) -> None:
    """Sets what the script had set in a module of torch's compiler, for a thread that has just imported it."""
    _take_over({module: compiler_settings()[module]})


def take_over_loggers() -> None:
    """Sets up the script's loggers, once the modules that the trainable needs are imported, which may do so too."""
    if _LOGGERS in _script:
        set_up(pickle.loads(_script[_LOGGERS]))


def _take_over(settings: Mapping[str, Setting]) -> list[str]:
    """Sets them as the script has; returns those that were so already."""
    found = []
    for name, (get, put) in settings.items():
        if name in _script:
            # Another version, such as that of another node, may refuse a value.
            with contextlib.suppress(Exception):
                # Read just before it is set: setting one may change another.
                if get() == (value := pickle.loads(_script[name])):
                    found.append(name)
                else:
                    put(value)
    return found


def _of_process() -> dict[str, Setting]:
    found: dict[str, Setting] = {"filters of warnings": (_filters, _set_filters), "script": (_file, _set_file)}
    found["levels of loggers"] = levels, set_levels
    return found | OF_PYTHON | _of_torch()


def of_thread() -> dict[str, Setting]:
    """Settings that each thread has for itself."""
    return _of_libraries() | _device(True)


def _limit_tracebacks(most: int | None) -> None:
    if most is not None:
        sys.tracebacklimit = most
    elif hasattr(sys, "tracebacklimit"):
        del sys.tracebacklimit


OF_PYTHON: dict[str, Setting] = {
    "recursion": (sys.getrecursionlimit, sys.setrecursionlimit),
    "digits": (sys.get_int_max_str_digits, sys.set_int_max_str_digits),
    "timeout": (socket.getdefaulttimeout, socket.setdefaulttimeout),
    "fields of csv": (csv.field_size_limit, csv.field_size_limit),
    "tracebacks": (lambda: getattr(sys, "tracebacklimit", None), _limit_tracebacks),
}


def _of_libraries() -> dict[str, Setting]:
    found: dict[str, Setting] = {"decimal": (_decimal_context, _set_decimal_context)}
    numpy: Any = sys.modules.get("numpy")
    if hasattr(numpy, "set_printoptions"):
        found["errors of numpy"] = numpy.geterr, lambda value: numpy.seterr(**value)
        found["numpy's text"] = numpy.get_printoptions, lambda value: numpy.set_printoptions(**value)
    sklearn: Any = sys.modules.get("sklearn")
    if hasattr(sklearn, "set_config"):
        found["sklearn"] = sklearn.get_config, lambda value: sklearn.set_config(**value)
    keras: Any = sys.modules.get("keras")
    if hasattr(getattr(keras, "config", None), "set_dtype_policy"):
        found["keras"] = keras.config.dtype_policy, keras.config.set_dtype_policy
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "set_flush_denormal"):
        found["denormals"] = _flushes_denormals, torch.set_flush_denormal
        found["grad"] = torch.is_grad_enabled, torch.set_grad_enabled
    return found | compiler_settings()


def _decimal_context() -> tuple[Any, ...] | None:
    """The thread's context of `decimal`; None if it is Python's, for which that need not be loaded."""
    decimal: Any = sys.modules.get("decimal")
    if not hasattr(decimal, "getcontext"):
        return None
    now = _parts(decimal.getcontext())
    return now if now != _parts(decimal.DefaultContext) else None


def _parts(context: Any) -> tuple[Any, ...]:
    traps = tuple(signal.__name__ for signal, is_trapped in context.traps.items() if is_trapped)
    return (*map(context.__getattribute__, ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")), traps)


def _set_decimal_context(context: tuple[Any, ...] | None) -> None:
    if context is not None:
        decimal = importlib.import_module("decimal")
        *parts, traps = context
        decimal.setcontext(decimal.Context(*parts, traps=[getattr(decimal, name) for name in traps]))


def _flushes_denormals() -> bool:
    """Whether this thread's processor takes numbers too small for full precision for 0."""
    return _LEAST * 1.0 == 0.0


def _device(on_gpu: bool) -> dict[str, Setting]:
    torch: Any = sys.modules.get("torch")
    if not on_gpu or not hasattr(torch, "set_default_device"):
        return {}
    return {"device": (partial(_default_device, torch), torch.set_default_device)}


def _default_device(torch: Any) -> str | None:
    """The kind of torch's default device; None if none has been set."""
    # torch.get_default_device() would start CUDA.
    context = getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)
    return context.device.type if context is not None else None


def _of_torch() -> dict[str, Setting]:
    torch = sys.modules.get("torch")
    # It may be half imported, or a stand-in.
    with contextlib.suppress(Exception):
        return torch_flags(torch) if hasattr(torch, "default_generator") else {}
    return {}


def _file() -> str | None:
    return getattr(sys.modules["__main__"], "__file__", None)


def _set_file(file: str | None) -> None:
    """Lets `inspect.getsource` find the script's classes, for which it asks the main module."""
    main = sys.modules["__main__"]
    main.__file__ = file
    # Or multiprocessing would run the file in the processes that it spawns.
    main.__spec__ = ModuleSpec("__main__", None)


def _filters() -> list[tuple[Any, ...]]:
    """The filters of warnings, with their categories by name: loading one must import nothing.

    Without those that make errors of warnings: what lanes import, and the script has imported before it set them, would
    fail.
    """
    filters: Any = warnings.filters
    return [
        (action, message, (category.__module__, category.__qualname__), module, line)
        for action, message, category, module, line in filters
        if action != "error"
    ]


def _set_filters(wanted: list[tuple[Any, ...]]) -> None:
    found = []
    for action, message, (home, name), module, line in wanted:
        category = getattr(sys.modules.get(home), name, None)
        if category is not None:
            found.append((action, message, category, module, line))
    warnings.filters[:] = found  # type: ignore[index]
    filters_changed()


def filters_changed() -> None:
    """Makes Python forget which warnings it has shown under the previous filters."""
    with warnings.catch_warnings():
        pass
