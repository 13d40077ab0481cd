"""What a trainable calls while it runs: report, checkpoint, restore, device, shared objects.

The same functions work when the trainable is called outside of a run: `report` prints, `restore` returns None.
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

from cotune.errors import InputError
from cotune.metrics import plain_metrics, whole_step

T = TypeVar("T")


class Loan(Protocol):
    """A trial's view of its grant: how many micro-batches it may run at once.

    Attributes:
        concurrency: How many micro-batches may run at once; 1 without a grant.
        need: Peak bytes of one micro-batch, as measured without a grant; 0 before that.
        is_open: Whether a batch is running under the grant, which then does not change except by `ran_out()`.
    """

    concurrency: int
    need: int
    is_open: bool

    @property
    def is_stopping(self) -> bool:
        """Whether the trial is being stopped, so that work it has begun need not be finished."""

    def room(self) -> int:
        """Bytes the trial may still take before its lane's quota is used up."""

    def ran_out(self) -> None:
        """Gives the grant back after memory ran out under it."""

    def fail(self, error: Exception) -> None:
        """Makes the trial fail with an error at its next boundary, for a caller that cannot raise it."""


class Session(Protocol):
    """The run's side of a trial.

    Attributes:
        trial: The trial's number.
        folder: The trial's folder.
        met_stop_rule: Whether the trial has made its last report: `stop=` is met, or a step class reported `done`.
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
        """Raises `TrialStopped` if the trial is to end; called between iterations, when the last one is saved."""

    def micro_batches(self, count: int) -> Loan:
        """Announces a batch that runs as `count` micro-batches; returns the trial's loan."""

    def ask(self, payload: bytes) -> bytes:
        """Sends the driver a question and waits for the answer; an iteration boundary, but no iteration."""

    def observe(self, value: float, step: int) -> None:
        """Reports one number, possibly NaN, in a run that has no metric."""


class TrialStopped(BaseException):
    """Raised inside a trial at an iteration boundary when it should stop.

    Not an `Exception`, so that a trainable's `except Exception` does not catch it by accident.
    """


class _Bound(threading.local):
    """The session that this thread is bound to."""

    session: Session | None = None


_bound = _Bound()
_holder: Session | None = None
_shared: dict[str, Any] = {}


def current() -> Session | None:
    """The session of the calling thread, or of the trial that started the thread, or of the trial with the turn."""
    session = _bound.session
    return session if session is not None else starter_of(threading.current_thread()) or _holder


def bound() -> Session | None:
    """The session that the calling thread is bound to: it runs the trainable of that trial."""
    return _bound.session


def starter_of(thread: threading.Thread) -> Session | None:
    """The session of the trial that started a thread; None if unknown."""
    session: Session | None = getattr(thread, "_cotune_session", None)
    return session


def mark_threads() -> None:
    """Makes every thread that a trial starts carry the trial's session, in a process where several trials run."""
    start = threading.Thread.start

    @functools.wraps(start)
    def start_marked(thread: threading.Thread) -> None:
        session = _bound.session or starter_of(threading.current_thread())
        if session is not None:
            vars(thread)["_cotune_session"] = session
        start(thread)

    threading.Thread.start = start_marked  # type: ignore[assignment, method-assign]


def bind(session: Session | None) -> None:
    """Binds the calling thread to a session; see `bound`."""
    _bound.session = session


def set_holder(session: Session | None) -> None:
    """Sets the session of the trial that has the turn in this process."""
    global _holder
    _holder = session


def leave_process(built: dict[str, Any]) -> None:
    """Drops all sessions in a process that was just forked, where the calling thread is the only one.

    Args:
        built: The shared objects that the process has inherited.
    """
    global _shared
    _shared = built
    vars(threading.current_thread()).pop("_cotune_session", None)
    bind(None)
    set_holder(None)


def report(metrics: Mapping[str, Any], *, step: int | None = None) -> None:
    """Reports metrics of the running trial; also an iteration boundary.

    Returns once the verdict on the previous report is in. In a run with a pruner, a trial that makes no optimizer steps
    also waits for the verdict on this report, for at most a twentieth of the time since the previous one.

    Args:
        metrics: Names to numbers (Python, numpy or one-element tensors); strings, booleans and None are allowed, too.
        step: How far the trial is, such as the epoch: a whole number from 0 on. If left out, the number
            of this report, from 1, or one more than the last step if that is larger.

    Raises:
        InputError: The trial belongs to `cotune.optimize`, where the objective calls `trial.report()` instead.
        MetricError: The run's metric is missing from the first report, NaN or not a number, or a value of
            another metric cannot be stored; or the step is not a whole number.
    """
    session = current()
    if session is not None:
        session.report(metrics, step)
        return
    values = plain_metrics(metrics)
    told = ", ".join(f"{name}={it:.6g}" if isinstance(it, float) else f"{name}={it}" for name, it in values.items())
    print(told if step is None else f"step {whole_step(step)}: {told}")


def checkpoint() -> AbstractContextManager[Path]:
    """A directory to save the trial's state into, published when the block ends without an error.

    Until then the previous checkpoint stays valid, even if the disk is full or the process is killed. Only the
    newest is kept. Outside of a run the directory is temporary.

    Take it after the report of the same epoch. Otherwise a trial that is killed between the two starts again
    past an epoch it never reported.

    Raises:
        InputError: Another checkpoint is being written.
        StorageError: The checkpoint cannot be written; the previous one is still valid.
    """
    session = current()
    return session.checkpoint() if session is not None else _temporary()


@contextlib.contextmanager
def _temporary() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cotune-") as path:
        yield Path(path)


def restore() -> Path | None:
    """The directory of this trial's last checkpoint, or None if there is none.

    After this call the count of reports goes on from the checkpoint; without it a restarted trial counts from 1.
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


def leave_if_over() -> None:
    """Ends the running trial here, if it is to end.

    Raises:
        TrialStopped: The trial is to end.
    """
    session = current()
    if session is not None:
        session.leave_if_over()


def folder() -> Path | None:
    """The folder of the running trial, with its log and its checkpoints; None outside of a run."""
    session = current()
    return session.folder if session is not None else None


def shared(key: str, factory: Callable[[], T]) -> T:
    """An object built once per lane process and used by all trials that run there, such as a data set.

    Treat it as read-only. Its memory counts as the lane's, not the trial's. What the factory draws from the global
    random generators is the same in every lane of a run, and no draw of the trial's.

    Args:
        key: The object's name.
        factory: Builds the object, without arguments, when the first trial of the lane asks for it.

    Raises:
        InputError: The key cannot be one of a dict, or the factory cannot be called.
    """
    if not callable(factory):
        raise InputError(
            f"shared() got factory={repr(factory)[:80]}, which cannot be called",
            hint="pass the function that builds the object, not what it returns: shared('data', load)",
        )
    try:
        hash(key)
    except TypeError:
        raise InputError(
            f"shared() got key={repr(key)[:80]}, by which nothing can be found again",
            hint="name the object in a string: shared('data', load)",
        ) from None
    session = current()
    if session is not None:
        return session.shared(key, factory)
    if key not in _shared:
        _shared[key] = factory()
    value: T = _shared[key]
    return value
