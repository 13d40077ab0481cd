"""A GPU of this machine under a run."""

from __future__ import annotations

from collections.abc import Sequence

from cotune.engines.others import OthersOnGpu
from cotune.sharing import cuda
from cotune.sharing.devices import DeviceInfo
from cotune.sharing.lane import LaneHandle
from cotune.sharing.mps import MpsDaemon

BUSY_AFTER = 2.0
SILENT_AFTER = 1.0


class LocalGpu:
    """What NVML says of it, and the daemon through which its lanes compute at the same time.

    Args:
        info: Which one.
        mps: Whether there is to be such a daemon.

    Attributes:
        name: The device's.

    Raises:
        DeviceError: MPS was asked for, and cannot be used.
    """

    def __init__(self, info: DeviceInfo, mps: bool) -> None:
        self.name = info.name
        self._capacity = info.capacity
        self._mps = MpsDaemon(info.uuid) if mps else None
        self._has_faulted = False
        self._watch = cuda.GpuWatch(info.uuid)
        self._others = OthersOnGpu(info.total, info.capacity, lambda free: max(0, free - cuda.RESERVE))
        self._began: dict[int, float] = {}

    @property
    def mps_environment(self) -> dict[str, str] | None:
        """What makes a new lane a client of the daemon; None where it is to do without.

        Where a fault has broken the contexts of all its clients once, lanes are apart from then on.
        """
        return self._mps.environment(self._capacity) if self._mps and not self._has_faulted else None

    def faulted(self) -> None:
        """A fault has broken the contexts of all clients."""
        self._has_faulted = True

    def is_lost(self) -> bool:
        """Whether the driver says that it is gone."""
        return self._watch.is_lost()

    def lane_gone(self) -> None:
        self._others.unsettled()

    def changed_capacity(self, lanes: Sequence[LaneHandle]) -> int | None:
        """The bytes open to us if that changed enough to act on; called once a second with all our lanes there."""
        # What a lane has taken since its last boundary is not in its own figure yet.
        if any(not lane.is_up or lane.page.quiet > SILENT_AFTER for lane in lanes):
            self._others.unsettled()
        return self._others.changed_capacity(self._watch.used(), sum(lane.page.held for lane in lanes))

    def refused_capacity(self, lanes: Sequence[LaneHandle]) -> int | None:
        """The bytes open to us, if they are so much fewer that a lane may have been refused what was set aside for it.

        Args:
            lanes: All of ours there.
        """
        return self._others.refused(self._watch.used(), sum(lane.page.held for lane in lanes))

    # ---- how busy a trial keeps it

    def forget(self, trial: int) -> None:
        """An attempt begins, or ends."""
        self._began.pop(trial, None)

    def busy(self, trial: int, now: float, lanes: int) -> float | None:
        """The share of time in which a kernel ran, told of a trial that has just done an iteration.

        None unless what NVML has averaged over the last second was this trial's training and nothing else.

        Args:
            trial: The trial's number.
            now: When it had done it.
            lanes: How many of ours there are.
        """
        began = self._began.setdefault(trial, now)
        return self._watch.utilization() if lanes == 1 and now - began > BUSY_AFTER else None

    def close(self) -> None:
        self._watch.close()
        if self._mps:
            self._mps.close()
