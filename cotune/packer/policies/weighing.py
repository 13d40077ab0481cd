"""Policies that compare a trial with all the work there is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable

from cotune.packer.policies.base import Policy, Waiting


class Weighing(Policy):
    """A policy that uses the sum of a weight over all trials that wait or run.

    A trial's weight is the one it had when it last waited.

    Attributes:
        total: The sum.
    """

    def __init__(self) -> None:
        self.total = 0.0
        self._weights: dict[int, float] = {}

    @abstractmethod
    def weight(self, waiting: Waiting) -> float:
        """The trial's contribution to the sum."""

    def joined(self, waiting: Waiting, group: Hashable) -> None:
        weight = self.weight(waiting)
        self.total += weight - self._weights.get(waiting.trial, 0.0)
        self._weights[waiting.trial] = weight

    def left(self, waiting: Waiting, group: Hashable, started: bool) -> None:
        if not started:
            self.ended(waiting.trial, group)

    def ended(self, trial: int, group: Hashable) -> None:
        self.total -= self._weights.pop(trial, 0.0)
        if not self._weights:
            # Drop what rounding has left.
            self.total = 0.0
