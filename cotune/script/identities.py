"""Identities that pickling loses: objects of which each process has one, and objects whose `__dict__` has other names.

A copy of the generator behind `random.shuffle` would draw the same in every trial, whatever its seed. A copy of the
dictionary that `vars(args)` gave the script would not see what a trial sets in `args`. A copy of argparse's `SUPPRESS`
would be the default of a parser's arguments.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import cloudpickle

# Objects that functions of their module work on, too.
_SINGLE = (
    ("os", "environ"),
    ("random", "_inst"),
    ("numpy.random.mtrand", "_rand"),
    ("torch", "default_generator"),
)
_REDUCERS = "__reduce__", "__reduce_ex__", "__getstate__"
_of_object: list[Any] = [getattr(object, name) for name in _REDUCERS]


def singles() -> dict[int, tuple[ModuleType, str]]:
    """The module and the attribute of each object of which this process has one, by its id."""
    loaded = ((sys.modules.get(module), name) for module, name in _SINGLE)
    return {id(vars(module)[name]): (module, name) for module, name in loaded if module and name in vars(module)}


def reduced(value: Any, singles: Mapping[int, tuple[ModuleType, str]]) -> Any:
    """How to pickle a value, as `Pickler.reducer_override` returns it; NotImplemented if as usual."""
    if id(value) in singles:
        return getattr, singles[id(value)]
    cls = type(value)
    if issubclass(cls, type) or hasattr(cls, "__setstate__"):
        return NotImplemented
    if [getattr(cls, name) for name in _REDUCERS] != _of_object:
        return NotImplemented
    try:
        found: Any = object.__reduce_ex__(value, 4)
        variables = object.__getattribute__(value, "__dict__")
    except Exception:
        # It has none, or cannot be pickled, which the usual way will say.
        return NotImplemented
    if not variables:
        return _sentinel(value)
    if len(found) < 3 or found[2] is not variables:
        return NotImplemented
    padding = (None,) * (5 - len(found))
    if suppressed := [name for name, one in variables.items() if one is argparse.SUPPRESS]:
        named = {name: one for name, one in variables.items() if name not in suppressed}
        return *found[:2], (named, suppressed), *found[3:], *padding, _have_arguments
    return *found, *padding, _have_variables


def _sentinel(value: Any) -> Any:
    """How to pickle an object without a state: by name where its class's module has it, to compare others with it."""
    module = sys.modules.get(type(value).__module__)
    if module is None or module.__name__ in ("__main__", *cloudpickle.list_registry_pickle_by_value()):
        return NotImplemented
    return next(((getattr, (module, name)) for name, one in list(vars(module).items()) if one is value), NotImplemented)


def _have_arguments(value: Any, state: tuple[dict[str, Any], list[str]]) -> None:
    """Gives a part of a parser its variables: argparse asks whether one is its `SUPPRESS`, not whether it is equal."""
    named, suppressed = state
    vars(value).update(named, **dict.fromkeys(suppressed, argparse.SUPPRESS))


def _have_variables(value: Any, variables: dict[str, Any]) -> None:
    object.__setattr__(value, "__dict__", variables)
