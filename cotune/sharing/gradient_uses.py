"""Calls a function before gradients are used: by an optimizer step, a gradient scaler, or `zero_grad`."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook


@contextlib.contextmanager
def before_gradients_are_used(run: Callable[[], None]) -> Iterator[None]:
    """Calls `run` before gradients are used or dropped in this thread, within the block.

    A gradient scaler looks at the gradients, and unscales them, before it has the optimizer step. A step with a closure
    reads the gradients after it has called that.
    """
    thread = threading.get_ident()

    def before() -> None:
        if threading.get_ident() == thread:
            run()

    def before_step(_: Any, args: Any, options: Any) -> tuple[Any, Any]:
        before()
        # The first is the optimizer itself.
        named = {name: _then(before, value) if name == "closure" else value for name, value in options.items()}
        return tuple(_then(before, value) if n == 1 else value for n, value in enumerate(args)), named

    hook = register_optimizer_step_pre_hook(before_step)
    _before_gradients.append(before)
    try:
        yield
    finally:
        _before_gradients.remove(before)
        hook.remove()


def _then(run: Callable[[], None], closure: Any) -> Any:
    """The closure of a step, followed by `run`; anything else as it is."""
    if not callable(closure):
        return closure

    @functools.wraps(closure)
    def called(*args: Any, **options: Any) -> Any:
        loss = closure(*args, **options)
        run()
        return loss

    return called


# What runs before gradients are unscaled or dropped, if it is in its own thread.
_before_gradients: list[Callable[[], None]] = []


def _announced(owner: Any, name: str) -> None:
    """Has a method call what is in `_before_gradients` first."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def called(*args: Any, **options: Any) -> Any:
        for before in list(_before_gradients):
            before()
        return method(*args, **options)

    setattr(owner, name, called)


_announced(torch.amp.GradScaler, "unscale_")
_announced(torch.amp.GradScaler, "step")
_announced(torch.optim.Optimizer, "zero_grad")
_announced(torch.nn.Module, "zero_grad")
