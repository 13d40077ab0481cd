"""What the driver's loop needs of whoever proposes trials, whatever thread that thinks on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cotune.errors import CotuneError
from cotune.trial import Question


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a question of an attempt at a trial; with `stop`, the trial is pruned instead."""

    trial: int
    attempt: int
    payload: bytes
    stop: bool = False


class Configs(Protocol):
    """What parameters mean to a trial, and to a prediction of its memory."""

    def config(self, params: Mapping[str, Any]) -> dict[str, Any]: ...

    def features(self, params: Mapping[str, Any]) -> dict[str, float]: ...


class Proposer(Protocol):
    """Proposes trials, judges their reports, answers their questions and hears how they ended; never waits.

    Attributes:
        judges: Whether every report is passed on, and gets a `Verdict`.
    """

    judges: bool

    def ask(self, count: int = 1) -> None: ...

    def report(self, trial: int, attempt: int, step: int, value: float) -> None: ...

    def question(self, question: Question) -> None: ...

    def complete(self, trial: int, value: float, values: Iterable[tuple[int, float]] = ()) -> None: ...

    def prune(self, trial: int, values: Iterable[tuple[int, float]] = ()) -> None: ...

    def fail(self, trial: int, error: CotuneError | None = None) -> None: ...

    def settle(self) -> None: ...

    def answers(self) -> Sequence[object]: ...

    def drop_asks(self) -> None: ...
