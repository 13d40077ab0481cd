"""Longest first, and the tallest alone."""

from __future__ import annotations

from collections.abc import Hashable

from cotune.packer.policies.base import Policy, Waiting


class Fluid(Policy):
    """Longest first; one as tall as a device's part of all that waits gets a device to itself.

    (Fluid, MLSys'21, section 4.1, elastic training executors.)

    Fluid gives trial i the width `min(max(floor(h_i * n / sum h), 1/c), d)` of n devices by its predicted height h_i,
    which balances the trials of a stage: c short ones share a device, a tall one gets up to d. Optimises the makespan
    of a stage, and assumes that heights are known. We differ in that a trial never spans devices (d = 1), so a width
    of 1 means a device without other lanes and a smaller one a lane beside others, as many as the width search finds
    to pay (c). A height is not lowered as its trial runs, but only when that ends.
    """

    name = "fluid"
    uses_predictions = True

    def __init__(self) -> None:
        self._heights: dict[int, float] = {}
        self._sum = 0.0

    def key(self, waiting: Waiting) -> tuple[float, ...]:
        return (-(waiting.seconds_left or 0.0), waiting.arrival)

    def joined(self, waiting: Waiting, group: Hashable) -> None:
        height = waiting.seconds_left or 0.0
        self._sum += height - self._heights.get(waiting.trial, 0.0)
        self._heights[waiting.trial] = height

    def left(self, waiting: Waiting, group: Hashable, started: bool) -> None:
        if not started:
            self.ended(waiting.trial, group)

    def ended(self, trial: int, group: Hashable) -> None:
        self._sum -= self._heights.pop(trial, 0.0)

    def exclusive(self, waiting: Waiting, devices: int) -> bool:
        height = waiting.seconds_left
        return height is not None and height * devices >= self._sum > 0.0
