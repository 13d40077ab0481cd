"""torch's counters of peak bytes, which a lane resets at boundaries, and a trial may read and reset for itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

_READERS = ("_cuda_memoryStats", "_accelerator_getDeviceStats")
_RESETS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")


class Peaks:
    """Tells the lane and its trials the peaks since their own last resets.

    Args:
        torch_c: `torch._C`, whose functions are replaced by what trials are to see.
    """

    def __init__(self, torch_c: Any) -> None:
        self._stats: Callable[[int], dict[str, Any]] = getattr(torch_c, _READERS[0])
        self._reset: Callable[[int], None] = getattr(torch_c, _RESETS[0])
        # Allocated bytes since the lane's last reset, as of the trial's.
        self._lanes = 0
        # By counter and pool, bytes since the trial's last reset, as of the lane's.
        self._trials: dict[tuple[str, str], int] = {}
        for names, replaced in ((_READERS, self._told), (_RESETS, self._forgets)):
            for name in names:
                if hasattr(torch_c, name):
                    setattr(torch_c, name, replaced(getattr(torch_c, name)))

    def read(self) -> tuple[int, int, int]:
        """Allocated bytes, their peak since `reset`, and reserved bytes."""
        # Unlike torch.cuda.memory_stats(), this does not flatten 200 entries in Python, which takes 60 us.
        stats = self._stats(0)
        allocated = stats["allocated_bytes"]["all"]
        reserved = int(stats["reserved_bytes"]["all"]["current"])
        return int(allocated["current"]), max(int(allocated["peak"]), self._lanes), reserved

    def reset(self) -> None:
        """Begins to count the lane's peaks anew."""
        for name, counter in _counters(self._stats(0)):
            self._trials[name] = max(counter["peak"], self._trials.get(name, 0))
        self._lanes = 0
        self._reset(0)

    def forget(self) -> None:
        """Begins to count all peaks anew, those of trials as well."""
        self.reset()
        self._trials.clear()

    def _told(self, read: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
        def told(device: Any) -> dict[str, Any]:
            stats = read(device)
            for name, counter in _counters(stats):
                counter["peak"] = max(counter["peak"], self._trials.get(name, 0))
            return stats

        return told

    def _forgets(self, reset: Callable[[Any], None]) -> Callable[[Any], None]:
        def forgets(device: Any) -> None:
            self._lanes = self.read()[1]
            reset(device)
            self._trials.clear()

        return forgets


def _counters(stats: dict[str, Any]) -> Iterator[tuple[tuple[str, str], dict[str, int]]]:
    for counter, pools in stats.items():
        if isinstance(pools, dict):
            for pool, values in pools.items():
                if isinstance(values, dict) and "peak" in values:
                    yield (counter, pool), values
