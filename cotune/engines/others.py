"""What other programs leave us of a GPU."""

from __future__ import annotations

from collections.abc import Callable

from cotune.demand import MIB

CAPACITY_STEP = 256 * MIB
SETTLE = 2


class OthersOnGpu:
    """Tells the bytes of others on a GPU from ours.

    Theirs are all those in use that our lanes do not report, since NVML's per-process figures are blind across
    PID namespaces. While a lane comes or goes, its bytes cannot be told from theirs, so nothing is concluded.

    Args:
        total: Bytes on the GPU.
        capacity: Those that are open to us now.
        ours_of: How many are, of so many that others leave.
    """

    def __init__(self, total: int, capacity: int, ours_of: Callable[[int], int]) -> None:
        self._total = total
        self._capacity = capacity
        self._ours_of = ours_of
        self._unsettled = SETTLE
        self._seen: int | None = None

    def unsettled(self) -> None:
        """A lane comes or goes, or has not said for a while what it holds."""
        self._unsettled = SETTLE
        self._seen = None

    def changed_capacity(self, used: int | None, ours: int) -> int | None:
        """The bytes open to us if that changed enough to act on; called once a second.

        Args:
            used: Bytes in use by anyone; None if that is not known.
            ours: Bytes that our lanes report.
        """
        if self._unsettled:
            self._unsettled -= 1
            return None
        if used is None:
            return None
        before, self._seen = self._seen, self._left(used, ours)
        # What a trial has just taken is in use before its lane says that it holds it: two looks must agree.
        if before is None or abs(self._seen - before) >= CAPACITY_STEP:
            return None
        capacity = self._seen
        if abs(capacity - self._capacity) < CAPACITY_STEP:
            return None
        self._capacity = capacity
        return capacity

    def refused(self, used: int | None, ours: int) -> int | None:
        """The bytes open to us now that a lane was refused what was set aside for it, if they are clearly fewer.

        Until all is settled this may be too little, which is put right then. To go on with what there was before would
        take every further lane and every further attempt, within a second.
        """
        if used is None or (capacity := self._left(used, ours)) > self._capacity - CAPACITY_STEP:
            return None
        self._capacity = capacity
        return capacity

    def _left(self, used: int, ours: int) -> int:
        return self._ours_of(self._total - max(0, used - ours))
