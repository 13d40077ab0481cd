"""The interface between the driver's loop and the search, which proposes trials on another thread."""

from __future__ import annotations

import contextlib
import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cotune.errors import CotuneError
from cotune.paths import RunFolder
from cotune.trial import Question, TrialState

# At most so many reports and questions are served before a trial that was asked for: with more, a trial whose reports
# are slow to store would keep others from starting.
PATIENCE = 8


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A new trial to run, with its parameters by flat name."""

    trial: int
    params: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an attempt at a trial may go on after a report, is to stop, or to wait for a `Promotion`."""

    trial: int
    attempt: int
    stop: bool
    wait: bool = False


@dataclass(frozen=True, slots=True)
class Promotion:
    """A waiting trial is to go on."""

    trial: int


@dataclass(frozen=True, slots=True)
class Settled:
    """No waiting trial will ever go on."""


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The sampler has nothing more to suggest."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The sampler, the pruner or the journal raised."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a question of an attempt at a trial; with `stop`, the trial is pruned instead."""

    trial: int
    attempt: int
    payload: bytes
    stop: bool = False


# What `Proposer.answers` returns.
Answer = Suggestion | Verdict | Promotion | Settled | Reply | Exhausted | Failure


class Configs(Protocol):
    """Turns parameters into a trial's config, and into the features from which its memory is predicted."""

    def config(self, params: Mapping[str, Any]) -> dict[str, Any]: ...

    def features(self, params: Mapping[str, Any]) -> dict[str, float]: ...


class Proposer(ABC):
    """Proposes trials, judges their reports, answers their questions and hears how they ended.

    It works on a thread of its own: calls of the driver's loop are queued for that thread, answers for the loop.

    Args:
        folder: The run's folder. That of a new trial is made on that thread, before the trial is suggested.
        wake: Called whenever there is an answer.

    Attributes:
        judges: Whether every report is passed on, and gets a `Verdict`.
        waiting: Trials of earlier sessions that do not go on before a `Promotion`.
    """

    judges: bool
    waiting: Collection[int] = ()

    def __init__(self, folder: RunFolder, wake: Callable[[], None]) -> None:
        self._folder = folder
        self._wake = wake
        self._answers: deque[Answer] = deque()
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._wanted = 0
        # Commands served ahead of the next trial that was asked for.
        self._passed = 0
        self._dropping = threading.Event()

    def ask(self, count: int) -> None:
        """Asks for trials; each comes as a `Suggestion`."""
        self._commands.put(lambda: self._want(count))

    def drop_asks(self) -> None:
        """Suggests no more trials, not even those already asked for: an `Exhausted` comes instead."""
        self._dropping.set()
        self._answer(Exhausted())

    @abstractmethod
    def report(self, trial: int, attempt: int, step: int, value: float) -> None:
        """Passes a report on; a `Verdict` comes, if it judges."""

    @abstractmethod
    def question(self, question: Question) -> None:
        """Passes a trial's question on; a `Reply` comes."""

    @abstractmethod
    def tell(
        self,
        trial: int,
        state: TrialState,
        values: Sequence[tuple[int, float]],
        error: CotuneError | None,
    ) -> None:
        """Tells how a trial ended.

        Args:
            trial: The trial's number.
            state: `DONE`, `STOPPED` or `FAILED`.
            values: Step and metric of its reports; NaN in those that left the metric out.
            error: Why it failed, if it did.
        """

    @abstractmethod
    def settle(self) -> None:
        """Tells that nothing runs and all trials left wait; a `Promotion` or a `Settled` comes."""

    def answers(self) -> list[Answer]:
        """The answers since the last call."""
        found: list[Answer] = []
        while self._answers:
            found.append(self._answers.popleft())
        return found

    # ---- on its own thread

    @abstractmethod
    def _ask(self) -> None:
        """Suggests one trial, or answers that there are no more."""

    def _next(
        self, patience: float | None = None, idle: Callable[[], None] = lambda: None
    ) -> Callable[[], None] | None:
        """The next command to run; None at the end.

        Args:
            patience: Seconds to wait for a command; None to wait for ever.
            idle: The command to return if none came.
        """
        if not self._wanted:
            try:
                return self._commands.get(timeout=patience)
            except queue.Empty:
                return idle
        # A trial that waits for an answer goes before a trial that does not exist yet.
        if self._passed < PATIENCE:
            with contextlib.suppress(queue.Empty):
                command = self._commands.get_nowait()
                self._passed += 1
                return command
        self._wanted, self._passed = self._wanted - 1, 0
        return self._ask

    def _want(self, count: int) -> None:
        self._wanted += count

    def _answer(self, answer: Answer) -> None:
        self._answers.append(answer)
        self._wake()
