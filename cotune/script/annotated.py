"""Annotations of what the script defines, as values that can be pickled.

From Python 3.14 on they are computed when somebody asks for them. cloudpickle asks functions, and fails where a name is
there for type checkers only; of classes it leaves them out. What `type` names, from Python 3.12 on, it sends by name.
"""

from __future__ import annotations

import contextlib
import sys
import typing
from types import FunctionType
from typing import Any

from cotune.script.class_hooks import is_found_by_name

if sys.version_info >= (3, 14):
    from annotationlib import Format, get_annotations

    def of_class(cls: type) -> dict[str, Any]:
        """The class's own annotations; all of them as texts if one cannot be computed."""
        for form in Format.VALUE, Format.STRING:
            with contextlib.suppress(Exception):
                return get_annotations(cls, format=form)
        return {}

    def readable(function: FunctionType) -> FunctionType:
        """The function, or a copy annotated with texts if one of its annotations cannot be computed."""
        with contextlib.suppress(Exception):
            get_annotations(function)
            return function
        code, variables = function.__code__, function.__globals__
        copy = FunctionType(code, variables, function.__name__, function.__defaults__, function.__closure__)
        for name in "__module__", "__qualname__", "__doc__", "__kwdefaults__", "__dict__":
            setattr(copy, name, getattr(function, name))
        copy.__annotations__ = get_annotations(function, format=Format.STRING)
        return copy

else:

    def of_class(cls: type) -> dict[str, Any]:
        """The class's own annotations."""
        return vars(cls).get("__annotations__") or {}

    def readable(function: FunctionType) -> FunctionType:
        """The function."""
        return function


if sys.version_info >= (3, 12):

    def reduced(obj: Any) -> Any:
        """What `reducer_override` returns for a type alias of the script; `NotImplemented` for any other object."""
        if type(obj) is not typing.TypeAliasType or is_found_by_name(obj):
            return NotImplemented
        # What cannot be computed here could not be there.
        value: Any = obj.__name__
        with contextlib.suppress(NameError):
            value = obj.__value__
        return _alias, (obj.__name__, value, obj.__type_params__)

    def _alias(name: str, value: Any, parameters: Any) -> Any:
        return typing.TypeAliasType(name, value, type_params=parameters)  # type: ignore[misc]

else:

    def reduced(obj: Any) -> Any:
        """`NotImplemented`."""
        return NotImplemented
