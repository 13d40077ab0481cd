"""A trial: one configuration being trained."""

from __future__ import annotations

from collections.abc import Mapping
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
        trial: Its number in the run, from 0.
        attempt: 0 the first time, one more after every restart.
        config: What the trainable is called with.
        seed: Seeds torch, numpy and random before the trainable starts.
        folder: The trial's own folder, for its log and its checkpoints.
        packed: `config`, pickled apart where it may hold what only cloudpickle can send; that is empty then.
    """

    trial: int
    attempt: int
    config: Mapping[str, Any]
    seed: int
    folder: Path
    packed: bytes = b""


@dataclass(frozen=True, slots=True)
class Question:
    """Something a trial wants to know, and waits for; `Engine.answer` lets it go on.

    Attributes:
        trial: The trial's number.
        attempt: In which attempt it was asked.
        payload: What was asked, which only the asking trainable and the search understand.
    """

    trial: int
    attempt: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Estimated:
    """What came of estimating a trial before it runs.

    Attributes:
        trial: The trial's number.
        estimate: None if it could not be estimated.
        reason: Why not.
        seconds: How long it took.
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
        attempt: In which attempt it was made.
        step: Where it is.
        value: The run's metric; NaN if this report does not carry it.
        line: The report as a line of the events file, newline included.
    """

    trial: int
    attempt: int
    step: int
    value: float
    line: bytes
