"""A GPU of this machine under a run."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence

from cotune.engines.others import OthersOnGpu
from cotune.errors import DeviceError
from cotune.sharing import cuda
from cotune.sharing.devices import DeviceInfo
from cotune.sharing.lane import LaneHandle
from cotune.sharing.mps import MpsDaemon
from cotune.sharing.wire import FAULTED

log = logging.getLogger(__name__)

BUSY_AFTER = 2.0
SILENT_AFTER = 1.0
# Faults of two lanes within so many seconds are one, which has reached both.
SAME_FAULT = 10.0


class LocalGpu:
    """What NVML says of it, and the daemon through which its lanes compute at the same time.

    Args:
        info: Which one.
        mps: Whether there is to be such a daemon; None where it can be had and more than one lane may run.

    Attributes:
        name: The device's.

    Raises:
        DeviceError: MPS was asked for, and cannot be used.
    """

    def __init__(self, info: DeviceInfo, mps: bool | None) -> None:
        self.name = info.name
        self._capacity = info.capacity
        self._mps = _daemon(info, mps)
        self._is_broken = False
        self._fault_at = float("-inf")
        self._apart = 0
        self._watch = cuda.GpuWatch(info.uuid)
        self._others = OthersOnGpu(info.total, info.capacity, lambda free: max(0, free - cuda.RESERVE))
        self._began: dict[int, float] = {}

    def mps_environment(self) -> dict[str, str] | None:
        """What makes a new lane a client of the daemon; None where it is to do without.

        For every lane that a fault has cost the next one is apart, so that the trial at fault fails there by itself.
        Once a fault has cost several, or a client has died some other way, all are.
        """
        if self._mps is None or self._is_broken:
            return None
        if self._apart:
            self._apart -= 1
            return None
        return self._mps.environment(self._capacity)

    def dismiss(self, process: int) -> None:
        """Makes sure that a lane can be killed without harm to the others, in whatever thread."""
        if self._mps is not None:
            self._mps.dismiss(process)

    def client_gone(self, lane: LaneHandle, status: int) -> None:
        """A client of the daemon has died.

        Args:
            lane: The lane that it was.
            status: Its exit status as `os.wait` gives it.
        """
        if lane.is_killed or (lane.is_up and status == 0):
            return
        now = time.monotonic()
        if os.waitstatus_to_exitcode(status) == FAULTED:
            self._is_broken = self._is_broken or now - self._fault_at < SAME_FAULT
            self._fault_at = now
            self._apart += 1
        else:
            self._is_broken = True

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

        None unless what NVML has averaged over the last second was this trial's training and nothing else; and where
        kernels of several lanes run at the same time, since the time of one is not taken from the others then.

        Args:
            trial: The trial's number.
            now: When it had done it.
            lanes: How many of ours there are.
        """
        began = self._began.setdefault(trial, now)
        is_measured = lanes == 1 and now - began > BUSY_AFTER and self._mps is None
        return self._watch.utilization() if is_measured else None

    def close(self) -> None:
        self._watch.close()
        if self._mps:
            self._mps.close()


def _daemon(info: DeviceInfo, wanted: bool | None) -> MpsDaemon | None:
    if wanted is False or (wanted is None and info.max_width == 1):
        return None
    try:
        return MpsDaemon(info.uuid)
    except DeviceError as error:
        if wanted:
            raise
        log.info("%s: %s", info.name, error.message)
        return None
