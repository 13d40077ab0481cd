"""Least served first."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping

from cotune.errors import InputError
from cotune.packer.policies.base import Policy, Waiting


class Fair(Policy):
    """The least served kind first, weighted; in a kind, the least served trial (Salus, MLSys'20, section 4.2, FAIR).

    Equalises device time among kinds of trials (one kind is one trainable: one user, one study), in proportion to
    their weights. Assumes nothing. A started trial is charged its predicted duration, corrected as it runs;
    otherwise a burst of free lanes would all go to one kind. A kind that joins while none of its trials wait or run
    begins at the level of the least served kind, as in start-time fair queueing (Goyal et al., SIGCOMM'96): it has no
    claim on the past. Salus shares among jobs at every iteration; here, residents of a lane do so by taking turns,
    whatever the policy.

    Args:
        weights: By kind; 1 if not given.

    Raises:
        InputError: A weight is not a number above 0.
    """

    name = "fair"
    uses_predictions = True

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self._weights = dict(weights or {})
        for kind, weight in self._weights.items():
            if not 0 < weight < math.inf:
                raise InputError(f"the weight of {kind!r} is {weight!r}", hint="give a number above 0")
        self._served: dict[Hashable, float] = {}
        # Waiting and running trials, by group.
        self._present: defaultdict[Hashable, int] = defaultdict(int)
        self._charged: dict[int, float] = {}

    def key(self, waiting: Waiting) -> tuple[float, ...]:
        return (waiting.served, waiting.arrival)

    def group(self, waiting: Waiting) -> Hashable:
        return waiting.kind

    def rank(self, group: Hashable) -> float:
        return self._served.get(group, 0.0) / self._weight(group)

    def joined(self, waiting: Waiting, group: Hashable) -> None:
        if not self._present[group]:
            least = min((self.rank(other) for other, count in self._present.items() if count), default=0.0)
            self._served[group] = max(self._served.get(group, 0.0), least * self._weight(group))
        self._present[group] += 1

    def left(self, waiting: Waiting, group: Hashable, started: bool) -> None:
        if started:
            self._charged[waiting.trial] = charge = waiting.seconds_left or 1.0
            self._served[group] += charge
        else:
            self._present[group] -= 1

    def changed(self, before: Waiting, group: Hashable, waiting: Waiting, other: Hashable) -> None:
        # A trial never changes its kind.
        pass

    def ran(self, trial: int, group: Hashable, seconds: float) -> None:
        paid = min(seconds, self._charged.get(trial, 0.0))
        self._served[group] = self._served.get(group, 0.0) + seconds - paid
        if paid:
            self._charged[trial] -= paid

    def ended(self, trial: int, group: Hashable) -> None:
        charge = self._charged.pop(trial, None)
        if charge is not None:
            self._served[group] -= charge
            self._present[group] -= 1

    def _weight(self, group: Hashable) -> float:
        return self._weights.get(str(group), 1.0)
