"""Annotations of what the script defines, as values that can be pickled.

From Python 3.14 on they are computed when somebody asks for them. cloudpickle asks functions, and fails where a name is
there for type checkers only; of classes it leaves them out.
"""

from __future__ import annotations

import contextlib
import sys
from types import FunctionType
from typing import Any

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
