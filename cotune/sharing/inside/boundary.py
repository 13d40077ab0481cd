"""Iteration boundaries without changes to the user's code: a hook after every torch optimizer's `step()`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType
from typing import Any

from cotune.sharing.inside.after_import import During, after_import


def on_optimizer_step(
    hook: Callable[[Any, Any, Any], None], loaded: Callable[[], None], during: During = nullcontext
) -> None:
    """Installs `hook` to be called after every optimizer step in this process, now or once torch is imported.

    Args:
        hook: Called in the thread that made the step, with the optimizer and the arguments of the step.
        loaded: Called once torch is imported.
        during: Makes a context manager for the import of torch.
    """

    def install(_torch: ModuleType) -> None:
        optimizers = importlib.import_module("torch.optim.optimizer")
        optimizers.register_optimizer_step_post_hook(hook)
        loaded()

    # After the whole import: torch's parts are not usable before.
    after_import("torch", install, during)
