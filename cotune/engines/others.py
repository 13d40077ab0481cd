"""What other programs do to the devices of this machine."""

from __future__ import annotations

from cotune.sharing import cuda
from cotune.sharing.devices import DeviceInfo

CAPACITY_STEP = 256 << 20
SETTLE = 2


class OthersOnGpu:
    """What others leave us of a GPU.

    Their bytes are all those in use that our lanes do not report, since NVML's per-process figures are blind across
    PID namespaces. While a lane comes or goes, its bytes cannot be told from theirs, so nothing is concluded.
    """

    def __init__(self, info: DeviceInfo) -> None:
        self.name = info.name
        self._total = info.total
        self._capacity = info.capacity
        self._watch = cuda.GpuWatch(info.uuid)
        self._unsettled = SETTLE

    def utilization(self) -> float | None:
        return self._watch.utilization()

    def unsettled(self) -> None:
        self._unsettled = SETTLE

    def changed_capacity(self, ours: int) -> int | None:
        """The bytes open to us if that changed enough to act on; called once a second."""
        if self._unsettled:
            self._unsettled -= 1
            return None
        used = self._watch.used()
        if used is None:
            return None
        others = max(0, used - ours)
        capacity = max(0, self._total - others - cuda.RESERVE)
        if abs(capacity - self._capacity) < CAPACITY_STEP:
            return None
        self._capacity = capacity
        return capacity

    def close(self) -> None:
        self._watch.close()
