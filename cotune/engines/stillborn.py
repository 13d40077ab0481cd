"""Counts lanes that die before they are up."""

from __future__ import annotations

from cotune.errors import RunError

MAX_STILLBORN = 5


class Stillborn:
    """Counts stillborn lanes in a row: what kills several would also kill every further one.

    Args:
        hint: Hint of the error for too many.
    """

    def __init__(self, hint: str) -> None:
        self._hint = hint
        self._in_a_row = 0

    def lane_up(self) -> None:
        self._in_a_row = 0

    def another(self, detail: str) -> RunError | None:
        """Counts one more lane that died before it was up; returns what to raise if those are too many in a row."""
        self._in_a_row += 1
        if self._in_a_row < MAX_STILLBORN:
            return None
        return RunError(f"{MAX_STILLBORN} lanes in a row died before they were up: {detail}", hint=self._hint)
