"""Micro-batches that run at once under a grant: their streams or threads, and what must keep its order."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from cotune.demand import MIB
from cotune.session import Loan
from cotune.sharing.inside.stacks import default_size
from cotune.sharing.splitting import tensors

# As Any: parts of torch.cuda have no types.
_cuda: Any = torch.cuda
# By these a user sets how large the stacks of OpenMP's threads are.
_STACKS = {"OMP_STACKSIZE", "GOMP_STACKSIZE", "KMP_STACKSIZE"}
# Most elements of a bool buffer that is no mask.
_FLAGS = 1024
_CHANGED = "modified by an inplace operation"
# Where `torch.func.functional_call` calls the module.
_FUNCTIONAL = "nn/utils/stateless.py"
_THREAD_ROOM = 64 * MIB


class NotAtOnce(MemoryError):
    """Micro-batches that cannot run at once; handled like memory that runs out: they run again one at a time."""


class Streams:
    """On a GPU each micro-batch of a group has a stream of its own.

    The streams wait for the work given to the trial's own stream before the group. The trial's stream waits for each
    of them as soon as its micro-batch was handed to `backward()`, so that a loop may use the loss after that.
    """

    _pool: list[torch.cuda.Stream] = []  # noqa: RUF012 - made once a process, from torch's own fixed pool

    def __init__(self, loan: Loan) -> None:
        self._home = _cuda.current_stream()
        self._away: torch.cuda.Stream | None = None
        while len(self._pool) < loan.concurrency:
            self._pool.append(_cuda.Stream())

    def begin(self, slot: int, data: Any) -> None:
        """Starts a micro-batch: the computations that follow belong to it."""
        self.home()
        self._away = stream = self._pool[slot]
        if slot == 0:
            # The trial's own stream has updated the weights and made the batch.
            self._ready = self._home.record_event()
        stream.wait_event(self._ready)
        for tensor in tensors(data):
            if tensor.is_cuda:
                tensor.record_stream(stream)
        _cuda.set_stream(stream)
        # Weights that autocast has cast on another stream may not be there yet, and shared by micro-batches their
        # gradients would be added up in half precision.
        torch.clear_autocast_cache()

    def home(self) -> None:
        """Orders the computations that follow after all micro-batches begun so far."""
        # A block of the user's on another stream, around backward(), ends on the micro-batch's.
        now = _cuda.current_stream()
        left = now if now in self._pool else self._away
        if left is not None:
            self._home.wait_stream(left)
            _cuda.set_stream(self._home)
            self._away = None

    def join(self) -> None:
        """Orders what follows after all that runs on any of the streams.

        A backward does that for gradients at its end, but not if it fails.
        """
        self.home()
        for stream in self._pool:
            self._home.wait_stream(stream)


def on_gpu() -> bool:
    """Whether the trial computes on a GPU."""
    return bool(_cuda.is_available() and _cuda.is_initialized())


@contextlib.contextmanager
def in_use(loan: Loan) -> Iterator[None]:
    """Marks a loan as used within the block."""
    loan.is_open = True
    try:
        yield
    finally:
        loan.is_open = False


@contextlib.contextmanager
def streams(loan: Loan) -> Iterator[Streams]:
    """Streams for micro-batches; at the end of the block, even after an error, the trial's own is the current one."""
    made = Streams(loan)
    try:
        yield made
    finally:
        made.home()


