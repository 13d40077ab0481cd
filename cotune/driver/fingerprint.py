"""What identifies a trainable, also in another process: its code and its bound arguments."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import types
from collections.abc import Iterator
from typing import Any

from cotune.trainable import unwrapped
from cotune.used_code import functions_of, used_by

# Larger dicts are data, and no settings.
MANY = 10_000
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def identity(trainable: Any) -> Iterator[object]:
    """What identifies a trainable, as values whose `repr` is the same in every process.

    That is its code, the code of functions and classes of its own module that it uses, inherits from or encloses, their
    defaults, and bound arguments. Code of other modules, and data, are ignored.
    """
    yield from _bound(trainable)
    for part in used_by(unwrapped(trainable)):
        yield part.__qualname__
        for function in functions_of(part):
            yield from _code(function.__code__)
            yield stand_in(function.__defaults__)
            yield sorted((name, repr(stand_in(value))) for name, value in (function.__kwdefaults__ or {}).items())


def digest(*values: object) -> str:
    """A short hash of values whose `repr` is the same in every process."""
    return hashlib.sha256(repr(values).encode()).hexdigest()[:16]


def stand_in(value: Any) -> object:
    """A value, or a stand-in for it, whose `repr` is the same in every process."""
    try:
        return _stand_in(value)
    except RecursionError:
        # It contains itself.
        return type(value).__qualname__


def _stand_in(value: Any) -> object:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, slice):
        # Python 3.14 has those of `batch[:64]` among a function's constants.
        value = value.start, value.stop, value.step
    if isinstance(value, (tuple, list)):
        return [_stand_in(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(repr(_stand_in(item)) for item in value)
    if isinstance(value, dict) and len(value) <= MANY:
        return sorted(((str(_stand_in(key)), _stand_in(item)) for key, item in value.items()), key=lambda pair: pair[0])
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return value.__qualname__
    name = type(value).__qualname__
    if dataclasses.is_dataclass(value):
        return [name, *(_stand_in(getattr(value, field.name, None)) for field in dataclasses.fields(value))]
    return name


def _bound(trainable: Any) -> Iterator[object]:
    """The arguments bound to a trainable by `functools.partial`."""
    while isinstance(trainable, functools.partial):
        yield stand_in(trainable.args)
        yield sorted((name, repr(stand_in(value))) for name, value in trainable.keywords.items())
        trainable = trainable.func


def _code(code: types.CodeType) -> Iterator[object]:
    yield code.co_code
    yield code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code(constant)
        else:
            yield stand_in(constant)
