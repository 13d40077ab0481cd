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
# Seconds that are worth a word, and the argument that saves them.
LONG = 5.0


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
        self._clients: set[int] = set()
        self._is_shut = False
        self._watch = cuda.GpuWatch(info.uuid)
        self._others = OthersOnGpu(info.total, info.capacity, lambda free: max(0, free - cuda.RESERVE))
        self._began: dict[int, float] = {}

    def client_environment(self, lane: int, *, apart: bool) -> dict[str, str] | None:
        """What makes a new lane a client of the daemon; None if it is to do without.

        Args:
            lane: Its number.
            apart: It is to share no faults with others.
        """
        if self._mps is None or apart or self._is_shut:
            return None
        self._clients.add(lane)
        return self._mps.environment(self._capacity)

    def dismiss(self, process: int) -> None:
        """Makes sure that a lane can be killed without harm to the others, in whatever thread."""
        if self._mps is not None:
            self._mps.dismiss(process)

    def lane_gone(self, lane: LaneHandle, status: int | None = None) -> None:
        """A lane has gone, client or not.

        Where a client dies with work under way the server takes no others until all that are there have left.

        Args:
            lane: Which one.
            status: Its exit status as `os.wait` gives it, if it was not lost with the process that forks lanes.
        """
        self._others.unsettled()
        if lane.lane not in self._clients:
            return
        self._clients.remove(lane.lane)
        if (
            status is None
            or status < 0
            or lane.is_killed
            or (lane.is_up and os.waitstatus_to_exitcode(status) in (0, FAULTED))
        ):
            self._is_shut = self._is_shut and bool(self._clients)
            return
        # One that did not come up though nobody was there: no other will.
        self._is_shut = bool(self._clients) or not lane.is_up
        if self._is_shut and not self._clients:
            log.warning("%s: the MPS daemon serves nobody any more: lanes do without", self.name)

    def is_lost(self) -> bool:
        """Whether the driver says that it is gone."""
        return self._watch.is_lost()

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
    began = time.monotonic()
    try:
        return MpsDaemon(info.uuid)
    except DeviceError as error:
        if wanted:
            raise
        seconds = time.monotonic() - began
        # One that hangs holds up every run.
        level = logging.WARNING if seconds > LONG else logging.INFO
        log.log(level, "%s: lanes take slices of time: %s (known after %.1f s)", info.name, error.message, seconds)
        return None
