"""`cotune.micro_batches`: gradient accumulation that runs several micro-batches at once where there is room.

    optimizer.zero_grad()
    cotune.micro_batches((x, y), 32).backward(lambda x, y: loss_fn(model(x), y))
    optimizer.step()

Without a grant, and outside of a run, this is the plain loop: a forward and a backward for one micro-batch after the
other. With a grant on a GPU the forwards of a group run at once and share one backward; on a CPU it is the plain loop
with more threads.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cotune import session
from cotune.errors import InputError
from cotune.session import Loan
from cotune.sharing.raised import clear_frames, out_of_memory
from cotune.sharing.splitting import split

if TYPE_CHECKING:
    from torch import Tensor

    from cotune.sharing.concurrent import Buffers, Streams

REDUCTIONS = ("mean", "sum")
_FREED = "backward through the graph a second time"


class MicroBatch:
    """A part of a batch.

    Attributes:
        data: Its samples, in the form of the batch.
        size: Number of samples.
        index: Its place, from 0.
        is_last: Whether it is the last of its batch.
        weight: Factor of its loss in the loss of the batch.
    """

    def __init__(self, data: Any, size: int, index: int, is_last: bool, weight: float) -> None:
        self.data = data
        self.size = size
        self.index = index
        self.is_last = is_last
        self.weight = weight
        self._run: Callable[[list[Tensor]], None] = _backward

    def backward(self, *losses: Tensor) -> None:
        """Adds the gradients of these losses, weighted, now or together with those of other micro-batches.

        Args:
            losses: This micro-batch's losses, reduced over its samples; scaled by a `GradScaler` or not.

        Raises:
            InputError: There is no loss, or one is not a single number.
        """
        self._run(_weighted(self, losses))


class MicroBatches:
    """A batch, split into micro-batches; made by `cotune.micro_batches`."""

    def __init__(self, batch: Any, size: int, reduction: str) -> None:
        if reduction not in REDUCTIONS:
            raise InputError(f"reduction={reduction!r} is unknown", hint=f"it is one of {', '.join(REDUCTIONS)}")
        parts = split(batch, size)
        total = sum(count for _, count in parts)
        self._micros = [
            MicroBatch(data, count, n, n == len(parts) - 1, count / total if reduction == "mean" else 1.0)
            for n, (data, count) in enumerate(parts)
        ]

    def __len__(self) -> int:
        return len(self._micros)

    def __iter__(self) -> Iterator[MicroBatch]:
        loan = _loan(len(self))
        if loan is None or loan.concurrency < 2:
            return iter(self._micros)
        return self._under_grant(loan)

    def backward(self, loss_of: Callable[..., Any]) -> Tensor:
        """Adds the gradients of the whole batch.

        If memory runs out under a grant, the forwards are undone and run again one at a time.

        Args:
            loss_of: Returns the loss of a micro-batch, or several. It gets the micro-batch's data, as separate
                arguments if that is a tuple or list: `lambda x, y: ...`, `lambda batch: ...`. It may be called again
                for the same samples, so it must change nothing but random generators and the buffers of modules.

        Returns:
            The loss of the batch, detached; the sum if `loss_of` returns several; scaled if what it returns is.

        Raises:
            InputError: `loss_of` returned something other than losses, or those of several micro-batches hang on one
                graph that was made before.
        """
        loan = _loan(len(self))
        done: list[Tensor] = []
        with contextlib.ExitStack() as opened:
            if loan is not None and loan.concurrency > 1 and not loan.is_open:
                from cotune.sharing.concurrent import in_use, more_threads, on_gpu

                opened.enter_context(in_use(loan))
                if on_gpu():
                    done = self._grouped(loan, loss_of)
                else:
                    opened.enter_context(more_threads(loan))
            done += [_forward_and_backward(micro, loss_of) for micro in self._micros[len(done) :]]
        return _total(done)

    # ---- under a grant

    def _under_grant(self, loan: Loan) -> Iterator[MicroBatch]:
        """Yields the micro-batches; after the last backward all is as before, even if the iterator is kept."""
        from cotune.sharing.concurrent import in_use, more_threads, on_gpu

        if loan.is_open:
            # Within another loop, which has the threads or streams.
            yield from self._micros
            return
        with contextlib.ExitStack() as opened:
            opened.enter_context(in_use(loan))
            opened.callback(self._run_by, _backward, _backward)
            if on_gpu():
                yield from self._in_groups(loan, opened)
                return
            opened.enter_context(more_threads(loan))

            def last(losses: list[Tensor]) -> None:
                _backward(losses)
                opened.close()

            self._run_by(_backward, last)
            yield from self._micros

    def _in_groups(self, loan: Loan, opened: contextlib.ExitStack) -> Iterator[MicroBatch]:
        """Puts backwards off until a group is full or the room is used up."""
        from cotune.sharing.concurrent import Buffers, streams
        from cotune.sharing.gradient_uses import before_gradients_are_used

        group = _Group(loan, opened.enter_context(streams(loan)))
        opened.enter_context(Buffers(keeps=False))
        opened.enter_context(before_gradients_are_used(group.flush))

        def last(losses: list[Tensor]) -> None:
            group.add(losses)
            # The loop may make its optimizer step before it ends: `if micro.is_last: optimizer.step()`.
            group.flush()
            opened.close()

        self._run_by(group.add, last)
        try:
            for micro in self._micros:
                group.begin(micro.data)
                yield micro
            group.flush()
        except GeneratorExit:
            # The loop was left by `break` or by an error, which cannot be told apart here. In a plain loop the losses
            # already handed to backward() would count.
            group.leave()
            raise
        finally:
            group.losses.clear()

    def _run_by(self, run: Callable[[list[Tensor]], None], last: Callable[[list[Tensor]], None]) -> None:
        """Has the backwards run by these functions, that of the last micro-batch by the second."""
        for micro in self._micros:
            micro._run = last if micro.is_last else run

    def _grouped(self, loan: Loan, loss_of: Callable[..., Any]) -> list[Tensor]:
        """Runs groups as long as there is a grant; returns the losses of the micro-batches that were run."""
        from cotune.sharing.concurrent import Buffers, streams

        done: list[Tensor] = []
        with streams(loan) as made, Buffers(keeps=True) as buffers:
            while len(done) < len(self) and loan.concurrency > 1:
                done += _run_group(self._micros[len(done) :], loan, made, buffers, loss_of)
        return done


class _Group:
    """Micro-batches whose backward is still to come.

    Attributes:
        losses: Weighted losses of the forwards that have run.
    """

    def __init__(self, loan: Loan, streams: Streams) -> None:
        self.losses: list[Tensor] = []
        self._loan = loan
        self._streams = streams
        self._begun = 0

    @property
    def is_full(self) -> bool:
        """Whether another micro-batch would exceed the grant, or might exceed the lane's quota."""
        loan = self._loan
        # One that has dropped gradients before its own backward is not among those begun.
        some = self._begun > 0 or bool(self.losses)
        return self._begun >= loan.concurrency or (some and loan.room() < loan.need)

    def begin(self, data: Any) -> None:
        if self.is_full:
            self.flush()
        self._streams.begin(self._begun, data)
        self._begun += 1

    def add(self, losses: list[Tensor]) -> None:
        self.losses += losses
        self._streams.home()

    def flush(self) -> None:
        from cotune.sharing.concurrent import joint_backward

        self._streams.home()
        losses, self.losses = self.losses, []
        self._begun = 0
        with _explained():
            joint_backward(losses)

    def leave(self) -> None:
        """Runs the outstanding backward after the loop was left early, unless the trial is stopping."""
        if self._loan.is_stopping:
            return
        try:
            self.flush()
        except Exception as error:
            # Raised here, the error would be lost and the trial would go on with wrong gradients.
            self._loan.fail(error)


