"""Predicting what a trial needs from what trials like it were measured to need."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cotune.demand import MIB, Demand

QUANTILE = 0.95
MARGIN = 1.05
MAX_SAMPLES = 512
TINY = 1e-12
HUGE = 1e100
# So many measurements, within so much of what is expected, are no coincidence.
ENOUGH = 3
SHARP = 0.1
# A factor of two.
ROUGH = 0.7
# Of so many trials it is remembered how much more they came to need than at first, and the factor for most of them is
# believed, if it is more than a little.
GROWTHS = 32
MOST = 0.75
LITTLE = 1.1


class Prediction:
    """An estimate of one positive quantity from numeric features: an upper one, or one as often too low as too high.

    A log-linear ridge regression; the margin of an upper estimate is the 95% quantile of its own residuals, so a
    quantity that the features explain badly is estimated generously. With too few samples for that: the largest
    value seen, or the median.
    (Horus, TPDS'21, section 4, shows FLOPs, parameters and batch size, all products of hyperparameters, to
    carry memory; a product is linear in logarithms.)

    Args:
        floor: Smaller values are not told apart: there is nothing to gain, and logarithms make much of them.
        upper: Whether too much is better than too little, as for what is set aside.
    """

    def __init__(self, floor: float = TINY, upper: bool = True) -> None:
        self.version = 0
        self._floor = floor
        self._upper = upper
        self._quantile, self._margin = (QUANTILE, MARGIN) if upper else (0.5, 1.0)
        # By how much a value may exceed what was expected and still be no news.
        self._slack = 1.0 if upper else 2.0
        self._names: tuple[str, ...] = ()
        # Rows of the two arrays, by trial, the oldest first.
        self._rows: dict[int, int] = {}
        self._table = np.zeros((MAX_SAMPLES, 0))
        self._values = np.zeros(MAX_SAMPLES)
        # Name, whether its logarithm counts, and how much.
        self._terms: list[tuple[str, bool, float]] | None = None
        self._base = 0.0
        self._fitted_on = 0
        self._surprises = 0
        self._largest = self._middle = 0.0
        # How far from what is expected nearly all are, in logarithms.
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
        """Whether nearly all that was measured, and not only once or twice, is what would have been expected."""
        return len(self._rows) >= ENOUGH and self._spread < SHARP

    @property
    def is_rough(self) -> bool:
        """Whether it was measured more than once or twice, nearly always within a factor of two of what is expected."""
        return len(self._rows) >= ENOUGH and self._spread < ROUGH

    def observe(self, trial: int, features: Mapping[str, float], value: float) -> None:
        """Notes a measurement; a later one of the same trial replaces it."""
        value = max(float(value), self._floor)
        if len(features) != len(self._names) or any(name not in features for name in self._names):
            self._rename(features)
        row, before = self._rows.get(trial), 0.0
        if row is not None:
            before = self._values[row]
        else:
            is_full = len(self._rows) == MAX_SAMPLES
            self._rows[trial] = row = self._rows.pop(next(iter(self._rows))) if is_full else len(self._rows)
        self._table[row] = [_number(features, name) for name in self._names]
        self._values[row] = value
        count = len(self._rows)
        expected = self.estimate(features)
        surprised = expected is None or value > self._slack * expected
        largest = self._largest
        if value > self._largest:
            self._largest = value
        elif before == self._largest:
            self._largest = float(self._values[:count].max())
        self.version += self._largest != largest
        self._surprises += surprised
        # Among many samples one more changes little, and a fit takes as long as a hundred events.
        if self._surprises > count // 64 or count > self._fitted_on * 1.25:
            self._fit()

    def estimate(self, features: Mapping[str, float]) -> float | None:
        """The estimate with its margin, or None before the first measurement."""
        if not self.is_known:
            return None
        if self._terms is None:
            return (self._largest if self._upper else self._middle) * self._margin
        log_value = self._base
        for name, is_log, weight in self._terms:
            value = features.get(name, 0.0)
            if not -HUGE <= value <= HUGE:
                value = _number(features, name)
            log_value += weight * (math.log(value if value > TINY else TINY) if is_log else value)
        # Beyond what was seen a power law is a guess: four times the largest is as far as it is believed.
        return math.exp(min(log_value, math.log(4 * self._largest))) * self._margin

    def _rename(self, features: Mapping[str, float]) -> None:
        """Makes columns for features that are new."""
        names = tuple(sorted({*self._names, *features}))
        table = np.zeros((MAX_SAMPLES, len(names)))
        table[:, [names.index(name) for name in self._names]] = self._table
        self._names, self._table = names, table

    def _fit(self) -> None:
        self.version += 1
        self._fitted_on = count = len(self._rows)
        self._surprises = 0
        names: Sequence[str] = self._names
        table = self._table[:count]
        varying = np.ptp(table, axis=0) > 0 if names else np.zeros(0, dtype=bool)
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
        # Plain floats, since a numpy call costs more than the arithmetic.
        self._terms = list(zip(names, logs.tolist(), slopes.tolist(), strict=True))


def _most(found: Sequence[tuple[float, bool]]) -> float:
    """What is enough for most, where some values are all there is and the others, with False, were exceeded.

    What those came to is as of the larger ones (Kaplan and Meier, JASA 53, 1958).
    """
    left = 1.0
    for rank, (value, is_all) in enumerate(sorted(found)):
        if is_all:
            left *= 1.0 - 1.0 / (len(found) - rank)
        if left <= 1.0 - MOST:
            return value
    return max(value for value, _ in found)


def _quantile(ordered: np.ndarray[Any, Any], share: float) -> float:
    """As numpy has it, in a twentieth of the time, which is asked for twice at every fit."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (place - below) * (ordered[above] - ordered[below]))


