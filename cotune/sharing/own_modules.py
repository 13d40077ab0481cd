"""The code of the user's own modules, as of the beginning of a call.

Lanes open at any time and import these modules anew: if one was edited meanwhile, some trials would run other code than
others.
"""

from __future__ import annotations

import contextlib
import importlib.util
import marshal
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import NamedTuple


class OwnModule(NamedTuple):
    """One module.

    Attributes:
        file: Its source file.
        code: Its code, marshalled.
        folders: Where its submodules are, if it is a package.
    """

    file: str
    code: bytes
    folders: list[str] | None


def own_modules() -> dict[str, OwnModule]:
    """The modules of the user's own that this process has loaded, by name."""
    # Only here: the zygote, which has no use for it, need not load it.
    from cotune.sharing.preload import is_own, is_useless

    found: dict[str, OwnModule] = {}
    for name, module in list(sys.modules.items()):
        spec = vars(module).get("__spec__") if isinstance(module, ModuleType) else None
        if not isinstance(spec, ModuleSpec) or spec.name != name or is_useless(name) or not is_own(module):
            continue
        # A module whose import is not finished has called us, and would do so again.
        if type(spec.loader) is SourceFileLoader and not getattr(spec, "_initializing", False):
            # An error is found, and told, where the module is imported.
            with contextlib.suppress(Exception):
                code = marshal.dumps(spec.loader.get_code(name))
                folders = spec.submodule_search_locations
                found[name] = OwnModule(spec.loader.path, code, None if folders is None else list(folders))
    return found


class Finder:
    """Finds modules by name, to be put into `sys.meta_path`; what they are made of is not read again."""

    def __init__(self, modules: Mapping[str, OwnModule]) -> None:
        self._modules = modules

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        module = self._modules.get(name)
        if module is None:
            return None
        loader = _Loader(name, module)
        return importlib.util.spec_from_file_location(
            name, module.file, loader=loader, submodule_search_locations=module.folders
        )


class _Loader(SourceFileLoader):
    def __init__(self, name: str, module: OwnModule) -> None:
        super().__init__(name, module.file)
        self._code = module.code

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = marshal.loads(self._code)
        return code
