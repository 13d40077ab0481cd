"""What classes name in annotations that are texts, as under `from __future__ import annotations`.

No code refers to these names, so cloudpickle leaves them out; `typing.get_type_hints`, by which dataclasses are made
from dicts, looks them up among the globals of the class's module.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from cotune.script import annotated
from cotune.script.class_hooks import is_found_by_name


class Named(NamedTuple):
    """A global of the script that an annotation names.

    Attributes:
        blob: The value, pickled.
        module: The module without which it is left out, since nothing else needs that; empty if there is none.
    """

    blob: bytes
    module: str = ""


def named_by(classes: list[type], dumps: Callable[[Any], tuple[bytes, list[type]]]) -> dict[str, Named]:
    """What annotations of classes of the script name, and those of classes that they name.

    What cannot be pickled is left out: nobody may ever look.

    Args:
        classes: Classes that travel, whichever modules they are of.
        dumps: Pickles a value; returns it with the classes that were pickled by value.
    """
    found: dict[str, Named] = {}
    known, waiting = set(map(id, classes)), list(classes)
    while waiting:
        cls = waiting.pop()
        for name, value in _globals_named_by(cls).items() if cls.__module__ == "__main__" else ():
            if id(value) not in known:
                known.add(id(value))
                with contextlib.suppress(Exception):
                    blob, more = dumps(value)
                    found[name] = Named(blob, _module_of(value))
                    known.update(map(id, more))
                    waiting += more
    return found


def load(named: Mapping[str, Named]) -> dict[str, Any]:
    """Those values that can be loaded without an import."""
    found = {}
    for name, (blob, module) in named.items():
        if not module or module in sys.modules:
            with contextlib.suppress(Exception):
                found[name] = pickle.loads(blob)
    return found


def _globals_named_by(cls: type) -> dict[str, Any]:
    texts = [it for it in annotated.of_class(cls).values() if isinstance(it, str)]
    namespace = vars(sys.modules["__main__"])
    return {name: namespace[name] for text in texts for name in _names_in(text) if name in namespace}


def _module_of(value: Any) -> str:
    if isinstance(value, ModuleType):
        return value.__name__
    return value.__module__ if isinstance(value, type) and is_found_by_name(value) else ""


@functools.lru_cache(maxsize=1024)
def _names_in(text: str) -> frozenset[str]:
    try:
        return frozenset(_names_below(ast.parse(text, mode="eval")))
    except (SyntaxError, ValueError, RecursionError):
        return frozenset()


def _names_below(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from _names_in(node.value)
    elif isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("Literal"):
        # Texts in there are no names.
        yield from _names_below(node.value)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _names_below(child)
