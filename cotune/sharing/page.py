"""The page of numbers on which a lane shows how it stands; its driver can read it also after the lane has died."""

from __future__ import annotations

import time

# Which number is what: the trial that has the turn, below 0 for nobody; when the last iteration boundary was, by the
# monotonic clock; and the bytes that the process keeps from others on its device, as of its last reading.
HOLDER, BOUNDARY, HELD = range(3)
NOBODY = -1.0


class Page:
    """A lane's page, for who reads it.

    Args:
        numbers: Those above.
    """

    def __init__(self, numbers: memoryview[float]) -> None:
        self._numbers = numbers
        # Of which iteration, by when it began, and how much.
        self._excused = (0.0, 0.0)

    @property
    def holder(self) -> int | None:
        """The trial that has, or at death had, the turn."""
        trial = int(self._numbers[HOLDER])
        return trial if trial >= 0 else None

    @property
    def held(self) -> int:
        """Bytes the process keeps from others."""
        return int(self._numbers[HELD])

    @property
    def quiet(self) -> float:
        """Seconds since the last boundary of the trial that has the turn, less what is excused; 0 if none has it."""
        since, excused = self._excused
        began = self._numbers[BOUNDARY]
        left_out = excused if since == began else 0.0
        return max(0.0, time.monotonic() - began - left_out) if self.holder is not None else 0.0

    def excuse(self, seconds: float) -> None:
        """Does not count the last so many seconds of the iteration under way, in which no process ran.

        A container was paused, or a job suspended.
        """
        since, excused = self._excused
        began = self._numbers[BOUNDARY]
        self._excused = began, min(seconds, self.quiet) + (excused if since == began else 0.0)
