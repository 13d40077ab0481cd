"""A GPU of this machine that a run uses."""

from __future__ import annotations

import contextlib
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
# A lane looks at what it holds every second, counted from the last boundary, and may be late.
STALE_AFTER = 3.0
# Seconds of a failed start of MPS above which there is a warning.
LONG = 5.0


class LocalGpu:
    """NVML's figures of a GPU, and the MPS daemon through which its lanes compute at the same time.

    Args:
        info: The GPU.
        mps: Whether to start an MPS daemon; None to try if more than one lane may run.

    Attributes:
        name: The device's name.

    Raises:
        DeviceError: MPS was requested and cannot be used.
        RunError: The GPU is lost.
    """

    def __init__(self, info: DeviceInfo, mps: bool | None) -> None:
        self.name = info.name
        with contextlib.ExitStack() as undo:
            self._watch = cuda.GpuWatch(info.uuid)
            undo.callback(self._watch.close)
            self._mps = _daemon(info, mps)
            if self._mps is not None:
                undo.callback(self._mps.close)
            self._opened = undo.pop_all()
        self._clients: set[int] = set()
        self._is_shut = False
        self._others = OthersOnGpu(info.total, info.capacity, lambda free: max(0, free - cuda.RESERVE))
        # The trial whose progress was told last, and since when no other's was.
        self._only: int | None = None
        self._since = 0.0

    def client_environment(self, lane: int, *, apart: bool) -> dict[str, str] | None:
        """Environment that makes a new lane a client of the daemon; None if it must do without.

        Args:
            lane: The lane's number.
            apart: Whether the lane must not share faults with others.
        """
        if self._mps is None or apart or self._is_shut:
            return None
        self._clients.add(lane)
        return self._mps.environment()

    def dismiss(self, process: int) -> None:
        """Ends a lane's work on the GPU, so that it can be killed without harm to others; from any thread."""
        if self._mps is not None:
            self._mps.dismiss(process)

    def lane_gone(self, lane: LaneHandle, status: int | None = None) -> None:
        """Notes that a lane, client or not, is gone.

        When a client dies with work under way, the server takes no new clients until all present ones have left.

        Args:
            lane: The lane.
            status: Its wait status as `os.wait` returns it; None if it was lost with the zygote.
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
        # If the client did not come up although there were no others, no further client will.
        self._is_shut = bool(self._clients) or not lane.is_up
        if self._is_shut and not self._clients:
            log.warning("%s: the MPS daemon serves nobody any more: lanes do without", self.name)

    def is_lost(self) -> bool:
        """Whether the GPU's driver says that the GPU is lost."""
        return self._watch.is_lost()

    def changed_capacity(self, lanes: Sequence[LaneHandle]) -> int | None:
        """The bytes open to us if they changed enough to act on, else None; called once a second.

        Args:
            lanes: All our lanes on the GPU.
        """
        # A lane that native code keeps from looking at what it holds may have taken more.
        if any(not lane.is_up or lane.page.age > STALE_AFTER for lane in lanes):
            self._others.unsettled()
        return self._others.changed_capacity(self._watch.used(), sum(lane.page.held for lane in lanes))

    def refused_capacity(self, lanes: Sequence[LaneHandle]) -> int | None:
        """The bytes open to us, if they are so much fewer that a lane may have been refused memory within its quota.

        Args:
            lanes: All our lanes on the GPU.
        """
        return self._others.refused(self._watch.used(), sum(lane.page.held for lane in lanes))

    # ---- how busy a trial keeps the GPU

    def forget(self, trial: int) -> None:
        """Forgets a trial's progress; called when an attempt begins or ends."""
        if trial == self._only:
            self._only = None

    def busy(self, trial: int, now: float, lanes: int) -> float | None:
        """The share of time in which a kernel ran, for a trial that has just finished an iteration.

        None unless NVML's average over the last second covers this trial's training and nothing else; and always None
        with MPS, where kernels of several lanes run at the same time, and one's time is not taken from the others.

        Args:
            trial: The trial's number.
            now: When the iteration was finished.
            lanes: Number of our lanes on the GPU.
        """
        if trial != self._only:
            # Also a lane-mate, with which it takes turns.
            self._only, self._since = trial, now
        is_measured = lanes == 1 and now - self._since > BUSY_AFTER and self._mps is None
        return self._watch.utilization() if is_measured else None

    def close(self) -> None:
        self._opened.close()


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
        # A daemon that hangs delays every run.
        level = logging.WARNING if seconds > LONG else logging.INFO
        log.log(level, "%s: lanes take slices of time: %s (known after %.1f s)", info.name, error.message, seconds)
        return None
