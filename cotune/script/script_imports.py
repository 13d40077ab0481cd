"""Modules that a script imports for their side effects, such as a registration or a patch, and not for a name.

A function of a script travels by value, with the modules that its own code names. Other imports of the script would
not happen in another process, though the function may rely on them.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from cotune.script.installed import is_installed, is_own, is_unfinished, is_useless
from cotune.script.parsing import parsed

# Large modules, often imported without being used, whose import has no effect on other code.
_WITHOUT_EFFECT = {"jax", "matplotlib", "numpy", "pandas", "plotly", "scipy", "seaborn", "tensorflow", "torch", "tqdm"}


def script_imports() -> tuple[list[str], list[str]]:
    """Modules that the main script imports outside of functions without using the names that this binds.

    After `import *` any name may be used, so such modules are included. All other modules are imported where a function
    needs them: importing them in every lane would load what only the script needs, such as data or plotting libraries.

    Returns:
        The installed modules, and the user's own, in the order of their imports.
    """
    main = sys.modules.get("__main__")
    trees = list(_trees(main))
    used = {name for tree in trees for node in ast.walk(tree) if (name := _name_in(node))}
    installed: list[str] = []
    own: list[str] = []
    for module, bound in (found for tree in trees for one in _at_its_top(tree.body) for found in _imports(one, main)):
        found = sys.modules.get(module)
        # A module whose import is not finished has called us.
        if not isinstance(found, ModuleType) or is_unfinished(found.__spec__):
            continue
        if is_useless(module) or module.partition(".")[0] in _WITHOUT_EFFECT or bound in used:
            continue
        names = installed if is_installed(found) else own if is_own(found) else []
        if module not in names:
            names.append(module)
    return installed, own


def _trees(main: Any) -> Iterator[ast.Module]:
    """Syntax trees of the script, or of a notebook's cells."""
    file = getattr(main, "__file__", None)
    sources: Any = getattr(main, "In", None) if file is None else None
    if isinstance(file, str):
        with contextlib.suppress(OSError):
            # Bytes: it may begin with a byte order mark, or say itself how it is encoded.
            sources = [Path(file).read_bytes()]
    for source in sources if isinstance(sources, list) else []:
        if (tree := parsed(source)) is not None:
            yield tree


def _at_its_top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Import statements that run when the script does, except under `if __name__ == ...`."""
    for statement in body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield statement
        elif isinstance(statement, ast.If):
            if "__name__" not in ast.unparse(statement.test):
                yield from _at_its_top([*statement.body, *statement.orelse])
        elif isinstance(statement, ast.Try):
            handlers = [inner for handler in statement.handlers for inner in handler.body]
            yield from _at_its_top([*statement.body, *handlers, *statement.orelse, *statement.finalbody])
        elif isinstance(statement, ast.With):
            yield from _at_its_top(statement.body)


def _imports(statement: ast.stmt, main: ModuleType | None) -> Iterator[tuple[str, str]]:
    """Modules that a statement imports, each with the name that this binds; an empty name for `*`."""
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            # A submodule is used where its full name is: of its package, which this binds, others may be used.
            yield alias.name, alias.asname or alias.name
    elif isinstance(statement, ast.ImportFrom):
        module = statement.module or ""
        if statement.level:
            with contextlib.suppress(ImportError, ValueError):
                relative = "." * statement.level + module
                module = importlib.util.resolve_name(relative, getattr(main, "__package__", None) or "")
        for alias in statement.names:
            bound = "" if alias.name == "*" else alias.asname or alias.name
            yield module, bound
            yield f"{module}.{alias.name}", bound


def _name_in(node: ast.AST) -> str:
    """The name that an expression is, such as `package.module`; empty if it is none."""
    if isinstance(node, ast.Attribute):
        owner = _name_in(node.value)
        return owner and f"{owner}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""
