"""Guesses which modules a trainable will import, so that the zygote imports them once for all lanes."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import pickletools
import re
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

from cotune.script.compiler_settings import COMPILER
from cotune.script.installed import is_installed, is_of_a_package, is_own, is_own_file, is_useless, spec_of
from cotune.script.parsing import parsed
from cotune.trainable import called_by
from cotune.used_code import names_in, values_used_by

# Most source files that are searched: reading one takes 5 ms, before anything else can begin.
FILES = 50
# Parts of a pickle that are searched, in 50 ms: what has more is data.
SEARCHED = 50_000
# A pickle with more words than this holds texts; checking whether a word names a module takes 30 us.
WORDS = 5000
TORCH = ("torch", "torch.utils.data")
# Parts of torch that load its compiler, or exist because it was loaded (`inside/dynamo.py`).
_COMPILING = frozenset(
    (
        "FakeTensorMode",
        "_dynamo",
        "compile",
        "compiler",
        "distributed",
        "experimental",
        "export",
        "func",
        "functorch",
        "make_fx",
        "torch.utils.checkpoint",
    )
)
# Imported ahead even if this process has not: each takes a second or more, and starts no threads or devices by itself.
HEAVY = ("torch", "torchvision", "sklearn", "scipy", "pandas")


def modules_to_preload(blob: bytes, trainable: Any, *, torch_if_loaded: bool = True) -> list[str]:
    """Installed modules that the trainable seems to use, for the zygote to import once for all lanes.

    A guess from the names in its pickle and its code: a superfluous module costs little, and a trial imports a missing
    one itself. Only modules that this process has loaded count, and those in `HEAVY` wherever a name leads to them.

    Args:
        blob: The pickled trainable.
        trainable: The trainable.
        torch_if_loaded: Whether torch counts as used if this process has loaded it, even if no name leads to it.
    """
    words = set(_strings(blob))
    if len(words) > WORDS:
        words &= sys.modules.keys()
    names = words | set(_names_used(called_by(trainable), set()))
    preload = {name for name in names if name in sys.modules and is_installed(sys.modules[name])}
    heavy = _heavy_imports(names)
    preload |= {name for name in heavy if spec_of(_top(name)) is not None}
    leads_to_torch = not {"torch", "torchvision"}.isdisjoint(map(_top, heavy))
    is_loaded = torch_if_loaded and "torch" in sys.modules
    if (leads_to_torch or is_loaded) and spec_of("torch") is not None:
        preload |= {*TORCH, *([COMPILER] if COMPILER in heavy or _compiles(names) else [])}
    return ["numpy", "numpy.random", "cloudpickle", "cotune.sharing.inside.lane_main", *sorted(preload)]


def _compiles(names: set[str]) -> bool:
    """Whether names lead to a use of torch's compiler, whose import takes 1.5 s."""
    parts = {part for name in names if name.startswith("torch.") for part in name.split(".")}
    return not _COMPILING.isdisjoint(names | parts)


# ---- names


def _strings(blob: bytes) -> Iterator[str]:
    for _, argument, _ in islice(pickletools.genops(blob), SEARCHED):
        if isinstance(argument, str) and len(argument) < 200:
            yield from argument.split()


def _names_used(value: Any, seen: set[int]) -> Iterator[str]:
    """Names in the code of a function or class, and of the user's own functions and classes that it uses."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, type):
        for attribute in vars(value).values():
            yield from _names_used(getattr(attribute, "__func__", attribute), seen)
        for base in value.__bases__:
            yield from _names_of(base, seen)
    elif isinstance(value, ModuleType):
        yield value.__name__
    elif isinstance(value, MethodType):
        yield from _names_used(value.__func__, seen)
    elif isinstance(value, FunctionType):
        names, used = names_in(value), values_used_by(value)
        yield from names
        used += [vars(m)[n] for m in used if isinstance(m, ModuleType) and is_own(m) for n in names if n in vars(m)]
        for other in used:
            yield from _names_of(other, seen)


def _names_of(other: Any, seen: set[int]) -> Iterator[str]:
    """The names used in `other` if it is a module or the user's own; otherwise the name of its module."""
    module = sys.modules.get(getattr(other, "__module__", None) or "")
    if isinstance(other, ModuleType) or module is None or is_own(module):
        yield from _names_used(other, seen)
    else:
        yield module.__name__


# ---- imports that names lead to


def _heavy_imports(names: set[str]) -> set[str]:
    """The heavy ones among these modules and those they import in turn, according to their source."""
    found: set[str] = set()
    waiting = set(names)
    seen = {"", *sys.stdlib_module_names}
    files = 0
    while waiting:
        name = waiting.pop()
        top = _top(name)
        if top in HEAVY:
            found.add(name)
        if top in HEAVY or top in seen or is_useless(top) or files >= FILES:
            continue
        seen.add(top)
        origin = _origin(top)
        if origin is None:
            continue
        if is_of_a_package(str(origin)):
            waiting |= _torch_if_required(top)
        elif is_own_file(str(origin)):
            # `test`, CPython's own tests, is not among the names of the standard library.
            sources = _sources(origin.parent) if origin.name == "__init__.py" else iter([origin])
            paths = list(islice(sources, FILES - files))
            files += len(paths)
            waiting |= {imported for path in paths for imported in _imports(path)}
    return found


def _top(name: str) -> str:
    return name.partition(".")[0]


def _origin(name: str) -> Path | None:
    """The source file of a top-level module, found without importing the module."""
    spec = spec_of(name) if name.isidentifier() else None
    origin = None if spec is None else spec.origin
    return Path(origin) if origin is not None and origin.endswith(".py") else None


def _sources(package: Path) -> Iterator[Path]:
    """The source files of a package; skips folders without any, such as data folders."""
    for folder, inner, files in os.walk(package):
        own = [name for name in files if name.endswith(".py")]
        if not own:
            inner.clear()
        yield from (Path(folder, name) for name in own)


def _torch_if_required(name: str) -> set[str]:
    """torch and its compiler, if an installed package requires torch; else nothing."""
    try:
        required = importlib.metadata.requires(name) or []
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return set()
    # Only torch is looked for; its distribution has the name of its module. Packages that build on torch use the
    # compiler to ask whether models are compiled.
    needs = {re.split(r"[^\w-]", one, maxsplit=1)[0] for one in required if "extra ==" not in one}
    return {"torch", COMPILER} if "torch" in needs else set()


def _imports(path: Path) -> set[str]:
    """Modules that a source file imports anywhere."""
    try:
        tree = parsed(path.read_bytes())
    except OSError:
        tree = None
    found: set[str] = set()
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module)
    return found
