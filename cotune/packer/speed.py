"""How fast a trial runs under one arrangement, and when another one is worth a try."""

from __future__ import annotations

from dataclasses import dataclass

# Factor by which more lanes, or more micro-batches at once, must raise a speed to be kept.
GAIN = 1.05
PATIENCE = 16


@dataclass(slots=True)
class Speed:
    """Iterations of a trial and the time they took, in seconds, under one arrangement."""

    count: int = 0
    seconds: float = 0.0
    samples: int = 0

    def add(self, count: int, seconds: float) -> None:
        self.count += count
        self.seconds += seconds
        self.samples += 1

    @property
    def step_seconds(self) -> float:
        return self.seconds / max(self.count, 1)


def pause_after(refusals: int) -> int:
    """Progress events until more is tried again, after it was refused so many times in a row."""
    return PATIENCE << refusals
