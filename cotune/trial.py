"""A trial: one configuration being trained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from cotune.demand import Estimate


class TrialState(StrEnum):
    """Where a trial stands. The last four are final for a run; an interrupted trial can be resumed."""

    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"
    INTERRUPTED = "interrupted"

    @property
    def is_final(self) -> bool:
        return self not in (TrialState.WAITING, TrialState.RUNNING, TrialState.PAUSED)


class Outcome(StrEnum):
    """How one attempt at a trial ended."""

    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"
    OUT_OF_MEMORY = "out_of_memory"


@dataclass(frozen=True, slots=True)
class TrialSpec:
    """All a body needs to run one attempt of a trial.

    Attributes:
        trial: The trial's number in the run, from 0.
        attempt: 0 the first time, one more after every restart.
        config: What the trainable is called with.
        seed: Seeds torch, numpy and random before the trainable starts.
        folder: The trial's own folder, for its log and its checkpoints.
        packed: `config`, pickled separately where it may hold objects that only cloudpickle can send; `config` is
            empty then.
        reports: Reports of earlier attempts that are stored. No checkpoint stands behind more than these, whatever
            number of reports it was saved with.
        step: The step of the report behind which its newest checkpoint stands; 0 if there is none.
    """

    trial: int
    attempt: int
    config: Mapping[str, Any]
    seed: int
    folder: Path
    packed: bytes = b""
    reports: int = 0
    step: int = 0


@dataclass(frozen=True, slots=True)
class Question:
    """A question of a trial, which waits until `Engine.answer`.

    Attributes:
        trial: The trial's number.
        attempt: The attempt that asks.
        payload: The question, in a form that only the asking trainable and the search understand.
    """

    trial: int
    attempt: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Estimated:
    """The outcome of estimating a trial before it runs.

    Attributes:
        trial: The trial's number.
        estimate: None if the trial could not be estimated.
        reason: Why it could not be estimated.
        seconds: How long the estimation took.
    """

    trial: int
    estimate: Estimate | None
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """One report of a trial.

    Attributes:
        trial: The trial's number.
        attempt: The attempt that made the report.
        step: The report's step, such as the epoch.
        value: The run's metric; NaN if this report does not carry it.
        line: The report as a line of the events file, newline included.
    """

    trial: int
    attempt: int
    step: int
    value: float
    line: bytes


def last_value(values: Sequence[tuple[int, float]]) -> float | None:
    """The metric in the last report that carries it, of reports as step and metric; None if none does."""
    return next((value for _, value in reversed(values) if not math.isnan(value)), None)
