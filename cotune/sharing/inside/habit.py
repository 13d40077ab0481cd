"""Whether the trials of a lane save an epoch's checkpoint before its report or after it."""

from __future__ import annotations

# A checkpoint counts as saved before the next report if it is so many times nearer to it than to the last report.
AHEAD = 4


class SavingHabit:
    """What most of a lane's reports show: one that is late, on a busy machine, must not decide for all that follow.

    Attributes:
        saves_behind: Whether trials save after their reports; None while not known.
    """

    def __init__(self) -> None:
        self.saves_behind: bool | None = None
        self._ahead = self._behind = 0

    @property
    def saves_ahead(self) -> bool:
        """Whether trials are known to save before their reports."""
        return self._ahead > self._behind

    def notice(self, reported: float, saved: tuple[float, float] | None, now: float) -> None:
        """Notes a report.

        Args:
            reported: When the last report of the same trial returned, in seconds.
            saved: Begin and end of the last checkpoint since, if there was one.
            now: When this report was made.
        """
        if saved is not None:
            # With the checkpoint before a report, an iteration lies between the last report and the checkpoint.
            if saved[0] - reported < AHEAD * (now - saved[1]):
                self._behind += 1
            else:
                self._ahead += 1
        # In doubt the answer is "after", with which no checkpoint is lost.
        self.saves_behind = self._behind > 0 and self._behind >= self._ahead
