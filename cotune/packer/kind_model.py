"""What is known of one kind of trial."""

from __future__ import annotations

import math
from collections.abc import Mapping

from cotune.demand import MIB, Demand
from cotune.packer.growth import Growth
from cotune.packer.prediction import TINY, Changes, Prediction


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
        growth: How much more trials come to need than in their first iterations.
    """

    def __init__(self, changes: Changes | None = None) -> None:
        self._changes = changes = changes or Changes()
        self.busy: float | None = None
        self.assumed: Demand | None = None
        self.growth = Growth(changes)
        self._persistent = Prediction(floor=MIB, changes=changes)
        self._peak = Prediction(floor=MIB, changes=changes)
        self._pace = Prediction(upper=False, changes=changes)
        self._steps = Prediction(upper=False, changes=changes)
        self._was_wrong = False
        # How far expected durations were off at most, in logarithms.
        self._furthest_off = 0.0

    def assume(self, demand: Demand) -> None:
        """Assumes a demand until one is measured, unless an assumption was proved wrong before."""
        if self.assumed is None and not self._was_wrong:
            self.assumed = demand
            self._changes.count += 1

    def refute(self) -> None:
        """A trial needed more than was assumed; does nothing if nothing was."""
        if self.assumed is not None:
            self.assumed = None
            self._was_wrong = True
            self._changes.count += 1

    def observe_demand(self, trial: int, features: Mapping[str, float], demand: Demand) -> None:
        self._persistent.observe(trial, features, demand.persistent)
        self._peak.observe(trial, features, demand.peak)
        if demand.busy is not None:
            self.busy = demand.busy if self.busy is None else 0.9 * self.busy + 0.1 * demand.busy

    def observe_peak(self, trial: int, features: Mapping[str, float], peak: int) -> None:
        """Notes a peak of which nothing else is known, such as what a trial lacked when it ran out of memory."""
        self._peak.observe(trial, features, peak)

    def observe_pace(self, trial: int, features: Mapping[str, float], seconds: float) -> None:
        """Notes the seconds per iteration of a trial."""
        self._pace.observe(trial, features, seconds)

    def observe_steps(self, trial: int, features: Mapping[str, float], iterations: int) -> None:
        """Notes how many iterations a trial made that was not stopped."""
        self._steps.observe(trial, features, iterations)

    def observe_expected(self, expected: float, seconds: float) -> None:
        """Notes how long a trial took alone, from beginning to end, and how long its owner expected it to take."""
        self._furthest_off = max(self._furthest_off, _distance(expected, seconds))

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

    def may_take(self, expected: float, seconds: float) -> bool:
        """Whether a trial that is expected to take `expected` may take `seconds`, as far as others were off."""
        return not self._furthest_off or _distance(expected, seconds) <= self._furthest_off

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


def _distance(one: float, other: float) -> float:
    return abs(math.log(max(one, TINY) / max(other, TINY)))
