"""When and where the trials of a run ran, according to its events file."""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cotune.demand import Demand
from cotune.packer import MAX_SLOWDOWN
from cotune.paths import RunFolder
from cotune.record import is_put_off, measured_in, replay
from cotune.simulation.workload import features
from cotune.trial import TrialState


@dataclass(slots=True)
class Stretch:
    """An uninterrupted time in which a trial ran in a lane.

    Attributes:
        end: If no end was noted, the end of the session or, if that is unknown, the last event of the trial.
    """

    device: str
    lane: int
    start: float
    end: float


@dataclass(slots=True)
class Attempt:
    """From a start of a trial to its end, the next start, or the end of the session.

    Attributes:
        steps: Its reports, as step and time, without those that a later attempt made again.
    """

    stretches: list[Stretch] = field(default_factory=list)
    steps: list[tuple[int, float]] = field(default_factory=list)
    is_running: bool = True


@dataclass(slots=True)
class Past:
    """The history of one trial.

    Attributes:
        state: How it ended; None if it has not.
        seconds: How long it had the turn, in its last attempt; None if that was not recorded.
        priority: Its priority.
        features: What its memory and length were predicted from.
    """

    attempts: list[Attempt] = field(default_factory=list)
    state: TrialState | None = None
    demand: Demand | None = None
    seconds: float | None = None
    priority: float = 0.0
    features: dict[str, float] = field(default_factory=dict)

    @property
    def turns(self) -> float | None:
        """The share of its time in lanes for which it had the turn; None if that is not known."""
        if self.seconds is None or len(self.attempts) != 1:
            return None
        lasted = sum(it.end - it.start for it in self.attempts[0].stretches)
        return min(1.0, self.seconds / lasted) if lasted else None

    def counted(self) -> list[Stretch]:
        """The stretches that led to its result: all of the last attempt, and of earlier attempts what it went on from.

        An attempt that was cut off counts up to its last report that no later attempt made again. So it does not count
        if the next one began anew, and counts about up to the checkpoint if the next one went on from there.
        """
        found: list[Stretch] = []
        for attempt in self.attempts[:-1]:
            until = attempt.steps[-1][1] if attempt.steps else 0.0
            cut = (Stretch(it.device, it.lane, it.start, min(it.end, until)) for it in attempt.stretches)
            found += [stretch for stretch in cut if stretch.end > stretch.start]
        return found + [it for attempt in self.attempts[-1:] for it in attempt.stretches if it.end > it.start]


@dataclass(frozen=True, slots=True)
class Hardware:
    """A device of a run.

    Attributes:
        capacity: Bytes for all its lanes.
        context: Bytes of a lane before any trial: the guess before a lane had measured it.
        max_width: Most lanes that could pay.
        lanes: How many were asked for; None if the number was found by measuring.
        idle_width: Most lanes that could pay while the running ones leave the device idle; 0 if none more.
    """

    capacity: int
    context: int
    max_width: int
    lanes: int | None
    idle_width: int


@dataclass(frozen=True, slots=True)
class History:
    """What an events file says about all sessions of a run.

    Attributes:
        trials: By number.
        hardware: The devices of the last session in which a trial started.
        context: Measured bytes of a lane before any trial; None if not recorded.
        opening: Median seconds until a lane was ready that was opened after another one was; 0 if there was none. The
            first lanes are left out: they include preparations of the run, which are no part of a makespan.
        policy: Name of its policy, in the last session; empty if not recorded.
        residents: Most trials that shared a lane, as asked for.
        max_slowdown: Largest factor by which others might slow a trial with a priority above 0.
    """

    trials: dict[int, Past]
    hardware: Sequence[Hardware]
    context: int | None
    opening: float
    policy: str
    residents: int
    max_slowdown: float


def read_history(folder: RunFolder) -> History:
    """Reads the events file of a run.

    Raises:
        StorageError: As for `replay`.
    """
    reader = _Reader()
    replay(folder, reader.take_in)
    reader.cut_off()
    return History(
        reader.trials,
        list(reader.used.values()),
        max(reader.contexts, default=None),
        statistics.median(reader.waits) if reader.waits else 0.0,
        reader.policy,
        reader.residents,
        reader.max_slowdown,
    )


