"""What code a function or class uses, and which variables."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator
from typing import Any


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function, and all code within."""
    yield code
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from codes(part)


def globals_set_by(code: types.CodeType) -> set[str]:
    """The global variables that a function's own bytecode assigns."""
    return {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_GLOBAL"}


def globals_read_by(code: types.CodeType) -> set[str]:
    """The names under which a function, and all code within, looks for global variables."""
    reads = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
    return {step.argval for part in codes(code) for step in dis.get_instructions(part) if step.opname in reads}


def names_in(function: types.FunctionType) -> list[str]:
    """The names of variables, attributes and modules in a function and all code within, in the order of the code."""
    return [*dict.fromkeys(name for code in codes(function.__code__) for name in code.co_names)]


def values_used_by(function: types.FunctionType) -> list[Any]:
    """The variables of its module that a function, or code within, may name, and those that it encloses."""
    names, cells = function.__globals__, function.__closure__ or ()
    return [
        *(names[name] for name in names_in(function) if name in names),
        *(cell.cell_contents for cell in cells if cell != types.CellType()),
    ]


def functions_of(one: type | types.FunctionType) -> Iterator[types.FunctionType]:
    """The methods and properties of a class, or a function itself."""
    for part in vars(one).values() if isinstance(one, type) else [one]:
        inside = [part]
        if isinstance(part, (staticmethod, classmethod)):
            inside = [part.__func__]
        elif isinstance(part, property):
            inside = [part.fget, part.fset, part.fdel]
        elif isinstance(part, functools.cached_property):
            inside = [part.func]
        yield from (function for function in inside if isinstance(function, types.FunctionType))


def used_by(one: type | types.FunctionType) -> Iterator[type | types.FunctionType]:
    """A function or class, and all of its own module that it uses, inherits from or encloses."""
    todo, seen = [one], set[int]()
    while todo:
        part = todo.pop(0)
        if id(part) in seen or getattr(part, "__module__", None) != one.__module__:
            continue
        seen.add(id(part))
        yield part
        if isinstance(part, type):
            todo += [*part.__bases__, *(inner for inner in vars(part).values() if isinstance(inner, type))]
        for function in functions_of(part):
            todo += [other for other in values_used_by(function) if isinstance(other, (type, types.FunctionType))]
