"""How many reports a trial has made, and to which of them a checkpoint belongs."""

from __future__ import annotations

import time

from cotune.sharing.inside.habit import SavingHabit


class Tally:
    """The reports of an attempt, and the checkpoints between them.

    Args:
        habit: Whether trials of its lane save before their reports.

    Attributes:
        reports: Reports so far, with those of earlier attempts that this one goes on from.
        step: The step of the last of them; 0 before.
    """

    def __init__(self, habit: SavingHabit) -> None:
        self.reports = self.step = 0
        self._habit = habit
        # When the last report returned, or the attempt began; whether it has reported; begin and end of the last
        # checkpoint since.
        self._since = time.monotonic()
        self._has_reported = False
        self._saved: tuple[float, float] | None = None
        # That checkpoint was only taken for one of the report to come.
        self._is_guess = False

    @property
    def has_saved(self) -> bool:
        """Whether a checkpoint was saved since the last report."""
        return self._saved is not None

    @property
    def next_step(self) -> int:
        """The step of a report that does not say it: its number, but never one that is behind the last step."""
        return max(self.reports, self.step) + 1

    @property
    def is_ahead(self) -> bool:
        """Whether a checkpoint saved now is taken to belong to the report that is still to be made."""
        # As long as nothing is known: what an attempt saves before its first report belongs to no report before.
        return self._habit.saves_ahead or (self._habit.is_unknown and not self._has_reported)

    @property
    def owes_report(self) -> bool:
        """Whether a checkpoint was saved ahead of its report, which an attempt from that checkpoint would leave out."""
        return self.has_saved and self.is_ahead

    def restores(self) -> None:
        """Called when the attempt asks for a checkpoint: what it did before is no part of what leads to a report."""
        if not self._has_reported:
            self._since = time.monotonic()

    def saves(self, *, is_ahead: bool) -> None:
        """Called before a checkpoint is published, as one of the report to come if `is_ahead`."""
        self._is_guess = is_ahead and not self._habit.saves_ahead

    def saved(self, began: float) -> None:
        """Called once a checkpoint is published; `began` is when the trial began to save it."""
        self._saved = began, time.monotonic()

    def begins_report(self, now: float) -> tuple[float, bool]:
        """Called when a report is made.

        Returns:
            Seconds since the last one, and whether a checkpoint that was taken for one of this report belongs to none,
            such as one of initial weights.
        """
        is_guess, self._is_guess = self._is_guess, False
        # A trial that has neither reported nor saved shows nothing: it may yet save behind its first report.
        shows = self._has_reported or self.has_saved
        is_behind = shows and self._habit.notice(self._since, self._saved, now)
        return now - self._since, is_behind and is_guess

    def ends_report(self) -> None:
        """Called when the trial goes on after a report."""
        self._since, self._has_reported, self._saved = time.monotonic(), True, None
