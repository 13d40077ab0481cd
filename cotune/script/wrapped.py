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

from cotune.script.class_hooks import is_by_value, is_found_by_name, under_its_name

_CURRIED = ("toolz.functoolz", "cytoolz.functoolz")

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
    if (type(obj).__module__, type(obj).__name__) == _VALIDATED and hasattr(obj, "config_wrapper"):
        return type(obj), (obj.function, obj.config_wrapper.config_dict, obj.validate_return, None)
    if type(obj).__name__ == "curry" and type(obj).__module__ in _CURRIED and is_by_value(obj.func.__module__):
        # It would be looked for under the function's name.
        attributes = {name: it for name, it in getattr(obj, "__dict__", {}).items() if name[:1] != "_"}
        return _called, (type(obj), (obj.func, *obj.args), obj.keywords), attributes or None
    if isinstance(obj, contextlib._GeneratorContextManagerBase) and hasattr(obj, "func"):
        # It has not been entered, and holds a generator; as a decorator it makes another for every call.
        made_by = under_its_name(obj.func)
        if getattr(made_by, "__wrapped__", None) is obj.func:
            # A copy of the generator function of a module would have copies of the module's variables.
            return _called, (made_by, obj.args, obj.kwds)
        return type(obj), (obj.func, obj.args, obj.kwds)
    is_wrapper = not is_plain and "__wrapped__" in getattr(obj, "__dict__", ()) and not is_found_by_name(obj)
    if is_wrapper and isinstance(obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL), str):
        # As those of cachetools: they would be pickled by their name in the script.
        return copyreg.__newobj__, (type(obj),), dict(vars(obj))  # type: ignore[attr-defined]
    return NotImplemented


def looked_up(obj: Any, classes: list[type]) -> Any:
    """What `reducer_override` returns for a descriptor that is pickled as what a class has under its name.

    One of `classes`, which are being made where it is loaded, has not got it yet. `NotImplemented` for all others.
    """
    kind: Any = type(obj)
    if hasattr(kind, "__set_name__") and hasattr(obj, "__dict__") and kind.__reduce__ is not object.__reduce__:
        found = obj.__reduce__()
        for owner in found[1] if isinstance(found, tuple) else ():
            if any(one is owner for one in classes) and any(it is obj for it in vars(owner).values()):
                # It may keep what the class gives for it, which is looked up there, too.
                given = obj.__get__(None, owner) if hasattr(kind, "__get__") else NotImplemented
                state = {name: None if it is given else it for name, it in vars(obj).items()}
                return copyreg.__newobj__, (kind,), state  # type: ignore[attr-defined]
    return NotImplemented


def _called(function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    return function(*args, **keywords)


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
