"""Variables of the trainable's module that are set by who calls us, such as `global args` in `main()`, travel along.

Trials import the module anew, and nobody calls `main()` there.
"""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any

from cotune.trainable import unwrapped
from cotune.used_code import functions_of, globals_read_by, globals_set_by, used_by


def with_variables(trainable: Any) -> Any:
    """A trainable of a module, or what pickles as one that sets these variables wherever it is loaded."""
    inner = unwrapped(trainable)
    module = sys.modules.get(inner.__module__)
    if not isinstance(module, ModuleType) or module.__name__ == "__main__":
        return trainable
    found = _set_by_callers(vars(module))
    if found:
        codes = (function.__code__ for part in used_by(inner) for function in functions_of(part))
        found &= set[str]().union(*map(globals_read_by, codes)) & vars(module).keys()
    variables = {name: vars(module)[name] for name in sorted(found)}
    return _WithVariables(trainable, module.__name__, variables) if variables else trainable


def _set_by_callers(variables: dict[str, Any]) -> set[str]:
    """The variables of a module that are assigned by functions of it which run now."""
    frame, found = inspect.currentframe(), set[str]()
    while frame is not None:
        if frame.f_globals is variables and frame.f_code.co_flags & inspect.CO_NEWLOCALS:
            found |= globals_set_by(frame.f_code)
        frame = frame.f_back
    return found


class _WithVariables:
    def __init__(self, trainable: Any, module: str, variables: dict[str, Any]) -> None:
        self._parts = variables, trainable, module

    def __reduce__(self) -> Any:
        return _set, self._parts


def _set(variables: dict[str, Any], trainable: Any, module: str) -> Any:
    # The trainable is of this module, so that is loaded.
    vars(sys.modules[module]).update(variables)
    return trainable
