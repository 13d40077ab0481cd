"""The driver's record of a trial."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cotune import errors
from cotune.demand import Estimate
from cotune.errors import CotuneError
from cotune.packer import ConcludeTrial, Measures
from cotune.results import TrialResult
from cotune.trial import Report, TrialState, last_value

_HINTS = {
    **errors.HINTS,
    "LaneDied": "see log.txt in its folder; a native library may have crashed, something called os._exit, a timer or a "
    "limit sent a signal, or the kernel killed it for want of memory (dmesg says so)",
    "TrialFailed": "the traceback is in error.txt in the trial's folder",
}
_PRUNED = "under cotune.run, cotune.report stops trials by pruner=; cotune.optimize takes objectives that raise this"


@dataclass(slots=True)
class Record:
    """One trial of a run, from proposal to result.

    Attributes:
        lines: Its reports as lines of the events file, without those that a restart made again.
        values: Step and metric of the same reports.
        restarted: Whether it has started again and not reported since.
        estimate: The estimate made before it ran, if there is one.
        rested: Seconds it was paused.
        paused_at: When the present pause began; None if it is not paused.
        lasted: Seconds of its last attempt, by the monotonic clock; None if it has not ended, or that is not recorded.
        measures: What the brain has measured of it, and what it had expected.
        withdrawn: The state it will end in, `stopped` or `interrupted`, if it was told to stop.
        failures: Failures after which it was tried again.
        lane_deaths: Deaths of its lane after which it was tried again.
    """

    trial: int
    params: dict[str, Any]
    config: dict[str, Any]
    seed: int
    folder: Path
    state: TrialState = TrialState.WAITING
    lines: list[bytes] = field(default_factory=list)
    values: list[tuple[int, float]] = field(default_factory=list)
    attempts: int = 0
    restarted: bool = False
    withdrawn: TrialState | None = None
    failures: int = 0
    lane_deaths: int = 0
    device: str | None = None
    lane: int | None = None
    start: float | None = None
    end: float | None = None
    estimate: Estimate | None = None
    lasted: float | None = None
    measures: Measures = field(default_factory=Measures)
    rested: float = 0.0
    paused_at: float | None = None
    error: CotuneError | None = None

    def add(self, report: Report) -> None:
        """Adds a report; the first after a restart removes those from its step on, which will be made again."""
        while self.restarted and self.values and self.values[-1][0] >= report.step:
            del self.lines[-1], self.values[-1]
        self.restarted = False
        self.lines.append(report.line)
        self.values.append((report.step, report.value))

    def starts(self, device: str | None, lane: int, when: float) -> None:
        """Notes that an attempt begins."""
        self.goes_on(when)
        self.restarted = self.attempts > 0
        self.attempts += 1
        self.device, self.lane = device, lane
        self.start = self.start or when

    def lane_up(self, when: float) -> None:
        """Notes that the lane process it waited for is up."""
        if self.attempts == 1:
            self.start = when

    def pauses(self, when: float) -> None:
        """Notes that the trial is told to pause."""
        self.paused_at = self.paused_at or when

    def goes_on(self, when: float) -> None:
        """Notes that the trial goes on in its lane, or that its attempt is over."""
        if self.paused_at is not None:
            self.rested += when - self.paused_at
            self.paused_at = None

    @property
    def standing(self) -> TrialState:
        """The state to show: a trial put off before it has begun still waits, for a later session."""
        has_begun = self.attempts > 0 or self.state is not TrialState.INTERRUPTED
        return self.state if has_begun else TrialState.WAITING

    @property
    def last_value(self) -> float | None:
        return last_value(self.values)

    @property
    def last_step(self) -> int | None:
        return self.values[-1][0] if self.values else None

    @property
    def seconds(self) -> float | None:
        """How long the trial would have run alone; None unless it was done in its first attempt."""
        if self.state is not TrialState.DONE or self.attempts > 1 or self.start is None or self.end is None:
            return None
        # Measured is what it ran without the turns of its lane-mates.
        ran = self.measures.seconds
        if ran is None:
            ran = (self.end - self.start if self.lasted is None else self.lasted) - self.rested
        return ran * self.measures.speed

    @property
    def comparable(self) -> Estimate | None:
        """The estimate, if measurements compare with it: a failed trial may not have reached its peak."""
        return None if self.state is TrialState.FAILED else self.estimate

    def result(self) -> TrialResult:
        measures, demand = self.measures, self.measures.demand
        return TrialResult(
            id=self.trial,
            config=self.config,
            state=self.standing,
            error=self.error,
            persistent=demand.persistent if demand else None,
            ephemeral=demand.ephemeral if demand else None,
            expected=measures.expected,
            device=self.device,
            lane=self.lane,
            start=self.start,
            end=self.end,
            attempts=self.attempts,
            folder=self.folder,
            slowdown=measures.slowdown,
            seconds=measures.seconds,
            expected_seconds=measures.expected_seconds,
            _lines=tuple(self.lines),
        )


def end_event(record: Record) -> dict[str, Any]:
    """The fields of a trial's `end` event."""
    error, measures, demand = record.error, record.measures, record.measures.demand
    return {
        "trial": record.trial,
        "state": str(record.state),
        "persistent": demand.persistent if demand else None,
        "ephemeral": demand.ephemeral if demand else None,
        "busy": demand.busy if demand else None,
        "expected": measures.expected,
        "slowdown": measures.slowdown,
        "speed": round(measures.speed, 4),
        "seconds": measures.seconds,
        "lasted": None if record.lasted is None else round(record.lasted, 6),
        "expected_seconds": measures.expected_seconds,
        "error": None if error is None else [type(error).__name__, error.message, error.hint],
    }


def error_of(conclusion: ConcludeTrial) -> CotuneError:
    """The error a trial failed with, as the user sees it."""
    kind = errors.class_named(conclusion.error)
    message, hint = errors.message_and_hint(conclusion.reason)
    if not hint:
        hint = _PRUNED if message.partition(":")[0] == "TrialPruned" else _HINTS.get(conclusion.error, "")
    return kind(f"trial {conclusion.trial}: {message}", hint=hint)


def best_of(records: Iterable[Record], mode: str) -> Record | None:
    """The done trial with the best last metric; of several, that with the lowest number, as `Results.best`."""
    sign = 1.0 if mode == "min" else -1.0
    told = ((one.last_value, one) for one in records if one.state is TrialState.DONE)
    done = [(sign * value, one.trial, one) for value, one in told if value is not None]
    return min(done, key=lambda it: it[:2])[2] if done else None


def json_safe(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters as JSON keeps them; options that JSON cannot express are labels already."""
    decoded: dict[str, Any] = json.loads(json.dumps(params))
    return decoded
