"""The page of shared memory where a lane publishes its state; the driver can read it even after the lane has died."""

from __future__ import annotations

import time

# Indices: the trial that has the turn, negative for none; the time of the last iteration boundary, by the monotonic
# clock; the bytes that the process keeps from others on its device, as of its last reading; and the time of that.
HOLDER, BOUNDARY, HELD, READ = range(4)
NOBODY = -1.0


class Page:
    """A lane's page, as its driver reads it.

    Args:
        numbers: The shared memory.
    """

    def __init__(self, numbers: memoryview[float]) -> None:
        self._numbers = numbers
        # Start of the iteration that has been excused, and the excused seconds.
        self._excused = (0.0, 0.0)

    @property
    def holder(self) -> int | None:
        """The trial that has, or at death had, the turn."""
        trial = int(self._numbers[HOLDER])
        return trial if trial >= 0 else None

    @property
    def held(self) -> int:
        """Bytes the process keeps from others on its device, as of its last reading."""
        return int(self._numbers[HELD])

    @property
    def age(self) -> float:
        """Seconds since `held` was read; 0 if no trial has the turn, since nothing changes then."""
        return time.monotonic() - self._numbers[READ] if self.holder is not None else 0.0

    @property
    def quiet(self) -> float:
        """Seconds since the last boundary of the trial that has the turn, less excused time; 0 if no trial has it."""
        since, excused = self._excused
        began = self._numbers[BOUNDARY]
        left_out = excused if since == began else 0.0
        return max(0.0, time.monotonic() - began - left_out) if self.holder is not None else 0.0

    @property
    def rests(self) -> float:
        """Seconds since any trial last had a boundary there; 0 if one has the turn."""
        return max(0.0, time.monotonic() - self._numbers[BOUNDARY]) if self.holder is None else 0.0

    def excuse(self, seconds: float) -> None:
        """Leaves the last `seconds` of the current iteration out of `quiet`, because no process ran.

        A container was paused, say, or a job suspended.
        """
        since, excused = self._excused
        began = self._numbers[BOUNDARY]
        self._excused = began, min(seconds, self.quiet) + (excused if since == began else 0.0)
