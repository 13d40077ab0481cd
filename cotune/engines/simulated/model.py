"""What a simulated trial does, and what the body's actions cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class LastAct(StrEnum):
    """What a trial does after its last iteration."""

    RETURNS = "returns"
    RAISES = "raises"
    DIES = "dies"
    HANGS = "hangs"


@dataclass(frozen=True, slots=True)
class Work:
    """A simulated trial, described as it is alone on a device.

    Attributes:
        iterations: Iterations it runs.
        step_seconds: Seconds per iteration.
        startup: Seconds before the first iteration.
        persistent: Bytes held between iterations.
        ephemeral: Bytes in addition within an iteration.
        busy: Share of the device's time it uses.
        late: Further ephemeral bytes from the third iteration on.
        report_at: Iterations after which it reports, ascending.
        value: What it reports, by iteration.
        checkpoints: Whether it saves before each report, and goes on from there when it starts again.
        splits: Micro-batches per batch; 0 if it does not split.
        gain: Its speed by the number of micro-batches that run at once; 1 is the speed with one.
        bursts: With more micro-batches at once, memory runs out whatever the quota; 0 for no such limit.
        ending: How it ends.
        message: Message of the error it raises.
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
    ending: LastAct = LastAct.RETURNS
    message: str = ""

    def peak(self, iteration: int, concurrency: int = 1) -> int:
        """Ephemeral bytes of an iteration, counted from 1; each concurrent micro-batch takes the same."""
        return concurrency * (self.ephemeral + (self.late if iteration > 2 else 0))


@dataclass(frozen=True, slots=True)
class Costs:
    """Durations of the body's actions in seconds, and how often a trial reports progress.

    Attributes:
        open: Until a new lane is ready.
        close: Until a lane's bytes are free.
        resize: Until a new quota is confirmed.
        start: Until a trial in a warm lane has started.
        progress: Progress events in a trial's life, in addition to those of its first two iterations.
        silence: Longest time between two of them, as if the trial ran alone.
    """

    open: float = 1.0
    close: float = 0.1
    resize: float = 0.01
    start: float = 0.001
    progress: int = 8
    silence: float = math.inf
