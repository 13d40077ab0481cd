"""What classes name in annotations that are texts, as under `from __future__ import annotations`.

No code refers to these names, so cloudpickle leaves them out; `typing.get_type_hints`, by which dataclasses are made
from dicts, looks them up among the globals of the class's module.
"""

from __future__ import annotations

import ast
import functools
import sys
from typing import Any


def named_by(cls: type) -> dict[str, Any]:
    """The globals of its module that a class's annotations name."""
    texts = [it for it in (vars(cls).get("__annotations__") or {}).values() if isinstance(it, str)]
    namespace = vars(sys.modules[cls.__module__]) if texts and cls.__module__ in sys.modules else {}
    return {name: namespace[name] for text in texts for name in _names_in(text) if name in namespace}


@functools.lru_cache(maxsize=1024)
def _names_in(text: str) -> frozenset[str]:
    try:
        parts = list(ast.walk(ast.parse(text, mode="eval")))
    except (SyntaxError, ValueError, RecursionError):
        return frozenset()
    names = {part.id for part in parts if isinstance(part, ast.Name)}
    quoted = (part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str))
    return frozenset(names).union(*(_names_in(it) for it in quoted if it != text))
