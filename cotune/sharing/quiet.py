"""How long a lane has come to no boundary."""

from __future__ import annotations

import time


class Quiet:
    """Goes by a lane's page, less the time in which nobody ran: a container was paused, a job suspended.

    Args:
        page: First who has the turn, below 0 for nobody; then when the last boundary was.
    """

    def __init__(self, page: memoryview[float]) -> None:
        self._page = page
        # Of which iteration, by when it began, and how much.
        self._excused = (0.0, 0.0)

    def seconds(self) -> float:
        """Since the last iteration boundary of the trial that has the turn; 0 if none has it."""
        since, excused = self._excused
        left_out = excused if since == self._page[1] else 0.0
        return max(0.0, time.monotonic() - self._page[1] - left_out) if self._page[0] >= 0 else 0.0

    def excuse(self, seconds: float) -> None:
        """Leaves out so much of the iteration that is under way, if it has gone on for so long."""
        since, excused = self._excused
        begun = self._page[1]
        self._excused = begun, min(seconds, self.seconds()) + (excused if since == begun else 0.0)
