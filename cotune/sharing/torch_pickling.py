"""Pickles tensors and optimizers whole; torch leaves out hooks and gradients, shared memory and most of an optimizer.

A model, its hooks and its optimizer may be globals of the user's script. Without the hooks, a model that trains in them
(`Tensor.register_post_accumulate_grad_hook`) would silently learn nothing in a lane.
"""

from __future__ import annotations

import copyreg
import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple


class _Extras(NamedTuple):
    """What torch leaves out of a pickled tensor."""

    gradient: Any
    hooks: list[Any]
    post_accumulate_hooks: list[Any]


def reduced(value: Any) -> Any:
    """How to pickle a value, as `Pickler.reducer_override` returns it; NotImplemented if by torch's own rule."""
    torch: Any = sys.modules.get("torch")
    tensor: Any = getattr(torch, "Tensor", ())
    if isinstance(value, tensor):
        return _tensor(value)
    storages: Any = getattr(torch, "storage", None)
    typed: Any = getattr(storages, "TypedStorage", ())
    untyped: Any = getattr(storages, "UntypedStorage", ())
    if isinstance(value, typed):
        # Tensors that share memory have a typed storage each, and one untyped storage, which is pickled once.
        return _typed, (value._untyped_storage, value.dtype)
    if isinstance(value, untyped):
        # By way of a typed one: torch cannot load the pickle of an untyped one.
        return _untyped, _typed(value, torch.uint8).__reduce__()
    optimizer: Any = getattr(getattr(torch, "optim", None), "Optimizer", ())
    if isinstance(value, optimizer) and type(value).__getstate__ is optimizer.__getstate__:
        # A scheduler of learning rates wraps `step` in what cannot be pickled, to check the order of calls.
        state = {name: part for name, part in vars(value).items() if name != "step"}
        return copyreg.__newobj__, (type(value),), state  # type: ignore[attr-defined]
    return NotImplemented


def _tensor(tensor: Any) -> Any:
    hooks = map(_kept, (tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None)))
    extras = _Extras(tensor.grad if tensor.is_leaf else None, *hooks)
    if extras.gradient is None and not any(extras[1:]):
        return NotImplemented
    with warnings.catch_warnings():
        # torch warns that it leaves the hooks out.
        warnings.simplefilter("ignore")
        made = tensor.__reduce_ex__(2)
    # A subclass with a state of its own is pickled as it wants to be.
    return (*made, extras, None, None, _add) if len(made) == 2 else made


def _kept(hooks: Any) -> list[Any]:
    """The hooks that may be pickled: all but those marked by `torch.utils.hooks.unserializable_hook`."""
    return [hook for hook in (hooks or {}).values() if not hasattr(hook, "__torch_unserializable__")]


def _add(tensor: Any, extras: _Extras) -> None:
    tensor.grad = extras.gradient
    for hook in extras.hooks:
        tensor.register_hook(hook)
    for hook in extras.post_accumulate_hooks:
        tensor.register_post_accumulate_grad_hook(hook)


def _typed(untyped: Any, dtype: Any) -> Any:
    torch: Any = sys.modules["torch"]
    return torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)


def _untyped(load: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return load(*arguments)._untyped_storage