def _run_group(
    micros: Sequence[MicroBatch], loan: Loan, streams: Streams, buffers: Buffers, loss_of: Callable[..., Any]
) -> list[Tensor]:
    """Runs one group, and runs it again one at a time if memory runs out.

    Returns:
        The losses of the micro-batches taken from the front of `micros`.
    """
    from cotune.sharing.repeats import Generators, Leaves, set_aside

    generators, leaves, group = Generators(), None, _Group(loan, streams)
    buffers.begin()
    given: list[Tensor] = []
    mine: list[Tensor] = []
    try:
        for micro in micros:
            if group.is_full:
                break
            group.begin(micro.data)
            mine = _weighted(micro, _losses(loss_of, micro))
            given.append(_total(mine))
            group.add(mine)
        leaves = Leaves(group.losses)
        group.flush()
        return given
    except Exception as error:
        if not out_of_memory(error)[0]:
            # As in a plain loop, what came before the error counts.
            group.flush()
            raise
        clear_frames(error)
    streams.join()
    count = max(len(given), 1)
    finished = leaves.finished() if leaves is not None else []
    for held in (given, group.losses, mine):
        held.clear()
    buffers.restore()
    generators.restore()
    loan.ran_out()
    with set_aside(finished):
        return [_forward_and_backward(micro, loss_of) for micro in micros[:count]]


