"""Pickles tensors and optimizers whole; torch leaves out hooks and gradients, shared memory and most of an optimizer.

A model, its hooks and its optimizer may be globals of the user's script. Without the hooks, a model that trains in them
(`Tensor.register_post_accumulate_grad_hook`) would silently learn nothing in a lane.
"""

from __future__ import annotations

import copyreg
import functools
import sys
import warnings
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple


class _Extras(NamedTuple):
    """What torch leaves out of a pickled tensor; hooks in the tables that their handles know."""

    gradient: Any
    hooks: dict[int, Any] | None
    post_accumulate_hooks: dict[int, Any] | None


def reduced(value: Any) -> Any:
    """How to pickle a value, as `Pickler.reducer_override` returns it; NotImplemented if by torch's own rule."""
    torch: Any = sys.modules.get("torch")
    # It may be half imported, or a stand-in.
    if not hasattr(torch, "optim"):
        return NotImplemented
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, torch.storage.TypedStorage):
        # Tensors that share memory have a typed storage each, and one untyped storage, which is pickled once.
        return _typed, (value._untyped_storage, value.dtype)
    if isinstance(value, torch.storage.UntypedStorage):
        # By way of a typed one: torch cannot load the pickle of an untyped one.
        is_shared = value.device.type == "cpu" and value.is_shared()
        return _untyped, (*_typed(value, torch.uint8).__reduce__(), is_shared)
    if isinstance(value, FunctionType) and getattr(value, "hooked", False):
        path, _, _ = value.__qualname__.rpartition(".")
        return _step_with_hooks, (functools.reduce(getattr, path.split("."), sys.modules[value.__module__]),)
    optimizer = torch.optim.Optimizer
    if isinstance(value, optimizer) and type(value).__getstate__ is optimizer.__getstate__:
        return copyreg.__newobj__, (type(value),), dict(vars(value))  # type: ignore[attr-defined]
    return NotImplemented


def _step_with_hooks(optimizer: Any) -> Any:
    """The `step` of a class of optimizers, to which torch adds the hooks when an optimizer of it is made."""
    optimizer.__new__(optimizer)._patch_step_function()
    return optimizer.step


def _tensor(tensor: Any) -> Any:
    torch: Any = sys.modules["torch"]
    hooks = map(_kept, (tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None)))
    extras = _Extras(tensor.grad if tensor.is_leaf else None, *hooks)
    with warnings.catch_warnings():
        # torch warns that it leaves the hooks out.
        warnings.simplefilter("ignore")
        made = tensor.__reduce_ex__(2)
    if isinstance(made, str):
        return made
    make, args, *state = made
    if args and isinstance(args[0], torch.storage.UntypedStorage):
        # For new dtypes (float8, uint16): what loads them reads a typed storage.
        args = (_typed(args[0], torch.uint8), *args[1:])
    # A subclass with a state of its own is pickled as it wants to be.
    if state or (extras.gradient is None and not any(extras[1:])):
        return make, args, *state
    return make, args, extras, None, None, _add


def _kept(hooks: Any) -> Any:
    """The hooks that may be pickled: all but those marked by `torch.utils.hooks.unserializable_hook`."""
    if any(hasattr(hook, "__torch_unserializable__") for hook in (hooks or {}).values()):
        return {number: hook for number, hook in hooks.items() if not hasattr(hook, "__torch_unserializable__")}
    return hooks


def _add(tensor: Any, extras: _Extras) -> None:
    tensor.grad = extras.gradient
    if extras.hooks:
        tensor._backward_hooks = extras.hooks
    if extras.post_accumulate_hooks:
        tensor._post_accumulate_grad_hooks = extras.post_accumulate_hooks


def _typed(untyped: Any, dtype: Any) -> Any:
    torch: Any = sys.modules["torch"]
    return torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)


def _untyped(load: Callable[..., Any], arguments: tuple[Any, ...], is_shared: bool) -> Any:
    storage = load(*arguments)._untyped_storage
    return storage.share_memory_() if is_shared else storage
