"""The accuracy of predictions: what was expected of trials, compared with what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from cotune.demand import MIB

# Smaller and shorter trials say nothing about prediction: what is set aside for them is an allowance, and their time is
# mostly that of starting.
LEAST_BYTES = 16 * MIB
LEAST_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Predictions of one quantity, compared with measurements.

    Attributes:
        count: Trials of which both are known.
        ratio: Median of predicted over measured.
        low: 5th percentile of predicted over measured; below 1, the prediction was too low.
        high: 95th percentile of predicted over measured.
        short: Share of the predictions that were too low.
    """

    count: int
    ratio: float
    low: float
    high: float
    short: float

    @classmethod
    def of(cls, pairs: Iterable[tuple[float | None, float | None]], least: float) -> Accuracy | None:
        """Compares predicted with measured values; None if there is no pair to compare.

        Args:
            pairs: Predicted and measured, for each trial; incomplete pairs are left out.
            least: Pairs with a smaller measured value are left out.
        """
        ratios = sorted(p / m for p, m in pairs if p and m and m >= least)
        if not ratios:
            return None
        last = len(ratios) - 1
        # A ratio that prints as 1.00 does not count as too low.
        short = sum(1 for ratio in ratios if ratio < 0.995) / len(ratios)
        low, high = ratios[round(0.05 * last)], ratios[round(0.95 * last)]
        return cls(len(ratios), statistics.median(ratios), low, high, short)

    def __str__(self) -> str:
        if self.count == 1:
            return f"{self.ratio:.2f} times what was measured (1 trial)"
        return (
            f"{self.ratio:.2f} times what was measured ({self.low:.2f} to {self.high:.2f}; "
            f"too low for {self.short:.0%} of {self.count} trials)"
        )


def accuracy_lines(set_aside: Accuracy | None, seconds: Accuracy | None) -> list[tuple[str, str]]:
    """The figures that are known, as text, each with its name."""
    found = [("set aside", set_aside), ("predicted time", seconds)]
    return [(name, str(accuracy)) for name, accuracy in found if accuracy is not None]
