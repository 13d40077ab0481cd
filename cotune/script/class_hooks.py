"""Hooks of a script's classes that need not run again where a class that was pickled by value is made.

They are `__init_subclass__` of bases, and `__new__` and `__init__` of metaclasses. What they have done, such as adding
the class to a table of the script, has been pickled, too.
"""

from __future__ import annotations

import contextlib
import dis
import inspect
import sys
from collections.abc import Iterable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle

from cotune.used_code import codes, values_used_by

_HOOK = "__init_subclass__"


@contextlib.contextmanager
def without_superfluous_hooks(bases: Iterable[type]) -> Iterator[None]:
    """Turns off, for the block, each `__init_subclass__` of these bases that need not run for another class."""
    hooks = _superfluous_hooks(bases)
    try:
        for cls in hooks:
            type.__setattr__(cls, _HOOK, classmethod(lambda cls: None))
        yield
    finally:
        for cls, hook in hooks.items():
            type.__setattr__(cls, _HOOK, hook)


def above_superfluous(metaclass: type) -> Any:
    """The first metaclass above those whose `__new__` and `__init__` need not run again; None if all have to run."""
    own = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS
    below = [cls for cls in metaclass.__mro__ if cls in own]
    makers = [vars(cls)[name] for cls in below for name in ("__new__", "__init__") if name in vars(cls)]
    if not makers or not all(_stays_in_script(maker, set()) for maker in makers):
        return None
    return next(cls for cls in metaclass.__mro__ if cls not in own)


def _superfluous_hooks(bases: Iterable[type]) -> dict[type, Any]:
    """Each `__init_subclass__` of bases that were pickled too and that need not run for another class, by its class.

    One that changes a module has to run, since modules are not pickled. One that requires keywords of the class
    statement cannot run: Python does not keep them.
    """
    own = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS
    above = dict.fromkeys(cls for base in bases for cls in base.__mro__ if _HOOK in vars(cls))
    if any(cls not in own and not _is_pythons(cls.__module__) for cls in above):
        # One in a module may want what the others hand on.
        return {}
    hooks = {cls: vars(cls)[_HOOK] for cls in above if cls in own}
    return {cls: hook for cls, hook in hooks.items() if _wants_keywords(hook) or _stays_in_script(hook, set())}


def _wants_keywords(hook: Any) -> bool:
    try:
        parameters = list(inspect.signature(hook.__func__).parameters.values())[1:]
    except (AttributeError, TypeError, ValueError):
        return False
    return any(one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL) for one in parameters)


def _stays_in_script(used: Any, seen: set[int]) -> bool:
    """Whether all that a function or class of the script uses is the script's own, or Python's."""
    if id(used) in seen:
        return True
    seen.add(id(used))
    if isinstance(used, ModuleType):
        return _is_pythons(used.__name__)
    used = getattr(used, "__func__", used)
    if not isinstance(used, type | FunctionType):
        return True
    if is_found_by_name(used):
        return _is_pythons(used.__module__)
    if isinstance(used, type):
        return all(_stays_in_script(one, seen) for one in [*vars(used).values(), *used.__bases__])
    for code in codes(used.__code__):
        for step in dis.get_instructions(code):
            if step.opname == "IMPORT_NAME" and not _is_pythons(step.argval):
                return False
    return all(_stays_in_script(one, seen) for one in values_used_by(used))


def _is_pythons(module: str) -> bool:
    """Whether a module is Python's own, which keeps no tables of classes."""
    return module.partition(".")[0] in sys.stdlib_module_names


def is_by_value(module: str) -> bool:
    """Whether what a module defines travels by value."""
    return module == "__main__" or module in cloudpickle.list_registry_pickle_by_value()


def is_found_by_name(value: Any) -> bool:
    """Whether another process finds the value by importing its module."""
    return not is_by_value(value.__module__) and under_its_name(value) is value


def under_its_name(value: Any) -> Any:
    """What a value's module has under the value's name; None if nothing."""
    found: Any = sys.modules.get(value.__module__)
    # What is cached may be no function, and have no name.
    for name in getattr(value, "__qualname__", getattr(value, "__name__", "")).split("."):
        found = getattr(found, name, None)
    return found
