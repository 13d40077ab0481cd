"""What a repeat of micro-batches must undo, apart from the buffers of modules: random draws and gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from cotune.sharing.inside.numpy_random import NumpyRandom
from cotune.sharing.inside.python_random import PythonRandom
from cotune.sharing.inside.torch_state import TorchRandom


class Generators:
    """Saved states of the random generators of torch, Python and numpy."""

    def __init__(self) -> None:
        # Captured at once: their seeds count for nothing.
        self._kept = PythonRandom(0), NumpyRandom(0), TorchRandom(torch, 0)
        for generator in self._kept:
            generator.capture()

    def restore(self) -> None:
        for generator in self._kept:
            generator.apply()


class Leaves:
    """The leaf tensors of a backward, with their gradients before it.

    A backward that fails has added all of its contribution to some leaves, and nothing to the others: autograd sums up
    a leaf's contributions before it changes its gradient.
    """

    def __init__(self, losses: Sequence[Tensor]) -> None:
        self._before = [(leaf, leaf.grad, _version(leaf.grad)) for leaf in _leaves(losses)]

    def finished(self) -> list[Tensor]:
        """The leaves whose gradients have changed since."""
        return [
            leaf
            for leaf, grad, version in self._before
            if leaf.grad is not None and (leaf.grad is not grad or _version(leaf.grad) != version)
        ]


def _version(grad: Tensor | None) -> int:
    return -1 if grad is None else int(grad._version)


def _leaves(losses: Sequence[Tensor]) -> Iterator[Tensor]:
    stack: list[Any] = [loss.grad_fn for loss in losses if loss.grad_fn is not None]
    seen = set(stack)
    while stack:
        node = stack.pop()
        # Not any node with such an attribute: that of a user's function is the context of its forward.
        if type(node).__name__ == "AccumulateGrad":
            yield node.variable
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)


@contextlib.contextmanager
def set_aside(leaves: Sequence[Tensor]) -> Iterator[None]:
    """Restores the gradients of these leaves at the end of the block, without anything added meanwhile."""
    grads = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    try:
        yield
    finally:
        for leaf, grad in zip(leaves, grads, strict=True):
            leaf.grad = grad