def _forward_and_backward(micro: MicroBatch, loss_of: Callable[..., Any]) -> Tensor:
    parts = _weighted(micro, _losses(loss_of, micro))
    total = _total(parts)
    _backward(parts)
    return total


def _losses(loss_of: Callable[..., Any], micro: MicroBatch) -> Sequence[Any]:
    data = micro.data
    unpacks = isinstance(data, list) or (isinstance(data, tuple) and not hasattr(data, "_fields"))
    given = loss_of(*data) if unpacks else loss_of(data)
    return given if isinstance(given, (tuple, list)) else (given,)


def _weighted(micro: MicroBatch, losses: Sequence[Any]) -> list[Tensor]:
    import torch

    if not losses:
        raise InputError("backward() was called without a loss", hint="write micro.backward(loss)")
    for loss in losses:
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            given = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else repr(loss)[:60]
            raise InputError(
                f"the loss of micro-batch {micro.index} is {given}, not a single number",
                hint="reduce it over its samples, as reduction='mean' does in torch's losses",
            )
    # Always another tensor: a loop may change its own in place before the backward that was put off.
    return [loss * micro.weight for loss in losses]


def _total(losses: Sequence[Tensor]) -> Tensor:
    import torch

    losses = [loss.detach() for loss in losses]
    dtype = functools.reduce(torch.promote_types, [loss.dtype for loss in losses])
    # In half precision the last of many addends would be lost.
    return sum(losses[1:], losses[0].to(torch.promote_types(dtype, torch.float32))).to(dtype)


def _backward(losses: Sequence[Tensor]) -> None:
    import torch

    with _explained():
        torch.autograd.backward(list(losses))


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Says what to do about a graph that micro-batches share: torch advises an option that these backwards lack."""
    try:
        yield
    except RuntimeError as error:
        if _FREED not in str(error):
            raise
        raise InputError(
            "the graph of a micro-batch was freed by a backward before, perhaps since several hang on one",
            hint="compute what depends on parameters within the loop or the function, or detach() it before; "
            "and leave backward() to cotune",
        ) from error


def _loan(count: int) -> Loan | None:
    """The running trial's loan, to which a batch of so many micro-batches is announced; None if it can have none."""
    running = session.current()
    # CuPy does not follow torch to other streams: its memory would be refused, and what it computes come too late.
    if running is None or (sys.modules.get("cupy") is not None and running.device() != "cpu"):
        return None
    return running.micro_batches(count)


def micro_batches(batch: Any, size: int, *, reduction: str = "mean") -> MicroBatches:
    """Splits a batch along dim 0 into micro-batches whose gradients add up to those of the whole batch.

    Where the packer has lent the trial idle room, several micro-batches run at once, and results may differ in float
    rounding. Otherwise this is the plain loop, in which `micro.backward(loss)` is `(loss * micro.weight).backward()`:

        for micro in cotune.micro_batches((x, y), 32):
            x, y = micro.data
            micro.backward(loss_fn(model(x), y))

    The other form is shorter, returns the loss, and recovers if memory runs out with several micro-batches at once:

        loss = cotune.micro_batches((x, y), 32).backward(lambda x, y: loss_fn(model(x), y))

    Args:
        batch: A tensor, or tuples, lists, named tuples and dicts of tensors, all with the same dim 0.
        size: Samples in a micro-batch; the last may have fewer.
        reduction: How a micro-batch's loss is reduced over its samples: `mean` (losses are weighted by the number of
            samples, so that a smaller last micro-batch counts less) or `sum` (losses are added up as they are).

    Raises:
        InputError: The batch cannot be split that way.
    """
    return MicroBatches(batch, size, reduction)
