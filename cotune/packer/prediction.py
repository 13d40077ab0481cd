"""Predicting one quantity of a trial from what was measured of similar trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cotune.packer.trial import MARGIN

QUANTILE = 0.95
FEW_SAMPLES, MAX_SAMPLES = 8, 512
MOST_COLUMNS = 256
TINY = 1e-12
HUGE = 1e100
# This many measurements, all within this (in logarithms) of their estimates, are no coincidence.
ENOUGH = 3
SHARP = 0.1
# A factor of two.
ROUGH = 0.7


class Changes:
    """Counts changes to predictions, so that whoever uses them knows when to look again."""

    def __init__(self) -> None:
        self.count = 0


class Prediction:
    """An estimate of one positive quantity from numeric features: an upper bound, or one as often too low as too high.

    A log-linear ridge regression; the margin of an upper estimate is the 95% quantile of its own residuals, so a
    quantity that the features explain badly is estimated generously. With too few samples for that: the largest
    value seen, or the median.
    (Horus, TPDS'21, section 4, shows FLOPs, parameters and batch size, all products of hyperparameters, to
    carry memory; a product is linear in logarithms.)

    Args:
        floor: Smaller values are treated as equal: they do not matter, and logarithms would exaggerate them.
        upper: Whether too much is better than too little, as for bytes set aside.
        changes: Counts changes of this estimate.
    """

    def __init__(self, floor: float = TINY, upper: bool = True, changes: Changes | None = None) -> None:
        self._changes = changes or Changes()
        self._floor = floor
        self._upper = upper
        self._quantile = QUANTILE if upper else 0.5
        # Factor by which a value may exceed its estimate without being a surprise.
        self._slack = MARGIN if upper else 2.0
        # Columns of the first array, by feature, and rows of both, by trial, oldest first.
        self._columns: dict[str, int] = {}
        self._rows: dict[int, int] = {}
        self._table = np.zeros((FEW_SAMPLES, 0))
        self._values = np.zeros(FEW_SAMPLES)
        # Name, weight, and the least value seen if the logarithm is used, else 0.
        self._terms: list[tuple[str, float, float]] | None = None
        self._base = 0.0
        self._fitted_on = 0
        self._surprises = 0
        self._largest = self._middle = 0.0
        # Distance from their estimates, in logarithms, within which nearly all values are.
        self._spread = 0.0

    @property
    def is_known(self) -> bool:
        """Whether anything was measured."""
        return self._largest > 0.0

    @property
    def is_fitted(self) -> bool:
        return self._terms is not None

    @property
    def is_sharp(self) -> bool:
        """Whether there are several measurements, nearly all of them close to their estimates."""
        return len(self._rows) >= ENOUGH and self._spread < SHARP

    @property
    def is_rough(self) -> bool:
        """Whether there are several measurements, nearly all of them within a factor of two of their estimates."""
        return len(self._rows) >= ENOUGH and self._spread < ROUGH

    def observe(self, trial: int, features: Mapping[str, float], value: float) -> None:
        """Notes a measurement; a later one of the same trial replaces it."""
        value = max(float(value), self._floor)
        if any(name not in self._columns for name in features):
            self._widen(features)
        row = self._rows.get(trial)
        if row is None:
            is_full = len(self._rows) == MAX_SAMPLES
            self._rows[trial] = row = self._rows.pop(next(iter(self._rows))) if is_full else len(self._rows)
            if row == len(self._values):
                self._extend()
        # Its own, or that of the oldest trial, which is forgotten for this one.
        before = self._values[row]
        self._table[row] = 0.0
        for name in features:
            if (column := self._columns.get(name)) is not None:
                self._table[row, column] = _number(features, name)
        self._values[row] = value
        count = len(self._rows)
        expected = self.estimate(features)
        surprised = expected is None or value > self._slack * expected
        largest = self._largest
        if value > self._largest:
            self._largest = value
        elif before == self._largest:
            self._largest = float(self._values[:count].max())
        self._changes.count += self._largest != largest
        self._surprises += surprised
        # One more sample changes little among many, and a fit takes as long as a hundred events.
        if self._surprises > count // 64 or count > self._fitted_on * 1.25:
            self._fit()

    def estimate(self, features: Mapping[str, float]) -> float | None:
        """The estimate, or None before the first measurement. `Trial.needing` adds a margin."""
        if not self.is_known:
            return None
        if self._terms is None:
            return self._largest if self._upper else self._middle
        log_value = self._base
        for name, weight, least in self._terms:
            value = features.get(name, 0.0)
            if not -HUGE <= value <= HUGE:
                value = _number(features, name)
            # Where all had some of it and one has nothing, a power law would say nothing, or anything.
            log_value += weight * (math.log(value if value > TINY else least) if least else value)
        # Beyond the values seen, a power law is a guess: it is trusted up to four times the largest.
        return math.exp(min(log_value, math.log(4 * self._largest)))

    def _widen(self, features: Mapping[str, float]) -> None:
        """Adds columns for new features, as long as there are not too many: each option of a choice is one."""
        for name in features:
            if len(self._columns) < MOST_COLUMNS:
                self._columns.setdefault(name, len(self._columns))
        rows, had = self._table.shape
        if len(self._columns) > had:
            more = max(len(self._columns) - had, had)
            self._table = np.concatenate([self._table, np.zeros((rows, more))], axis=1)

    def _extend(self) -> None:
        """Doubles the arrays: there may be thousands of kinds with a few trials each."""
        self._table = np.concatenate([self._table, np.zeros_like(self._table)])
        self._values = np.concatenate([self._values, np.zeros_like(self._values)])

    def _fit(self) -> None:
        self._changes.count += 1
        self._fitted_on = count = len(self._rows)
        self._surprises = 0
        names: Sequence[str] = list(self._columns)
        table = self._table[:count, : len(names)]
        varying = np.ptp(table, axis=0) > 0 if names else np.zeros(0, dtype=bool)
        # An option that one trial had tells nothing of others, and a text of its own for each trial is no feature.
        varying &= (np.count_nonzero(table, axis=0) != 1) | (table.max(axis=0, initial=0.0) != 1.0)
        if count < int(varying.sum()) + 3:
            self._terms = None
            self._middle = float(np.median(self._values[:count]))
            self._spread = math.log(self._values[:count].max() / self._values[:count].min())
            return
        names = [name for name, varies in zip(names, varying, strict=True) if varies]
        table = table[:, varying] if names else np.zeros((count, 0))
        logs = np.all(table > 0, axis=0)
        x = np.where(logs, np.log(np.maximum(table, TINY)), table)
        y = np.log(self._values[:count])
        center, scale = x.mean(axis=0), np.maximum(x.std(axis=0), TINY)
        x = np.column_stack([np.ones(len(y)), (x - center) / scale])
        ridge = 1e-3 * len(y) * np.eye(x.shape[1])
        ridge[0, 0] = 0.0
        weights = np.linalg.solve(x.T @ x + ridge, x.T @ y)
        residuals = np.sort(y - x @ weights)
        margin = _quantile(residuals, self._quantile)
        self._spread = _quantile(np.sort(np.abs(residuals - margin)), 0.95)
        slopes = weights[1:] / scale
        self._base = float(weights[0] + margin - slopes @ center)
        # Plain floats: a numpy call costs more than the arithmetic.
        least = np.where(logs, table.min(axis=0, initial=np.inf), 0.0)
        self._terms = list(zip(names, slopes.tolist(), least.tolist(), strict=True))


def _quantile(ordered: np.ndarray[Any, Any], share: float) -> float:
    """Same as numpy's quantile in a twentieth of the time; it is needed twice per fit."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (place - below) * (ordered[above] - ordered[below]))


def _number(features: Mapping[str, float], name: str) -> float:
    """A feature that numpy can square: missing or NaN becomes 0, huge values are clipped."""
    value = float(features.get(name, 0.0))
    return 0.0 if math.isnan(value) else max(-HUGE, min(HUGE, value))
