"""Trials that would end last go first; of the rest, those that are hardest to place."""

from __future__ import annotations

import math
from collections.abc import Hashable

from cotune.packer.interference import SHARED
from cotune.packer.policies.base import Waiting
from cotune.packer.policies.weighing import Weighing

TALL = 0.3
# Share of all predicted work that remains if most trials are stopped early.
LEFT = 0.1
STEPS = 3
BUSY = 0.9


class Makespan(Weighing):
    """Tall trials first, longest first; then large ones, largest first, to end the whole sweep soonest.

    Two things make a sweep long: a long trial that starts late, and devices that are not full. Against the first:
    Graham's longest-processing-time rule (SIAM J. Appl. Math. 17(2), 1969; Fluid, MLSys'21, section 4.1, orders trials
    the same way). Against the second: large trials start while there are small ones to fill the gaps beside
    them, as first-fit decreasing does in bin packing (Johnson et al., SIAM J. Comput. 3(4), 1974). A trial is tall if
    it takes more than 0.3 of the time that all the work takes on all devices. Tall trials are ordered by length, the
    others by size in steps of a factor of 1.26, and then by length. Assumes that durations and sizes can be predicted
    from finished siblings; until they can, this is first come, first served. Trials that would end last if they were
    slowed get no neighbours (`Critical`).

    If trials are judged by those before them (`judged`), their order decides how many are stopped: sorted by size or
    length, which may well correlate with quality, or by the noise in a prediction, each may be the best so far, and
    none is stopped. So judged trials run first come, first served, but every second one is the longest tall trial.
    """

    name = "makespan"
    uses_predictions = True
    spares_critical = True

    def __init__(self) -> None:
        super().__init__()
        # Whether the next start of a judged trial goes by arrival, instead of to the longest tall one.
        self._by_arrival = False

    def key(self, waiting: Waiting) -> tuple[float, ...]:
        if self.judged:
            return (waiting.arrival,)
        left, need = waiting.seconds_left, waiting.need
        size = math.inf if need is None else round(STEPS * math.log2(max(need, 1)))
        return (-size, 0.0 if left is None else -left, waiting.arrival)

    def group(self, waiting: Waiting) -> Hashable:
        left = waiting.seconds_left
        return 0.0 if not left else 2.0 ** (math.ceil(2 * math.log2(max(left, 1e-3))) / 2)

    def rank(self, group: Hashable) -> float:
        assert isinstance(group, float)
        # By arrival all groups rank alike, and the earliest goes first.
        is_next = self._is_tall(group) and not (self.judged and self._by_arrival)
        return -group if is_next else 0.0

    def left(self, waiting: Waiting, group: Hashable, started: bool) -> None:
        super().left(waiting, group, started)
        if started:
            assert isinstance(group, float)
            # A tall trial whose turn it was by arrival is not the longest, which comes next.
            self._by_arrival = not self._by_arrival and self._is_tall(group)

    def resumed(self, waiting: Waiting, group: Hashable) -> None:
        by_arrival = self._by_arrival
        super().resumed(waiting, group)
        self._by_arrival = by_arrival

    def _is_tall(self, group: float) -> bool:
        total = self.total * (LEFT if self.judged else 1.0)
        return group > 0 and group * self.devices > TALL * total / SHARED

    def weight(self, waiting: Waiting) -> float:
        return (waiting.seconds_left or 0.0) * (waiting.busy or BUSY)
