"""What functions and classes name in annotations that are texts, as under `from __future__ import annotations`.

No code refers to these names, so cloudpickle leaves them out; `typing.get_type_hints` looks them up among the globals.
"""

from __future__ import annotations

import ast
import functools
import sys
import typing
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, GenericAlias, ModuleType, UnionType
from typing import Any

_TYPES = type, GenericAlias, UnionType
_ANNOTATIONS = "__annotations__"


def by_function(function: FunctionType) -> dict[str, Any]:
    """The globals that a function's annotations name, and those of classes that it makes."""
    texts = [it for it in function.__annotations__.values() if isinstance(it, str)]
    return _found([*texts, *_texts_of_classes(function.__code__)], function.__globals__)


def by_class(cls: type) -> dict[str, Any]:
    """The globals of its module that a class's annotations name."""
    texts = [it for it in (vars(cls).get(_ANNOTATIONS) or {}).values() if isinstance(it, str)]
    return _found(texts, vars(sys.modules.get(cls.__module__, object)))


def _texts_of_classes(code: CodeType) -> Iterator[str]:
    for part in code.co_consts:
        if isinstance(part, CodeType):
            if _ANNOTATIONS in part.co_names:
                yield from (it for it in part.co_consts if isinstance(it, str))
            yield from _texts_of_classes(part)


def _found(texts: Iterable[str], namespace: Any) -> dict[str, Any]:
    names = {name for text in texts for name in _names_in(text)}
    return {name: namespace[name] for name in names if name in namespace and _is_type(namespace[name])}


@functools.lru_cache(maxsize=1024)
def _names_in(text: str) -> frozenset[str]:
    try:
        parts = list(ast.walk(ast.parse(text, mode="eval")))
    except (SyntaxError, ValueError, RecursionError):
        return frozenset()
    names = {part.id for part in parts if isinstance(part, ast.Name)}
    quoted = (part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str))
    return frozenset(names).union(*(_names_in(it) for it in quoted if it != text))


def _is_type(value: Any) -> bool:
    """Whether a value may be (part of) an annotation; data, which a text may name by chance, may be large."""
    if isinstance(value, ModuleType):
        return sys.modules.get(value.__name__) is value
    return isinstance(value, _TYPES) or type(value).__module__ in (typing.__name__, "typing_extensions")
