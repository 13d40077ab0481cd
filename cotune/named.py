"""What classes name in annotations that are texts, as under `from __future__ import annotations`.

No code refers to these names, so cloudpickle leaves them out; `typing.get_type_hints`, by which dataclasses are made
from dicts, looks them up among the globals of the class's module.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from typing import Any


def named_by(cls: type) -> dict[str, Any]:
    """The globals of its module that a class's annotations name."""
    texts = [it for it in (vars(cls).get("__annotations__") or {}).values() if isinstance(it, str)]
    namespace = vars(sys.modules[cls.__module__]) if texts and cls.__module__ in sys.modules else {}
    return {name: namespace[name] for text in texts for name in _names_in(text) if name in namespace}


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
