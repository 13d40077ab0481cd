"""Cuts a batch, a tensor or a nest of tensors, into micro-batches along dim 0."""

from __future__ import annotations

import contextlib
import numbers
import operator
from collections.abc import Iterator, Mapping
from typing import Any

from cotune.errors import InputError
from cotune.plain import SCALARS


def split(batch: Any, size: int) -> list[tuple[Any, int]]:
    """Micro-batches of `size` samples, the last one perhaps smaller, each with its number of samples.

    Tensors are cut as views. Tuples, lists, named tuples and dicts of them keep their form, nested or not. Plain values
    beside tensors (numbers, strings, None) are passed on whole.

    Args:
        batch: A tensor or a nest of tensors of the same dim 0.
        size: Samples in a micro-batch, at least 1.

    Raises:
        InputError: The batch cannot be split that way.
    """
    size = _whole(size)
    lengths = dict(_lengths(batch, "batch"))
    if not lengths:
        raise InputError(
            f"batch={_short(batch)} holds no tensor to split",
            hint="pass a tensor, or a tuple, list or dict of tensors, such as micro_batches((x, y), 32)",
        )
    (first, total), *rest = lengths.items()
    for name, length in rest:
        if length != total:
            raise InputError(
                f"{first} has {total} samples and {name} has {length}: dim 0 must be the same",
                hint="pass only what is per sample, and use the rest, such as class weights, from outside of the loop",
            )
    if total == 0:
        raise InputError(f"{first} has no samples (dim 0 is 0)", hint="skip empty batches, or use drop_last=True")
    return [(_cut(batch, start, min(size, total - start)), min(size, total - start)) for start in range(0, total, size)]


def tensors(part: Any) -> Iterator[Any]:
    """The tensors in a batch."""
    if _is_tensor(part):
        yield part
    elif isinstance(part, Mapping):
        for value in part.values():
            yield from tensors(value)
    elif isinstance(part, (tuple, list)):
        for value in part:
            yield from tensors(value)


def _whole(size: Any) -> int:
    try:
        number = operator.index(size)
    except TypeError:
        number = 0
    if isinstance(size, bool) or number < 1:
        raise InputError(f"size={size!r} is not a number of samples", hint="pass a whole number from 1 up, such as 32")
    return number


def _lengths(part: Any, name: str) -> Iterator[tuple[str, int]]:
    """Names of the tensors in a batch, each with its number of samples."""
    if kind := _uncut(part):
        raise InputError(
            f"{name} is a {kind}, whose samples cannot be cut out",
            hint="pass padded, dense tensors (and their lengths), and convert each part within the loop",
        )
    if _is_tensor(part):
        if part.dim() == 0:
            raise InputError(
                f"{name} is a tensor without dimensions, which has no samples to split",
                hint="give it a dim 0 of the batch's size, or use it from outside of the loop",
            )
        yield name, int(part.shape[0])
    elif isinstance(part, (Mapping, tuple, list)):
        items = list(part.items()) if isinstance(part, Mapping) else list(enumerate(part))
        found = False
        for key, value in items:
            for inner in _lengths(value, f"{name}[{key!r}]"):
                found = True
                yield inner
        if items and not found and name != "batch":
            raise InputError(
                f"{name}={_short(part)} holds no tensor: it cannot be told whether it goes by samples",
                hint="make a tensor of it, or use it from outside of the loop",
            )
    elif not isinstance(part, (*SCALARS, numbers.Number)) and getattr(part, "shape", None) != ():
        raise InputError(
            f"{name} is a {type(part).__name__}, which cannot be split",
            hint="pass tensors, or tuples, lists and dicts of tensors; torch.as_tensor() makes one of a numpy array",
        )


def _cut(part: Any, start: int, length: int) -> Any:
    """The same nest with `length` samples of every tensor, from `start` on."""
    if _is_tensor(part):
        piece = part.narrow(0, start, length)
        # Views count changes in place together: one in this piece would be taken for one in the others.
        return piece if piece.requires_grad else piece.data
    if isinstance(part, Mapping):
        return _mapping(type(part), {key: _cut(value, start, length) for key, value in part.items()})
    if not isinstance(part, (tuple, list)):
        return part
    in_order = [_cut(value, start, length) for value in part]
    if isinstance(part, list):
        return in_order
    # Not by its constructor, which may be another in a subclass.
    return part._make(in_order) if hasattr(part, "_make") else tuple(in_order)


def _mapping(kind: Any, values: dict[Any, Any]) -> Any:
    """A mapping of this kind, or a dict if its constructor takes neither a dict of the items nor keywords."""
    if kind is dict:
        return values
    for given, named in ((values,), {}), ((), values):
        with contextlib.suppress(Exception):
            made = kind(*given, **named)
            # A constructor may take the dict for something else than the items.
            tensors = [key for key in values if _is_tensor(values[key])]
            if set(made) == set(values) and all(made[key].shape == values[key].shape for key in tensors):
                return made
    return values


def _uncut(part: Any) -> str | None:
    """What a tensor, or tensors, whose dim 0 cannot be cut into samples is called."""
    import torch

    if isinstance(part, torch.nn.utils.rnn.PackedSequence):
        return "PackedSequence"
    if not isinstance(part, torch.Tensor):
        return None
    if part.is_nested:
        return "nested tensor"
    return None if part.layout is torch.strided else f"tensor of layout {part.layout}"


def _is_tensor(part: Any) -> bool:
    import torch

    return isinstance(part, torch.Tensor)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
