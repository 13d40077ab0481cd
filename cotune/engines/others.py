"""The memory of a GPU that other programs leave for us."""

from __future__ import annotations

from collections.abc import Callable

from cotune.demand import MIB
from cotune.packer import TrialEnded
from cotune.sharing.cuda import CONTEXT_GUESS

CAPACITY_STEP = 256 * MIB
SETTLE = 2


def is_short_of_memory(ended: TrialEnded, quota: int) -> bool:
    """Whether a trial on a GPU ran out of memory that its lane's quota allows: the GPU itself has too little left."""
    return ended.needed is not None and ended.needed + CONTEXT_GUESS < quota


class OthersOnGpu:
    """Tells other programs' bytes on a GPU from ours.

    All bytes in use that our lanes do not report count as theirs, since NVML's per-process figures do not reach across
    PID namespaces. While a lane comes or goes, its bytes cannot be told from theirs, so nothing is concluded.

    Args:
        total: Bytes on the GPU.
        capacity: Bytes open to us now.
        ours_of: Maps the bytes that others leave to the bytes open to us.
    """

    def __init__(self, total: int, capacity: int, ours_of: Callable[[int], int]) -> None:
        self._total = total
        self._capacity = capacity
        self._ours_of = ours_of
        self._unsettled = SETTLE
        self._seen: int | None = None

    def unsettled(self) -> None:
        """Called when a lane comes or goes, or has not reported for a while how much it holds."""
        self._unsettled = SETTLE
        self._seen = None

    def changed_capacity(self, used: int | None, ours: int) -> int | None:
        """The bytes open to us if they changed enough to act on, else None; called once a second.

        Args:
            used: Bytes in use by all processes; None if not known.
            ours: Bytes that our lanes report.
        """
        if self._unsettled:
            self._unsettled -= 1
            return None
        if used is None:
            return None
        before, self._seen = self._seen, self._left(used, ours)
        # Bytes that a trial has just taken are in use before its lane reports them: two readings must agree.
        if before is None or abs(self._seen - before) >= CAPACITY_STEP:
            return None
        capacity = self._seen
        if abs(capacity - self._capacity) < CAPACITY_STEP:
            return None
        self._capacity = capacity
        return capacity

    def refused(self, used: int | None, ours: int) -> int | None:
        """The bytes open to us, if clearly fewer than before; called when a lane was refused memory within its quota.

        While lanes come or go the figure may be too low, which `changed_capacity` corrects later. With the old figure
        every further lane and attempt would be lost within a second.
        """
        if used is None or (capacity := self._left(used, ours)) > self._capacity - CAPACITY_STEP:
            return None
        self._capacity = capacity
        return capacity

    def _left(self, used: int, ours: int) -> int:
        return self._ours_of(self._total - max(0, used - ours))
