"""Longest first."""

from __future__ import annotations

from cotune.packer.policies.base import Policy, Waiting


class Makespan(Policy):
    """Longest predicted remaining time first, to end the whole sweep soonest.

    Graham's longest-processing-time rule (SIAM J. Appl. Math. 17(2), 1969), within 4/3 of the optimum on
    identical machines; Fluid (MLSys'21, section 4.1) orders trials the same way. Assumes that durations can be
    predicted from finished siblings; as long as they cannot, it is first come, first served.
    """

    name = "makespan"
    uses_predictions = True

    def key(self, waiting: Waiting) -> tuple[float, ...]:
        left = waiting.seconds_left
        return (0.0 if left is None else -left, waiting.arrival)
