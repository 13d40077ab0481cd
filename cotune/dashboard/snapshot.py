"""A snapshot of a run: all the data that views are made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cotune.packer import PackerView


def finished(counts: Mapping[str, int]) -> int:
    """How many trials have ended, of those in each state."""
    return sum(counts.get(state, 0) for state in ("done", "stopped", "failed"))


@dataclass(frozen=True, slots=True)
class RunningView:
    """A trial that runs now.

    Attributes:
        seconds: Seconds since it started.
        step: The step of its last report.
        value: The last reported value of the run's metric.
        peak: Measured peak bytes; None before the second iteration.
        slowdown: Measured factor by which other trials slow it down; None without priority.
    """

    trial: int
    seconds: float
    step: int | None
    value: float | None
    peak: int | None
    slowdown: float | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at one moment.

    Attributes:
        seconds: Seconds since the session began.
        total: Trials wanted; None if only a time budget ends the run.
        counts: Trials by state.
        best: Number and metric of the best done trial.
        note: The latest failure or news, in one line.
        seconds_left: Roughly how long the rest will take; None if unknown.
        ends_early: Whether what has not begun will not be run.
    """

    name: str
    metric: str
    seconds: float
    total: int | None
    counts: dict[str, int]
    best: tuple[int, float] | None
    running: tuple[RunningView, ...]
    packer: PackerView
    note: str = ""
    seconds_left: float | None = None
    ends_early: bool = False

    @property
    def finished(self) -> int:
        return finished(self.counts)

    @property
    def is_starting(self) -> bool:
        """Whether no lane is up yet: a lane's process imports first, which takes seconds."""
        if self.finished or self.ends_early:
            return False
        return not any(lane.ready for device in self.packer.devices for lane in device.lanes)
