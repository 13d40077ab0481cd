"""Pickles functions and classes of the script that a library has wrapped, so that they stay wrapped elsewhere.

What such wrappers say about themselves is of no use there: that they are what they wrap, or the name they have in the
script.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import importlib
import pickle
import sys
from types import FunctionType
from typing import Any

from cotune.script.class_hooks import is_found_by_name

# Of pydantic's `validate_call`.
_VALIDATED = ("pydantic._internal._validate_call", "ValidateCallWrapper")


def reduced(obj: Any) -> Any:
    """What `reducer_override` returns for a wrapper; `NotImplemented` for any other object.

    A user's function wrapped by `functools.cache` gets an empty cache there. A function's `pydantic.validate_call` is
    made anew, since it holds all variables of the script.
    """
    is_plain = issubclass(type(obj), (FunctionType, type))
    if isinstance(obj, (FunctionType, type)) and not is_plain:
        return _posing(obj)
    if isinstance(obj, functools._lru_cache_wrapper) and not is_found_by_name(obj):
        return _cached, (obj.__wrapped__, obj.cache_parameters()), dict(vars(obj))
    if isinstance(obj, contextlib._GeneratorContextManagerBase) and hasattr(obj, "func"):
        # A decorator made of a context manager's function. One that was entered has no `func` any more.
        return type(obj), (obj.func, obj.args, obj.kwds)
    if (type(obj).__module__, type(obj).__name__) == _VALIDATED and hasattr(obj, "config_wrapper"):
        return type(obj), (obj.function, obj.config_wrapper.config_dict, obj.validate_return, None)
    is_wrapper = not is_plain and "__wrapped__" in getattr(obj, "__dict__", ()) and not is_found_by_name(obj)
    if is_wrapper and isinstance(obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL), str):
        # As those of cachetools: they would be pickled by their name in the script.
        return copyreg.__newobj__, (type(obj),), dict(vars(obj))  # type: ignore[attr-defined]
    return NotImplemented


def _posing(obj: Any) -> Any:
    """A wrapper that says it is what it wraps, as those of wrapt do; cloudpickle would send that alone."""
    if is_found_by_name(obj):
        return obj.__qualname__
    wrapt: Any = sys.modules.get("wrapt")
    if wrapt is not None and type(obj) is wrapt.FunctionWrapper:
        return _wrapper, (obj.__wrapped__, obj._self_wrapper, obj._self_enabled)
    return obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL)


def _wrapper(*args: Any) -> Any:
    # Its class may be one of a module that is not found by its name.
    made: Any = importlib.import_module("wrapt")
    return made.FunctionWrapper(*args)


def _cached(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)
