"""What an imagined trial is, and what imagined devices do to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Ending(StrEnum):
    """What a trial does after its last iteration."""

    RETURNS = "returns"
    RAISES = "raises"
    DIES = "dies"
    HANGS = "hangs"


@dataclass(frozen=True, slots=True)
class Work:
    """A trial as it is, alone on a device.

    Attributes:
        iterations: How many it runs.
        step_seconds: How long each takes.
        startup: Seconds before the first one.
        persistent: Bytes it holds between iterations.
        ephemeral: Bytes within one, on top.
        busy: Share of the device's time it uses.
        late: Ephemeral bytes on top of those from the third iteration on.
        report_at: Iterations after which it reports, ascending.
        value: What it reports, by iteration.
        checkpoints: Whether it saves itself before each report, and goes on from there when it starts again.
        splits: Micro-batches of each batch; 0 if it has none.
        gain: Its speed by how many of them run at once, 1 being that of one.
        bursts: With more at once than this memory runs out whatever the quota; 0 if that depends on the quota only.
        ending: How it ends.
        message: What it raises.
    """

    iterations: int
    step_seconds: float
    startup: float = 0.0
    persistent: int = 0
    ephemeral: int = 0
    busy: float = 1.0
    late: int = 0
    report_at: Sequence[int] = ()
    value: Callable[[int], float] = float
    checkpoints: bool = False
    splits: int = 0
    gain: Callable[[int], float] = lambda concurrency: 1.0
    bursts: int = 0
    ending: Ending = Ending.RETURNS
    message: str = ""

    @property
    def seconds(self) -> float:
        """How long it takes alone."""
        return self.startup + self.iterations * self.step_seconds

    def peak(self, iteration: int, concurrency: int = 1) -> int:
        """Ephemeral bytes of an iteration, the first being 1; each micro-batch that runs at once takes as much."""
        return concurrency * (self.ephemeral + (self.late if iteration > 2 else 0))


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds that acting takes, and how often a trial says how it gets on.

    Attributes:
        open: A new lane, until it is ready.
        close: Until a lane's bytes are free.
        resize: Until a new quota is confirmed.
        start: A trial in a warm lane.
        quiet: Between two `LaneQuiet` of a lane that hangs.
        progress: Events about its progress in a trial's life, beside those of the first two iterations.
    """

    open: float = 1.0
    close: float = 0.1
    resize: float = 0.01
    start: float = 0.001
    quiet: float = 1.0
    progress: int = 8
