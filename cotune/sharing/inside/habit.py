"""Whether the trials of a lane save an epoch's checkpoint before its report or after it."""

from __future__ import annotations


class SavingHabit:
    """What most of a lane's reports show: one that is late, on a busy machine, must not decide for all that follow.

    A checkpoint belongs to the report that is nearer to it. Behind a report it is saved at once, ahead of one there may
    be a validation in between.

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

    @property
    def is_unknown(self) -> bool:
        """Whether no report has followed a checkpoint yet."""
        return not (self._ahead or self._behind)

    def notice(self, reported: float, saved: tuple[float, float] | None, now: float) -> bool:
        """Notes a report.

        Args:
            reported: When the last report of the same attempt returned, or the attempt began, in seconds.
            saved: Begin and end of the last checkpoint since, if there was one.
            now: When this report was made.

        Returns:
            Whether there was one that belongs to the last report, or to the beginning.
        """
        is_behind = saved is not None and saved[0] - reported < now - saved[1]
        if saved is not None:
            self._behind += is_behind
            self._ahead += not is_behind
        # In doubt the answer is "after", with which no checkpoint is lost.
        self.saves_behind = self._behind > 0 and self._behind >= self._ahead
        return is_behind
