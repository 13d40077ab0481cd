"""Iteration boundaries without touching the user's code: a hook behind every torch optimizer's `step()`."""

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
        loaded: Called once torch is there.
        during: Makes what surrounds the import of torch.
    """

    def install(_torch: ModuleType) -> None:
        optimizers = importlib.import_module("torch.optim.optimizer")
        optimizers.register_optimizer_step_post_hook(hook)
        loaded()

    # Not before all of torch is there: its parts are not usable while it is being imported.
    after_import("torch", install, during)
