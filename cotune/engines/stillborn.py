"""Lanes that die before they are up."""

from __future__ import annotations

from cotune.errors import RunError

MAX_STILLBORN = 5


class Stillborn:
    """Counts them: what takes a few lanes in a row would take every further one.

    Args:
        hint: For the error that this ends with.
    """

    def __init__(self, hint: str) -> None:
        self._hint = hint
        self._in_a_row = 0

    def lane_up(self) -> None:
        self._in_a_row = 0

    def another(self, detail: str) -> None:
        """One more has died.

        Raises:
            RunError: They were too many.
        """
        self._in_a_row += 1
        if self._in_a_row >= MAX_STILLBORN:
            raise RunError(f"{MAX_STILLBORN} lanes in a row died before they were up: {detail}", hint=self._hint)
