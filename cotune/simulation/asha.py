"""A stopping rule for simulated trials."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict

REDUCTION = 3


class AshaRule:
    """Asynchronous successive halving by stopping (Li et al., MLSys'20, section 3.2).

    A trial goes on past a rung if its value is among the best third of those seen there so far.
    """

    def __init__(self) -> None:
        self._rungs: defaultdict[int, list[float]] = defaultdict(list)

    def stops(self, rung: int, value: float) -> bool:
        """Whether a trial with this value at a rung should be stopped."""
        seen = self._rungs[rung]
        insort(seen, value)
        return bisect_right(seen, value) > max(1, len(seen) // REDUCTION)
