"""What an ordering policy is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple


class Waiting(NamedTuple):
    """What a policy may look at.

    Attributes:
        trial: The trial's number.
        arrival: Its place in the order of arrival.
        seconds_left: Predicted time it still needs when alone; None if nothing like it has finished yet.
        need: Predicted bytes; None before anything was measured.
        kind: Trials of one kind belong together.
        busy: Predicted share of a device's time; None before anything was measured.
        since: When it began to wait.
        served: Seconds it has run.
    """

    trial: int
    arrival: int
    seconds_left: float | None
    need: int | None
    kind: str = ""
    busy: float | None = None
    since: float = 0.0
    served: float = 0.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a device would look like with the trial on it.

    Attributes:
        memory: Share of its capacity that its trials would need.
        busy: Sum of its trials' shares of its time when alone.
    """

    memory: float
    busy: float


class Policy(ABC):
    """Says in which order waiting trials are tried; the first that fits starts.

    A policy never decides whether a trial fits, and priority comes before it. Only `name` and `key` must be given;
    all else has a neutral default.

    Attributes:
        name: By which it is chosen.
        uses_predictions: Whether `key` looks at `seconds_left`.
        packs: Run as many lanes as memory holds, instead of searching for the width that pays.
        gain: By how much more lanes must raise the sum of normalised speeds to be kept.
        guesses: Whether the first width is guessed from the utilisation of one trial.
        preempts: Among the residents of a lane, the first by `key` has every turn (`GiveTurn`).
        spares_critical: Trials get no neighbours because of which they would end after all else is done (`Critical`).
        places: Whether `cost` says which of several devices is taken.
        judged: Trials are stopped by how they do beside those that began before them, as the brain has been told: to
            sort them by what is predicted may be to sort them by quality.
        devices: How many there are now, which the brain keeps up to date.
    """

    name: str
    uses_predictions: bool = False
    packs: bool = False
    gain: float = 1.05
    guesses: bool = True
    preempts: bool = False
    spares_critical: bool = False
    places: bool = False
    judged: bool = False
    devices: int = 1

    @abstractmethod
    def key(self, waiting: Waiting) -> tuple[float, ...]:
        """Sort key; the smallest goes first. Ties go to the earlier arrival."""

    def group(self, waiting: Waiting) -> Hashable:
        """Trials of one group are ordered by `key`, groups among each other by `rank`."""
        return None

    def rank(self, group: Hashable) -> float:
        """Where a group stands now; that with the smallest goes first."""
        return 0.0

    def joined(self, waiting: Waiting, group: Hashable) -> None:  # noqa: B027
        """A trial waits."""

    def left(self, waiting: Waiting, group: Hashable, started: bool) -> None:  # noqa: B027
        """A trial waits no longer, since it starts or was withdrawn; `waiting` is what was last said of it."""

    def changed(self, before: Waiting, group: Hashable, waiting: Waiting, other: Hashable) -> None:
        """What is known of a trial that waits has changed, and perhaps its group, from `group` to `other`."""
        self.left(before, group, started=False)
        self.joined(waiting, other)

    def resumed(self, waiting: Waiting, group: Hashable) -> None:
        """A trial that had paused runs again, without having waited."""
        self.joined(waiting, group)
        self.left(waiting, group, started=True)

    def ran(self, trial: int, group: Hashable, seconds: float) -> None:  # noqa: B027
        """A trial had a lane for some seconds."""

    def ended(self, trial: int, group: Hashable) -> None:  # noqa: B027
        """A trial is in a lane no longer."""

    def exclusive(self, waiting: Waiting) -> bool:
        """Whether the trial should have a device to itself."""
        return False

    def cost(self, candidate: Candidate) -> float:
        """What it costs to put a trial on a device; the cheapest is taken."""
        return 0.0
