"""Predicts measured values from estimated ones."""

from __future__ import annotations

import numpy as np

FEW = 3
KEPT = 256
QUANTILE = 0.95
# Estimates that differ by less than this part of their mean say nothing about the slope.
DIFFERENT = 0.02


class Calibration:
    """Learns one line, `measured = slope * estimated + offset`, that lies above nearly all trials seen.

    The offset is what no estimate sees (imports, the allocator's slack, scratch of libraries): on a CPU device it is
    most of a small trial, and differs from trial to trial. So the slope is found by least squares weighted by the
    squares of the estimates, ridged towards the expected slope; the offset is the 95% quantile of the residuals.

    Args:
        slope: The expected slope; None for the ratio of the means.
    """

    def __init__(self, slope: float | None = None) -> None:
        self._expected = slope
        self._seen: dict[int, tuple[float, float]] = {}
        self._slope = self._offset = 0.0

    @property
    def is_learnt(self) -> bool:
        return len(self._seen) >= FEW

    def learn(self, trial: int, estimated: float, measured: float) -> None:
        """Takes in a trial that was estimated and measured; replaces earlier values of the same trial."""
        if self._seen.get(trial) == (estimated, measured):
            return
        self._seen[trial] = estimated, measured
        if len(self._seen) > KEPT:
            del self._seen[next(iter(self._seen))]
        # Squares of byte counts overflow numpy's integers.
        x, y = np.array(list(self._seen.values()), dtype=float).T
        slope = self._expected
        if slope is None:
            slope = y.mean() / x.mean() if x.mean() > 0 else 0.0
        if x.any():
            weights = x**2 / (x @ x)
            dx, dy = x - weights @ x, y - weights @ y
            prior = (DIFFERENT * (weights @ x)) ** 2
            slope = (weights * dx @ dy + prior * slope) / (weights * dx @ dx + prior)
        self._slope = max(0.0, float(slope))
        self._offset = float(np.quantile(y - self._slope * x, QUANTILE, method="higher"))

    def apply(self, estimated: float) -> float | None:
        """Predicts a measurement, on the high side; None before `FEW` trials were learnt."""
        return max(0.0, self._slope * estimated + self._offset) if self.is_learnt else None
