"""The parts of the simulated body: devices, lanes, running trials."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from cotune.engines.simulated.model import Work
from cotune.packer import DeviceFound


@dataclass(slots=True, eq=False)
class Device:
    """A simulated device."""

    found: DeviceFound
    lanes: dict[int, Lane] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Lane:
    """A simulated lane.

    Attributes:
        given: The resident that has every turn, by the brain's instruction.
        gone: Its process has ended.
    """

    id: int
    device: Device
    quota: int
    context: int
    ready: bool = False
    gone: bool = False
    given: int | None = None
    runs: dict[int, Run] = field(default_factory=dict)

    @property
    def held(self) -> int:
        return self.context + sum(run.held for run in self.runs.values())

    @property
    def holder(self) -> Run | None:
        """The run with the turn: one that hangs, else the first that shares the turns, else the first not paused."""
        hung = [run for run in self.runs.values() if run.hangs]
        return next(iter(hung or self.moving() or [run for run in self.runs.values() if not run.paused]), None)

    def moving(self) -> list[Run]:
        """The runs that share the turns."""
        # A run that hangs keeps the turn.
        if not self.ready or self.gone or any(run.hangs for run in self.runs.values()):
            return []
        runs = [run for run in self.runs.values() if not run.blocked and not run.paused]
        return [run for run in runs if run.trial == self.given] or runs


@dataclass(slots=True, eq=False)
class Run:
    """An attempt at a trial.

    Attributes:
        startup: Seconds left before its first iteration.
        progress: Seconds of iterations done, as if alone.
        counted: Iterations reported to the brain.
        seconds: Time its turns took since then.
        every: Iterations between two progress events.
        goal: The iteration after which something is due next.
        rate: Its speed; 1 is the speed alone.
        share: Its part of its lane's turns.
        reported: Number of reports made.
        unjudged: The last report has no verdict yet.
        blocked: It waits for that verdict.
        version: Counts changes of plan, to recognise outdated calendar entries.
        booked: Its next boundary is in the calendar.
        hangs: It never reaches another boundary.
        quiet_since: When it was last known to move: at its start, or where it hangs.
        is_starting: It has not begun its first iteration, and does not use the device.
        settled: Time up to which `progress` is correct.
        concurrency: Micro-batches that run at once.
        granted: `concurrency` from the next boundary on; None if unchanged.
        most: Largest `concurrency` since the brain last heard of its progress.
        pausing: It must pause at its next boundary.
        paused: It waits to be resumed.
    """

    trial: int
    attempt: int
    work: Work
    lane: Lane
    startup: float
    progress: float = 0.0
    counted: int = 0
    seconds: float = 0.0
    every: int = 1
    goal: int = 0
    rate: float = 0.0
    share: float = 0.0
    reported: int = 0
    unjudged: bool = False
    blocked: bool = False
    stopping: bool = False
    hangs: bool = False
    quiet_since: float = 0.0
    version: int = 0
    booked: bool = False
    settled: float = 0.0
    concurrency: int = 1
    granted: int | None = None
    most: int = 1
    is_starting: bool = True
    pausing: bool = False
    paused: bool = False

    @property
    def held(self) -> int:
        """Bytes held between iterations, once it has made one."""
        return self.work.persistent if self.counted else 0

    @property
    def is_moving(self) -> bool:
        return not (self.blocked or self.paused or self.hangs)

    def settle(self, now: float) -> None:
        """Updates the progress up to now."""
        elapsed = now - self.settled
        self.settled = now
        if self.rate <= 0.0:
            return
        self.seconds += elapsed * self.share
        done = elapsed * self.rate
        first = min(done, self.startup)
        self.startup -= first
        self.progress += done - first

    def seconds_to(self, goal: int) -> float:
        """Seconds to the end of an iteration, as if alone."""
        return max(0.0, self.startup + goal * self.work.step_seconds - self.progress)

    def next_goal(self) -> int:
        """The next iteration after which something is due."""
        work, counted = self.work, self.counted
        if self.is_starting:
            return counted
        if self.stopping or self.pausing or self.granted is not None:
            step = work.step_seconds
            reached = math.floor(self.progress / step + 1e-9) if step > 0 else counted
            return min(max(counted, reached) + 1, work.iterations)
        goal = counted + 1 if counted < 2 else counted + self.every - counted % self.every
        if self.reported < len(work.report_at):
            goal = min(goal, work.report_at[self.reported])
        return min(goal, work.iterations)


def busy(moving: list[Run]) -> float:
    """Device use of a lane's residents, which take turns."""
    return sum(run.work.busy for run in moving if not run.is_starting) / len(moving) if moving else 0.0