def _number(features: Mapping[str, float], name: str) -> float:
    """A feature that numpy can square: a missing one or a NaN counts as 0, a huge one as the largest."""
    value = float(features.get(name, 0.0))
    return 0.0 if math.isnan(value) else max(-HUGE, min(HUGE, value))


class KindModel:
    """What is known of one kind of trial: its memory, and how long it takes.

    Time is the product of two quantities: how long an iteration takes, which every trial shows, and how many there are,
    which only those show that are not stopped.

    Of memory the persistent bytes and the peak are predicted, and the ephemeral bytes are what is between the two: one
    margin on what must be set aside, where two would add up.

    Attributes:
        busy: Share of a device's time that one uses alone; None before that was measured.
        assumed: What one is given, margins included, until something was measured; None if nothing is assumed.
        was_wrong: One needed more than was assumed.
        has_grown: Whether any trial has shown how much more it comes to need than in its first iterations.
    """

    def __init__(self) -> None:
        self._persistent = Prediction(floor=MIB)
        self._peak = Prediction(floor=MIB)
        self._pace = Prediction(upper=False)
        self._steps = Prediction(upper=False)
        self.busy: float | None = None
        self.assumed: Demand | None = None
        self.was_wrong = False
        # By trial: how many times as much, how much more, and whether that was all.
        self._growths: dict[int, tuple[float, int, bool]] = {}
        self._growth = 1.0, 0
        self._growth_version = 0

    @property
    def version(self) -> int:
        # Something is assumed once at most, and found wrong once at most.
        assumptions = (self.assumed is not None) + 2 * self.was_wrong
        quantities = (self._persistent, self._peak, self._pace, self._steps)
        return sum(quantity.version for quantity in quantities) + assumptions + self._growth_version

    def assume(self, demand: Demand) -> None:
        """Takes a guess for what one needs, as long as nothing was measured and none has proved it wrong."""
        if self.assumed is None and not self.was_wrong:
            self.assumed = demand

    def refute(self) -> None:
        """One needed more than was assumed, if anything was."""
        if self.assumed is not None:
            self.assumed = None
            self.was_wrong = True

    def observe_demand(self, trial: int, features: Mapping[str, float], demand: Demand) -> None:
        self._persistent.observe(trial, features, demand.persistent)
        self._peak.observe(trial, features, demand.peak)
        if demand.busy is not None:
            self.busy = demand.busy if self.busy is None else 0.9 * self.busy + 0.1 * demand.busy

    @property
    def has_grown(self) -> bool:
        return bool(self._growths)

    def observe_growth(self, trial: int, early: int, peak: int, is_all: bool) -> None:
        """Notes how much more a trial came to need than in its first iterations.

        Args:
            trial: Its number.
            early: Bytes that it needed at first.
            peak: What it needed in the end, or had when it ran out of memory.
            is_all: It has ended with that; else it needs more.
        """
        factor, more, _ = self._growths.pop(trial, (1.0, 0, False))
        if is_all:
            factor, more = 1.0, 0
        self._growths[trial] = max(factor, peak / early), max(more, peak - early), is_all
        if len(self._growths) > GROWTHS:
            del self._growths[next(iter(self._growths))]
        factor = _most([(factor, is_all) for factor, _, is_all in self._growths.values()])
        more = int(_most([(more, is_all) for _, more, is_all in self._growths.values()]))
        before, self._growth = self._growth, (factor, more) if factor > LITTLE else (1.0, 0)
        self._growth_version += not 1 / LITTLE < (1 + before[1]) / (1 + self._growth[1]) < LITTLE

    def grown(self, early: int) -> int:
        """What a trial comes to need that needs so much at first: as much more, or as many times as much, as most."""
        factor, count = self._growth
        return int(min(early * factor, early + count))

    def observe_pace(self, trial: int, features: Mapping[str, float], seconds: float) -> None:
        """Notes how long an iteration of a trial takes."""
        self._pace.observe(trial, features, seconds)

    def observe_steps(self, trial: int, features: Mapping[str, float], iterations: int) -> None:
        """Notes how many iterations a trial has made that was not stopped."""
        self._steps.observe(trial, features, iterations)

    @property
    def is_fitted(self) -> bool:
        """Whether there are enough measurements to tell one trial from another."""
        return self._persistent.is_fitted and self._peak.is_fitted

    @property
    def knows_demand(self) -> bool:
        return self._persistent.is_known or self.assumed is not None

    def demand(self, features: Mapping[str, float]) -> Demand | None:
        persistent, peak = self._persistent.estimate(features), self._peak.estimate(features)
        if persistent is None or peak is None:
            return None
        persistent = min(persistent, peak)
        return Demand(int(persistent), int(peak - persistent), self.busy)

    @property
    def is_sure_of_steps(self) -> bool:
        """Whether it is known how many iterations one makes, and not only guessed."""
        return self._steps.is_sharp

    def steps(self, features: Mapping[str, float]) -> float | None:
        """How many iterations one makes that is not stopped."""
        return self._steps.estimate(features)

    def pace(self, features: Mapping[str, float]) -> float | None:
        """How long an iteration takes, if that can be told from the features."""
        return self._pace.estimate(features) if self._pace.is_rough else None

    def seconds(self, features: Mapping[str, float], steps: float | None = None) -> float | None:
        """How long one takes that makes so many iterations, or as many as others did."""
        steps = steps or self.steps(features)
        pace = self._pace.estimate(features)
        return None if steps is None or pace is None else steps * pace
