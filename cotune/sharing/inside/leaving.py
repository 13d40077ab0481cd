"""How a trainable is asked to leave once its stop rule is met, and how it takes that."""

from __future__ import annotations

import math
import time
import traceback

from cotune.session import TrialStopped

# Seconds that a trial has to end, and the reports and checkpoints it may still attempt.
LEAVE_WITHIN = 2.0
LEAVE_HEARD = 8


class Leaving:
    """Asks the trainable of one attempt to leave, at every boundary that it still comes to."""

    def __init__(self) -> None:
        self._since = math.inf
        self._heard = 0

    def ask(self) -> None:
        """Asks once more; returns only where that is in vain.

        Raises:
            TrialStopped: The request.
        """
        now = time.monotonic()
        self._since = min(self._since, now)
        self._heard += 1
        if now - self._since <= LEAVE_WITHIN or self._heard <= LEAVE_HEARD:
            raise TrialStopped

    def has_led_to(self, error: BaseException) -> bool:
        """Whether the trainable has ended with this error because it was asked to leave."""
        if isinstance(error, TrialStopped):
            return True
        # What it was told may come back as another error: that of native code that calls back (CatBoost), of a group
        # of tasks, or of a trainable that ends with sys.exit().
        is_told = self._heard > 0 and not isinstance(error, MemoryError)
        if is_told:
            traceback.print_exception(error)
        return is_told
