"""Shortest remaining time first."""

from __future__ import annotations

from cotune.packer.policies.base import Policy, Waiting


class Srtf(Policy):
    """Least predicted remaining time first, to end the average trial soonest (Salus, MLSys'20, section 4.2).

    Schrage's rule (Operations Research 16(3), 1968): optimal for the mean completion time on one machine if running
    trials may be interrupted. Assumes that durations can be predicted; a trial that cannot be predicted yet goes
    first, since its run teaches. A long trial waits as long as shorter ones keep coming.

    Salus switches at every iteration among all jobs whose persistent memory fits. Here the same happens among the
    residents of a lane: the brain gives the turns to the shortest (`GiveTurn`), the others keep their persistent
    memory. With one resident a lane, the default, this is shortest job first without interruption.
    """

    name = "srtf"
    uses_predictions = True
    preempts = True

    def key(self, waiting: Waiting) -> tuple[float, ...]:
        left = waiting.seconds_left
        return (0.0 if left is None else left, waiting.arrival)
