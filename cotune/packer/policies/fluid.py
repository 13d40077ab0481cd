"""Longest first, and the tallest trials alone."""

from __future__ import annotations

from cotune.packer.policies.base import Waiting
from cotune.packer.policies.weighing import Weighing


class Fluid(Weighing):
    """Longest first; a trial as tall as one device's part of all waiting and running work gets a device to itself.

    (Fluid, MLSys'21, section 4.1, elastic training executors.)

    Fluid gives trial i the width `min(max(floor(h_i * n / sum h), 1/c), d)` of n devices by its predicted height h_i,
    which balances the trials of a stage: c short ones share a device, a tall one gets up to d. Optimises the makespan
    of a stage, and assumes that heights are known. We differ in that a trial never spans devices (d = 1), so a width
    of 1 means a device without other lanes, and a smaller one means a lane beside others, as many as the width search
    finds to pay (c). A trial counts with its full height until it ends.
    """

    name = "fluid"
    uses_predictions = True

    def key(self, waiting: Waiting) -> tuple[float, ...]:
        return (-(waiting.seconds_left or 0.0), waiting.arrival)

    def weight(self, waiting: Waiting) -> float:
        return waiting.seconds_left or 0.0

    def exclusive(self, waiting: Waiting) -> bool:
        height = waiting.seconds_left
        return height is not None and height * self.devices >= self.total > 0.0