@contextlib.contextmanager
def more_threads(loan: Loan) -> Iterator[None]:
    """Lets each operation within the block also use the threads of idle lanes.

    On the CPU micro-batches run one after the other. To put backwards off would gain nothing there, take memory, and
    change the order in which a loop does things.
    """
    before = torch.get_num_threads()
    # OpenMP ends the process if it cannot start a thread, and bytes reserved for stacks count against the quota. Where
    # the user has sized them, perhaps with gigabytes, there are no more threads.
    room = 0 if _STACKS & os.environ.keys() else max(0, loan.room() + _THREAD_ROOM)
    torch.set_num_threads(before + min(before * (loan.concurrency - 1), int(room // max(default_size(), MIB))))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def joint_backward(losses: Sequence[Tensor]) -> None:
    """Runs one backward of all losses; each part runs on its forward's stream, joined where gradients accumulate.

    Raises:
        NotAtOnce: What the backward needs has been changed in place since, by a forward or by the loop.
    """
    if not losses:
        return
    try:
        with _quiet_about_streams():
            torch.autograd.backward(list(losses))
    except RuntimeError as error:
        # Also for one loss: its backward may have been put off. An error of the user's comes again, without a grant.
        if _CHANGED in str(error):
            raise NotAtOnce(str(error)) from error
        raise


@contextlib.contextmanager
def _quiet_about_streams() -> Iterator[None]:
    """Turns off the warning that a gradient comes from another stream than its parameter, which is intended here."""
    get = getattr(torch._C, "_warn_on_accumulate_grad_stream_mismatch", None)
    put = getattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch", None)
    if put is None:
        yield
        return
    before = get() if get is not None else True
    put(False)
    try:
        yield
    finally:
        put(before)


class Buffers:
    """Buffers of the modules that a forward calls, such as the running statistics of BatchNorm.

    Two forwards on different streams would read and write them at the same time. So each module that its forward may
    change waits for its own previous call, with the result of sequential forwards. For a repeat, buffers as they were
    before a group are kept. Global hooks see every module that is called; they are installed only under a grant.

    Args:
        keeps: Whether values are kept for `restore()`.
    """

    def __init__(self, keeps: bool) -> None:
        self._keeps = keeps
        self._kept: dict[int, tuple[Any, dict[str, tuple[Tensor | None, Tensor | None]]]] = {}
        self._called: dict[int, torch.cuda.Event] = {}
        self._thread = threading.get_ident()

    def __enter__(self) -> Buffers:
        hooks = torch.nn.modules.module
        self._before = hooks.register_module_forward_pre_hook(self._before_forward)
        self._after = hooks.register_module_forward_hook(self._after_forward)
        return self

    def __exit__(self, *_: object) -> None:
        self._before.remove()
        self._after.remove()
        self._kept.clear()

    def begin(self) -> None:
        """Begins a group: forgets the values kept for the previous one."""
        self._kept.clear()

    def restore(self) -> None:
        """Puts back the values from before the group."""
        with torch.no_grad():
            for module, buffers in self._kept.values():
                for name, (buffer, value) in buffers.items():
                    if buffer is not None and value is not None and not _are_equal(buffer, value):
                        buffer.copy_(value)
                    module._buffers[name] = buffer
        self._kept.clear()

    def _before_forward(self, module: Any, _args: Any) -> None:
        if not _changes(module) or threading.get_ident() != self._thread:
            return
        if id(module) in self._called:
            _cuda.current_stream().wait_event(self._called[id(module)])
        if self._keeps and id(module) not in self._kept:
            lent = _lent_tensors()
            own = ((name, buffer) for name, buffer in module._buffers.items() if id(buffer) not in lent)
            found = {name: (b, _copied(b)) for name, b in own if b is None or not _is_constant(b)}
            self._kept[id(module)] = module, found

    def _after_forward(self, module: Any, _args: Any, _output: Any) -> None:
        if _changes(module) and threading.get_ident() == self._thread:
            self._called[id(module)] = _cuda.current_stream().record_event()


def _lent_tensors() -> set[int]:
    """Ids of the tensors that modules have instead of their own, if the call is within a `functional_call`."""
    found: set[int] = set()
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.endswith(_FUNCTIONAL):
            tensors = frame.f_locals.get("parameters_and_buffers")
            found.update(map(id, tensors.values()) if isinstance(tensors, dict) else ())
        frame = frame.f_back
    return found


def _changes(module: Any) -> bool:
    """Whether a forward may change the module: its buffers, or the rows that an embedding with `max_norm` scales."""
    return bool(module._buffers) or getattr(module, "max_norm", None) is not None


def _is_constant(buffer: Tensor) -> bool:
    # Large bool buffers are taken for masks, which are constant; small ones may be flags. A lazy one is yet to be made.
    return is_lazy(buffer) or (buffer.dtype == torch.bool and buffer.numel() > _FLAGS)


def _are_equal(buffer: Tensor, value: Tensor) -> bool:
    # What is equal may be an expanded view, into which nothing can be copied. Sparse tensors, which cannot be compared,
    # are no such views.
    try:
        return torch.equal(buffer, value)
    except (NotImplementedError, AttributeError):
        return False


def _copied(buffer: Tensor | None) -> Tensor | None:
    return buffer.detach().clone() if buffer is not None else None