class _Reader:
    def __init__(self) -> None:
        self.trials: dict[int, Past] = {}
        self.there: dict[str, Hardware] = {}
        self.used: dict[str, Hardware] = {}
        self.contexts: list[int] = []
        self.waits: list[float] = []
        self.policy, self.residents, self.max_slowdown = "", 1, MAX_SLOWDOWN
        self._now = 0.0
        self._up_since = math.inf

    def take_in(self, event: dict[str, Any], _line: bytes) -> None:
        kind, number = event["event"], event.get("trial")
        if kind == "run":
            # A session begins: close whatever the previous one left open.
            self.cut_off()
            self.there, self._up_since = {}, math.inf
            self.policy, self.residents = str(event.get("policy", "")), int(event.get("residents", 1))
            self.max_slowdown = float(event.get("max_slowdown", MAX_SLOWDOWN))
        elif kind == "device":
            capacity, context, most, idle = (
                operator.index(event[name]) for name in ("capacity", "context", "max_width", "idle_width")
            )
            lanes = None if event["lanes"] is None else operator.index(event["lanes"])
            self.there[event["device"]] = Hardware(capacity, context, most, lanes, idle)
        elif kind == "trial":
            self.trials[event["trial"]] = Past(features=features(dict(event["params"])))
        elif number in self.trials:
            self._of_trial(self.trials[number], event)
        self._now = event["time"]

    def cut_off(self) -> None:
        for trial in self.trials.values():
            for attempt in trial.attempts[-1:]:
                _stop(attempt, self._now)

    def _of_trial(self, trial: Past, event: dict[str, Any]) -> None:
        kind, time, lasted = event["event"], event["time"], None
        if kind == "start":
            if not self.there:
                raise ValueError("there is no device yet")
            self.used = self.there
            # An attempt that still seems to run was cut off in a session whose end is not known.
            for before in trial.attempts[-1:]:
                if before.is_running:
                    before.is_running, self._up_since = False, math.inf
            lane = operator.index(event["lane"])
            trial.attempts.append(Attempt([Stretch(event["device"] or "", lane, time, time)]))
            # One whose checkpoint found no room runs again.
            trial.state = None
        elif kind == "priority":
            trial.priority = float(event["priority"])
        elif kind == "end" and not is_put_off(event):
            trial.state = TrialState(event["state"])
            demand, trial.seconds, lasted = measured_in(event)
            trial.demand = demand or trial.demand
        if not trial.attempts:
            return
        attempt = trial.attempts[-1]
        last = attempt.stretches[-1]
        if kind == "ready":
            # The wall clock may have been set back meanwhile.
            if self._up_since <= last.start <= time:
                self.waits.append(time - last.start)
            self._up_since = min(self._up_since, time)
            if "context" in event:
                self.contexts.append(operator.index(event["context"]))
            last.start = last.end = time
        elif kind == "report":
            self._reported(trial, event["step"], time)
        elif kind == "resume":
            attempt.stretches.append(Stretch(last.device, last.lane, time, time))
            attempt.is_running = True
        elif kind in ("pause", "retry", "end"):
            if attempt.is_running and lasted is not None:
                # The wall clock goes on while the machine is suspended, and may be set. `lasted` counts the attempt's
                # earlier stretches and pauses, too, so it is the most that the last stretch can have taken.
                last.start = max(last.start, time - lasted)
            _stop(attempt, time)

    def _reported(self, trial: Past, step: int, time: float) -> None:
        attempt = trial.attempts[-1]
        if not attempt.steps:
            for before in trial.attempts[:-1]:
                while before.steps and before.steps[-1][0] >= step:
                    del before.steps[-1]
        attempt.steps.append((step, time))
        if attempt.is_running:
            attempt.stretches[-1].end = max(attempt.stretches[-1].end, time)


def _stop(attempt: Attempt, time: float) -> None:
    if attempt.is_running:
        attempt.stretches[-1].end = max(attempt.stretches[-1].end, time)
        attempt.is_running = False
