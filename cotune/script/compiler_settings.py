"""The settings of torch's compiler, which are attributes of three of its modules.

Since torch 2.13 each thread has its own: what is set in one holds in no other. A trial's thread is given what its
script, and modules that set some when they were imported, have set.

No lane loads the compiler for that: `torch.use_deterministic_algorithms(True)` makes such a setting, too.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any

from cotune.script.torch_flags import Setting

# The compiler's own module; all of them take over a second to load.
COMPILER = "torch._dynamo"
CONFIGS = ("torch._dynamo.config", "torch._inductor.config", "torch._functorch.config")


def compiler_settings() -> dict[str, Setting]:
    """Getters and setters of what has been set, by module; neither of them loads a module."""
    return {name: (partial(_overrides, name), partial(_override, name)) for name in CONFIGS}


def _overrides(module: str) -> dict[str, Any]:
    """What is set in this thread and is not the default, by name."""
    found = {}
    for name, entry in vars(sys.modules.get(module, object)).get("_config", {}).items():
        value = entry.user_override
        if isinstance(value, ContextVar):
            value = value.get()
        # What an alias stands for has an entry of its own.
        if value is not _unset() and getattr(entry, "alias", None) is None and value != entry.default:
            found[name] = value
    return found


def _unset() -> Any:
    return sys.modules["torch.utils._config_module"]._UNSET_SENTINEL


def _override(module: str, values: Mapping[str, Any]) -> None:
    config = sys.modules.get(module)
    for name, value in values.items() if config is not None else ():
        # A list of one trial is not the next one's.
        setattr(config, name, copy.deepcopy(value))


def default(config: Any, name: str) -> Any:
    """The value of a setting where no thread has set another."""
    return _entry(config, name).default


def set_default(config: Any, name: str, value: Any) -> None:
    """Gives a setting another value in all threads but those that have set it."""
    _entry(config, name).default = value


def _entry(config: Any, name: str) -> Any:
    entry = config._config[name]
    alias = getattr(entry, "alias", None)
    return entry if alias is None else config._config[alias.rpartition(".")[2]]
