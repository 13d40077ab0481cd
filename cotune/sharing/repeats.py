"""What a repeat of micro-batches must undo, apart from the buffers of modules: random draws and gradients."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

# As Any: parts of torch.cuda have no types.
_cuda: Any = torch.cuda


class Generators:
    """Saved states of the random generators of torch, Python and numpy."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._cuda = _cuda.get_rng_state() if _cuda.is_initialized() else None
        self._python = random.getstate()
        numpy = sys.modules.get("numpy.random")
        self._numpy = numpy.get_state(legacy=False) if numpy is not None else None

    def restore(self) -> None:
        torch.set_rng_state(self._torch)
        if self._cuda is not None:
            _cuda.set_rng_state(self._cuda)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy.random"].set_state(self._numpy)


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
