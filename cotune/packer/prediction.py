"""Predicting what a trial needs from what similar trials were measured to need."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cotune.demand import MIB, Demand
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
# Growth beyond the first iterations: trials remembered, the share of them that the estimate should cover, and the
# factor up to which growth is ignored.
GROWTHS = 32
MOST = 0.75
LITTLE = 1.1


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
        row, before = self._rows.get(trial), 0.0
        if row is not None:
            before = self._values[row]
        else:
            is_full = len(self._rows) == MAX_SAMPLES
            self._rows[trial] = row = self._rows.pop(next(iter(self._rows))) if is_full else len(self._rows)
            if row == len(self._values):
                self._extend()
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


def _most(found: Sequence[tuple[float, bool]]) -> float:
    """A value that covers most trials; values with False are lower bounds, which their trials exceeded.

    Beyond a lower bound, the distribution of the larger values is assumed (Kaplan and Meier, JASA 53, 1958).
    """
    left = 1.0
    for rank, (value, is_all) in enumerate(sorted(found)):
        if is_all:
            left *= 1.0 - 1.0 / (len(found) - rank)
        if left <= 1.0 - MOST:
            return value
    return max(value for value, _ in found)


def _alike(found: Sequence[tuple[float, int, bool]], factor: float, more: int) -> str:
    """Whether `factor` or `more` bytes tells better what trials came to need; empty if neither, or too few ended."""
    by_factor = by_bytes = 0.0
    grown = [(each, count, count / (each - 1.0)) for each, count, is_all in found if is_all and each > 1.0]
    for each, count, early in grown:
        by_factor += abs(math.log(factor / each))
        by_bytes += abs(math.log((early + more) / (early + count)))
    if len(grown) < ENOUGH or by_factor == by_bytes:
        return ""
    return "factor" if by_factor < by_bytes else "bytes"


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


class KindModel:
    """What is known of one kind of trial: its memory, and how long it takes.

    Time is the product of two quantities: the seconds per iteration, which every trial shows, and the number of
    iterations, which only trials show that are not stopped.

    Of memory, the persistent bytes and the peak are predicted, and the ephemeral bytes are the difference: so there is
    one margin on what must be set aside, where two would add up.

    Args:
        changes: Counts changes to what is predicted.

    Attributes:
        busy: Share of a device's time that a trial uses alone; None before it was measured.
        assumed: What a trial is given, margins included, until one was measured; None if nothing is assumed.
        was_wrong: A trial needed more than was assumed.
        has_grown: Whether any trial has shown how much more it comes to need than in its first iterations.
    """

    def __init__(self, changes: Changes | None = None) -> None:
        self._changes = changes = changes or Changes()
        self._persistent = Prediction(floor=MIB, changes=changes)
        self._peak = Prediction(floor=MIB, changes=changes)
        self._pace = Prediction(upper=False, changes=changes)
        self._steps = Prediction(upper=False, changes=changes)
        self.busy: float | None = None
        self.assumed: Demand | None = None
        self.was_wrong = False
        # By trial: growth as a factor, growth in bytes, and whether the trial needed no more than that.
        self._growths: dict[int, tuple[float, int, bool]] = {}
        # The usual factor and bytes, and by which of the two siblings have grown alike: "factor", "bytes", or "".
        self._growth = 1.0, 0, ""

    def assume(self, demand: Demand) -> None:
        """Assumes a demand until one is measured, unless an assumption was proved wrong before."""
        if self.assumed is None and not self.was_wrong:
            self.assumed = demand
            self._changes.count += 1

    def refute(self) -> None:
        """A trial needed more than was assumed; does nothing if nothing was."""
        if self.assumed is not None:
            self.assumed = None
            self.was_wrong = True
            self._changes.count += 1

    def observe_demand(self, trial: int, features: Mapping[str, float], demand: Demand) -> None:
        self._persistent.observe(trial, features, demand.persistent)
        self._peak.observe(trial, features, demand.peak)
        if demand.busy is not None:
            self.busy = demand.busy if self.busy is None else 0.9 * self.busy + 0.1 * demand.busy

    def observe_peak(self, trial: int, features: Mapping[str, float], peak: int) -> None:
        """Notes a peak of which nothing else is known, such as what a trial lacked when it ran out of memory."""
        self._peak.observe(trial, features, peak)

    @property
    def has_grown(self) -> bool:
        return bool(self._growths)

    @property
    def has_ended(self) -> bool:
        """Whether any trial has ended with as much as it had grown to."""
        return any(is_all for _, _, is_all in self._growths.values())

    def observe_growth(self, trial: int, early: int, peak: int, is_all: bool) -> None:
        """Notes how much more a trial came to need than in its first iterations.

        Args:
            trial: Its number.
            early: Bytes it needed at first.
            peak: Bytes it needed in the end, or had when it ran out of memory.
            is_all: Whether it ended with that; otherwise it needs more.
        """
        factor, more, _ = self._growths.pop(trial, (1.0, 0, False))
        if is_all:
            factor, more = 1.0, 0
        self._growths[trial] = max(factor, peak / early), max(more, peak - early), is_all
        if len(self._growths) > GROWTHS:
            del self._growths[next(iter(self._growths))]
        factor = _most([(factor, is_all) for factor, _, is_all in self._growths.values()])
        more = int(_most([(more, is_all) for _, more, is_all in self._growths.values()]))
        alike = _alike(list(self._growths.values()), factor, more)
        before, self._growth = self._growth, (factor, more, alike) if factor > LITTLE else (1.0, 0, "")
        is_other = before[2] != self._growth[2]
        self._changes.count += is_other or not 1 / LITTLE < (1 + before[1]) / (1 + self._growth[1]) < LITTLE

    def grown(self, early: int) -> int:
        """Later need of a trial that needs `early` at first, by the usual factor or bytes, whichever tells it better.

        Larger models come to need larger activations for their validation, while a library's workspace is the same for
        all. Where siblings do not tell these apart, the lesser.
        """
        factor, count, alike = self._growth
        needs = {"factor": early * factor, "bytes": early + count}
        return int(needs.get(alike, min(needs.values())))

    def observe_pace(self, trial: int, features: Mapping[str, float], seconds: float) -> None:
        """Notes the seconds per iteration of a trial."""
        self._pace.observe(trial, features, seconds)

    def observe_steps(self, trial: int, features: Mapping[str, float], iterations: int) -> None:
        """Notes how many iterations a trial made that was not stopped."""
        self._steps.observe(trial, features, iterations)

    @property
    def is_fitted(self) -> bool:
        """Whether there are enough measurements to tell trials apart by their features."""
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
        """Whether the number of iterations is known, and not just guessed."""
        return self._steps.is_sharp

    def steps(self, features: Mapping[str, float]) -> float | None:
        """Predicted iterations of a trial that is not stopped."""
        return self._steps.estimate(features)

    def pace(self, features: Mapping[str, float]) -> float | None:
        """Predicted seconds per iteration, if the features predict it well enough."""
        return self._pace.estimate(features) if self._pace.is_rough else None

    def seconds(self, features: Mapping[str, float], steps: float | None = None) -> float | None:
        """Predicted seconds of a trial with this many iterations, or with as many as others made."""
        steps = steps or self.steps(features)
        pace = self._pace.estimate(features)
        return None if steps is None or pace is None else steps * pace
