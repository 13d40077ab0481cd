"""Pickles tensors with their hooks and optimizers with all their attributes, both of which torch leaves out.

A model, its hooks and its optimizer may be globals of the user's script. Without the hooks, a model that trains in them
(`Tensor.register_post_accumulate_grad_hook`) would silently learn nothing in a lane.
"""

from __future__ import annotations

import copyreg
import sys
import warnings
from typing import Any


def reduced(value: Any) -> Any:
    """How to pickle a value, as `Pickler.reducer_override` returns it; NotImplemented if by torch's own rule."""
    torch: Any = sys.modules.get("torch")
    tensor: Any = getattr(torch, "Tensor", ())
    if isinstance(value, tensor):
        return _with_hooks(value)
    optimizer: Any = getattr(getattr(torch, "optim", None), "Optimizer", ())
    if isinstance(value, optimizer) and type(value).__getstate__ is optimizer.__getstate__:
        # A scheduler of learning rates wraps `step` in what cannot be pickled, and counts only.
        state = {name: part for name, part in vars(value).items() if name != "step"}
        return copyreg.__newobj__, (type(value),), state  # type: ignore[attr-defined]
    return NotImplemented


def _with_hooks(tensor: Any) -> Any:
    hooks = tuple(map(_kept, (tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None))))
    if not any(hooks):
        return NotImplemented
    with warnings.catch_warnings():
        # torch warns that it leaves the hooks out.
        warnings.simplefilter("ignore")
        made = tensor.__reduce_ex__(2)
    # A subclass with a state of its own is pickled as it wants to be.
    return (*made, hooks, None, None, _hook) if len(made) == 2 else made


def _kept(hooks: Any) -> list[Any]:
    """The hooks that may be pickled: all but those marked by `torch.utils.hooks.unserializable_hook`."""
    return [hook for hook in (hooks or {}).values() if not hasattr(hook, "__torch_unserializable__")]


def _hook(tensor: Any, hooks: tuple[list[Any], list[Any]]) -> None:
    for hook in hooks[0]:
        tensor.register_hook(hook)
    for hook in hooks[1]:
        tensor.register_post_accumulate_grad_hook(hook)
