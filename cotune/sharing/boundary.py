"""Iteration boundaries without touching the user's code: a hook behind every torch optimizer's `step()`."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

_TORCH = "torch"


def on_optimizer_step(hook: Callable[[], None], loaded: Callable[[], None]) -> None:
    """Has `hook` called after every optimizer step in this process, now or once torch is imported.

    Args:
        hook: Called in the thread that made the step.
        loaded: Called once torch is there.
    """

    def install(_torch: ModuleType) -> None:
        def after_step(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
            hook()

        optimizers = importlib.import_module("torch.optim.optimizer")
        optimizers.register_optimizer_step_post_hook(after_step)
        loaded()

    torch = sys.modules.get(_TORCH)
    if torch is not None:
        install(torch)
    else:
        # Not before all of torch is there: its parts are not usable while it is being imported.
        sys.meta_path.insert(0, _AfterImport(_TORCH, install))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls back when one module has been imported, by whoever."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._then = then
        self._looking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking = False
        if spec is None or spec.loader is None:
            return spec
        run, then = spec.loader.exec_module, self._then

        def exec_module(module: ModuleType) -> None:
            run(module)
            # Only now: who merely looks for the module, to see if it is installed, does not import it.
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                then(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
