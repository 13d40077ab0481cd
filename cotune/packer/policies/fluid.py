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
    to pay (c). Heights of running trials are not counted.
    """

    name = "fluid"
    uses_predictions = True

    def __init__(self) -> None:
        self._heights = 0.0

    def key(self, waiting: Waiting) -> tuple[float, ...]:
        return (-(waiting.seconds_left or 0.0), waiting.arrival)

    def joined(self, waiting: Waiting, group: Hashable) -> None:
        self._heights += waiting.seconds_left or 0.0

    def left(self, waiting: Waiting, group: Hashable, started: bool) -> None:
        self._heights = max(0.0, self._heights - (waiting.seconds_left or 0.0))

    def exclusive(self, waiting: Waiting, devices: int) -> bool:
        height = waiting.seconds_left
        return height is not None and height * devices >= self._heights > 0.0
