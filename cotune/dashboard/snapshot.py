"""A run, frozen for a moment: all that any view of it is made from."""

from __future__ import annotations

from dataclasses import dataclass

from cotune.packer import PackerView


@dataclass(frozen=True, slots=True)
class RunningView:
    """A trial that runs now.

    Attributes:
        seconds: Since it started.
        step: Of its last report.
        value: The run's metric in its last report.
        peak: Measured bytes; None before the second iteration.
        slowdown: By what factor others slow it down, as measured; None without priority.
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
        seconds: Since it began.
        total: Trials wanted; None if only a time budget ends it.
        counts: Trials by state.
        best: Number and metric of the best finished trial.
        note: What just went wrong or is going on.
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

    @property
    def finished(self) -> int:
        return sum(self.counts.get(state, 0) for state in ("done", "stopped", "failed"))

    @property
    def is_starting(self) -> bool:
        """No process of a lane is up yet: they import first, which takes seconds."""
        return not self.finished and not any(lane.ready for device in self.packer.devices for lane in device.lanes)
