"""How well predictions did: what was expected of trials against what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from cotune.demand import MIB

# Trials that need less, or take less long, say nothing of how well is predicted: what is set aside for them is an
# allowance, and what they take is what starting takes.
LEAST_BYTES = 16 * MIB
LEAST_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Predictions of one quantity, held against measurements.

    Attributes:
        count: Trials of which both are known.
        ratio: Predicted over measured, the median.
        low: 5th percentile of the same; below 1 it was too little.
        high: 95th percentile.
        short: Share of the predictions that were too low.
    """

    count: int
    ratio: float
    low: float
    high: float
    short: float

    @classmethod
    def of(cls, pairs: Iterable[tuple[float | None, float | None]], least: float) -> Accuracy | None:
        """From pairs of predicted and measured; None if no pair is complete.

        Args:
            pairs: For each trial.
            least: Measured; trials with less are left out.
        """
        ratios = sorted(p / m for p, m in pairs if p and m and m >= least)
        if not ratios:
            return None
        last = len(ratios) - 1
        # What is printed as 1.00 is not too low.
        short = sum(1 for ratio in ratios if ratio < 0.995) / len(ratios)
        low, high = ratios[round(0.05 * last)], ratios[round(0.95 * last)]
        return cls(len(ratios), statistics.median(ratios), low, high, short)

    def __str__(self) -> str:
        if self.count == 1:
            return f"{self.ratio:.2f} times what was measured (1 trial)"
        return (
            f"{self.ratio:.2f} times what was measured ({self.low:.2f} to {self.high:.2f}, "
            f"{self.short:.0%} too low, {self.count} trials)"
        )


def lines(set_aside: Accuracy | None, seconds: Accuracy | None) -> list[tuple[str, str]]:
    """What there is to show, each with its name."""
    found = [("set aside", set_aside), ("predicted time", seconds)]
    return [(name, str(accuracy)) for name, accuracy in found if accuracy is not None]
