"""The user's own modules as they were when a call began.

Lanes open at any time and import these modules anew: if one was edited meanwhile, some trials would run other code than
others.
"""

from __future__ import annotations

import contextlib
import importlib.util
import linecache
import os
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import decode_source
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from cotune.script.installed import found_behind, is_own_file, is_unfinished, is_useless, loaded_modules

_Stamp = tuple[int, int]


class OwnModule(NamedTuple):
    """One module.

    Attributes:
        file: Its source file.
        stamp: When the file was changed, in nanoseconds, and its size.
        source: The file's content.
    """

    file: str
    stamp: _Stamp | None
    source: bytes


def own_modules() -> dict[str, OwnModule]:
    """The modules of the user's own that this process has loaded, by name."""
    found: dict[str, OwnModule] = {}
    for name, variables in loaded_modules():
        spec = variables.get("__spec__")
        if not isinstance(spec, ModuleSpec) or spec.name != name or type(spec.loader) is not SourceFileLoader:
            continue
        file = spec.loader.path
        # A module whose import is not finished has called us, and would do so again.
        if is_own_file(file) and not is_useless(name) and not is_unfinished(spec):
            # What cannot be read now, no lane can read.
            with contextlib.suppress(OSError):
                found[name] = OwnModule(file, _stamp(file), Path(file).read_bytes())
    return found


class Finder:
    """Finds these modules, also where nobody else does; to be put first into `sys.meta_path`.

    Each is loaded as it was once in a process: whoever loads it again wants the file as it is.
    """

    def __init__(self, modules: Mapping[str, OwnModule]) -> None:
        self._modules = dict(modules)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        module = self._modules.get(fullname)
        if module is None or target is not None:
            return None
        found = found_behind(self, fullname, path, target)
        if found is not None and (found.origin != module.file or type(found.loader) is not SourceFileLoader):
            return found
        loader = _Loader(fullname, module, self._modules)
        return importlib.util.spec_from_file_location(fullname, module.file, loader=loader)


class _Loader(SourceFileLoader):
    """Loads the file, or what was in it if it has changed.

    Args:
        name: The module's name.
        module: The module as it was.
        modules: By name, those not loaded yet.
    """

    def __init__(self, name: str, module: OwnModule, modules: dict[str, OwnModule]) -> None:
        super().__init__(name, module.file)
        self._module = module
        self._modules = modules

    def get_code(self, fullname: str) -> object:  # type: ignore[override]
        self._modules.pop(fullname, None)
        # The loader stays with the module, and may be pickled.
        self._modules = {}
        if not self._has_changed:
            return super().get_code(fullname)
        # Tracebacks, and whoever looks for the source of a function, find it there; entries without a time are kept.
        lines = decode_source(self._module.source).splitlines(keepends=True)
        linecache.cache[self.path] = len(self._module.source), None, lines, self.path
        return self.source_to_code(self._module.source, self.path)

    def get_data(self, path: str) -> bytes:
        return self._module.source if path == self.path and self._has_changed else super().get_data(path)

    @property
    def _has_changed(self) -> bool:
        return _stamp(self.path) != self._module.stamp


def _stamp(file: str) -> _Stamp | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
