"""What an ordering policy is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a policy may look at.

    Attributes:
        trial: The trial's number.
        arrival: Its place in the order of arrival.
        seconds_left: Predicted time it still needs when alone; None if nothing like it has finished yet.
        need: Predicted bytes; None before anything was measured.
    """

    trial: int
    arrival: int
    seconds_left: float | None
    need: int | None


class Policy(ABC):
    """Says in which order waiting trials are tried; the first that fits starts.

    A policy never decides where a trial goes, nor whether it fits, and priority comes before it.
    """

    name: str
    uses_predictions: bool = False

    @abstractmethod
    def key(self, waiting: Waiting) -> tuple[float, ...]:
        """Sort key; the smallest goes first. Ties go to the earlier arrival."""
