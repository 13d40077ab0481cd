"""What a trainable calls while it runs: report, checkpoint, restore, and where it is.

Without a run around it the same functions work for a plain call of the trainable: `report` prints, `restore`
returns None.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Loan(Protocol):
    """What a trial may use for micro-batches on top of what it has anyway.

    Attributes:
        concurrency: How many micro-batches may run at once; 1 if nothing was granted.
        need: Bytes one micro-batch takes at most, by what was measured without a grant; 0 before that.
        is_open: A batch is being run with it; until that is over it does not change, but for `ran_out()`.
    """

    concurrency: int
    need: int
    is_open: bool

    @property
    def is_stopping(self) -> bool:
        """Whether the trial is to stop, and what it has begun to no purpose."""

    def room(self) -> int:
        """Bytes the trial may still take before its lane's quota is used up."""

    def ran_out(self) -> None:
        """Gives the grant back, memory having run out with it."""

    def fail(self, error: Exception) -> None:
        """Makes the trial fail with this error at its next boundary, from where it cannot be raised."""


class Session(Protocol):
    """The run's side of a trial.

    Attributes:
        trial: Its number.
        folder: Its own.
        met_stop_rule: Its last report was made: `stop=` is met, or a step class has said so.
    """

    trial: int
    folder: Path
    met_stop_rule: bool

    def report(self, metrics: Mapping[str, Any], step: int | None) -> None: ...

    def checkpoint(self) -> AbstractContextManager[Path]: ...

    def restore(self) -> Path | None: ...

    def device(self) -> str: ...

    def shared(self, key: str, factory: Callable[[], T]) -> T: ...

    def leave_if_over(self) -> None:
        """Raises `TrialStopped` if the trial is to end: between iterations, where all that belongs to one is saved."""

    def micro_batches(self, count: int) -> Loan:
        """Says that a batch is about to be run as so many micro-batches, and asks what may be used for it."""

    def ask(self, payload: bytes) -> bytes:
        """Asks the driver something and waits for the answer; an iteration boundary, but no iteration."""

    def observe(self, value: float, step: int) -> None:
        """Reports one number in a run that has no metric; any number, also NaN."""


class TrialStopped(BaseException):
    """Raised inside a trial at an iteration boundary when it should stop.

    Not an `Exception`, so that a trainable that catches those does not catch this one by accident.
    """


_local = threading.local()
_holder: Session | None = None
_shared: dict[str, Any] = {}


def current() -> Session | None:
    """The session of the calling thread, or of the trial that has started it; else that of whoever has the turn."""
    session: Session | None = getattr(_local, "session", None)
    return session if session is not None else _starter() or _holder


def _starter() -> Session | None:
    """The session of the trial that has started the calling thread, as far as that is known."""
    session: Session | None = getattr(threading.current_thread(), "_cotune_session", None)
    return session


def mark_threads() -> None:
    """Makes threads that a trial starts known as its own, in a process where several trials run."""
    start = threading.Thread.start

    @functools.wraps(start)
    def start_marked(thread: threading.Thread) -> None:
        session = getattr(_local, "session", None) or _starter()
        if session is not None:
            vars(thread)["_cotune_session"] = session
        start(thread)

    threading.Thread.start = start_marked  # type: ignore[assignment, method-assign]


def bind(session: Session | None) -> None:
    """Makes `session` the calling thread's own."""
    _local.session = session


def set_holder(session: Session | None) -> None:
    """Says whose turn it is in this process."""
    global _holder
    _holder = session


def leave_process() -> None:
    """Makes the calling thread, alone in a process that was just forked, nobody's."""
    vars(threading.current_thread()).pop("_cotune_session", None)
    bind(None)
    set_holder(None)


def report(metrics: Mapping[str, Any], *, step: int | None = None) -> None:
    """Reports metrics of the running trial; also an iteration boundary.

    It returns once the verdict on the previous report is in. Where a pruner judges and no optimizer's step would hear
    of it next, it waits for its own, too: for a twentieth of the time since the last report at most.

    Args:
        metrics: Names to numbers (Python, numpy or one-element tensors); strings, booleans and None may go along.
        step: Where the trial is, such as the epoch: a whole number from 0 on. The number of reports so far, from 1, if
            left out.

    Raises:
        InputError: The trial is one of `cotune.optimize`, where `trial.report()` is to be called.
        MetricError: The run's metric is missing from the first report, NaN or not a number, or a value of
            another metric cannot be stored; or the step is no whole number.
    """
    session = current()
    if session is not None:
        session.report(metrics, step)
        return
    where = "" if step is None else f"step {step}: "
    print(
        where
        + ", ".join(
            f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}" for name, value in metrics.items()
        ),
        file=sys.stdout,
    )


def checkpoint() -> AbstractContextManager[Path]:
    """A directory to save the trial's state into, published when the block ends without an error.

    Until then the previous checkpoint stays valid, also when the disk is full or the process is killed. Only the
    newest is kept. Outside of a run the directory is a temporary one.

    Take it after the report of the same epoch. A trial that is killed between the two would otherwise start again
    behind an epoch it never reported.

    Raises:
        InputError: Another one is being written.
        StorageError: It cannot be written; the previous one is still valid.
    """
    session = current()
    return session.checkpoint() if session is not None else _temporary()


@contextlib.contextmanager
def _temporary() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cotune-") as path:
        yield Path(path)


def restore() -> Path | None:
    """The directory of this trial's last checkpoint, or None if it starts from nothing.

    Once it was asked for, reports count on from there; a trial that never asks begins anew.
    """
    session = current()
    return session.restore() if session is not None else None


def device() -> str:
    """The torch name of the device the trial runs on: `cuda:0` (in its process, that is its own GPU) or `cpu`."""
    session = current()
    if session is not None:
        return session.device()
    torch = sys.modules.get("torch")
    return "cuda:0" if torch is not None and torch.cuda.is_available() else "cpu"


def trial_id() -> int | None:
    """The number of the running trial; None outside of a run."""
    session = current()
    return session.trial if session is not None else None


def met_stop_rule() -> bool:
    """Whether the running trial has made its last report, since `stop=` is met."""
    session = current()
    return session is not None and session.met_stop_rule


def made_last_report() -> None:
    """Says that the running trial makes no more reports."""
    session = current()
    if session is not None:
        session.met_stop_rule = True


def leave_if_over() -> None:
    """Ends the running trial here, if it is to end.

    Raises:
        TrialStopped: It is.
    """
    session = current()
    if session is not None:
        session.leave_if_over()


def folder() -> Path | None:
    """The folder of the running trial, with its log and its checkpoints; None outside of a run."""
    session = current()
    return session.folder if session is not None else None


def shared(key: str, factory: Callable[[], T]) -> T:
    """An object built once in a lane process and used by all trials that run there, such as a data set.

    Treat it as read-only. Its memory is the lane's, not the trial's.

    Args:
        key: Its name.
        factory: Called without arguments by the first trial that asks.
    """
    session = current()
    if session is not None:
        return session.shared(key, factory)
    if key not in _shared:
        _shared[key] = factory()
    value: T = _shared[key]
    return value
