"""The interface of an ordering policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import ClassVar, NamedTuple

from cotune.packer.speed import GAIN


class Waiting(NamedTuple):
    """A trial as a policy sees it.

    Attributes:
        trial: The trial's number.
        arrival: Position in the order of arrival.
        seconds_left: Predicted remaining time alone; None if nothing like it has finished yet.
        need: Predicted peak bytes; None before anything was measured.
        kind: Trials of one kind belong together.
        busy: Predicted share of a device's time; None before anything was measured.
        since: When the trial began to wait.
        served: Seconds the present attempt has run.
    """

    trial: int
    arrival: int
    seconds_left: float | None
    need: int | None
    kind: str = ""
    busy: float | None = None
    since: float = 0.0
    served: float = 0.0


class Policy(ABC):
    """Determines the order in which waiting trials are tried; the first that fits starts.

    A policy never decides whether a trial fits, and priority is compared before the policy's order. Only `name` and
    `key` must be given; everything else has a neutral default.

    Attributes:
        name: The name by which it is chosen; that of its class if left out.
        uses_predictions: Whether `key` uses `seconds_left`.
        packs: Run as many lanes as memory holds, instead of searching for the width that pays.
        gain: Factor by which more lanes must raise the sum of normalised speeds to be kept.
        guesses: Whether the first width is guessed from the utilisation of one trial.
        preempts: Among the residents of a lane, the first by `key` has every turn (`GiveTurn`).
        spares_critical: Trials get no neighbours that would make them end after everything else (`Critical`).
        excludes: Whether `exclusive` is overridden: a trial may want a device to itself.
        places: Whether `cost` is overridden, and chooses among several devices.
        judged: Set by the brain: trials are stopped by comparison with trials that began earlier. Sorting by
            predictions may then mean sorting by quality.
        devices: Present number of devices; the brain keeps it up to date.
    """

    name: str
    uses_predictions: bool = False
    packs: bool = False
    gain: float = GAIN
    guesses: bool = True
    preempts: bool = False
    spares_critical: bool = False
    excludes: ClassVar[bool] = False
    places: ClassVar[bool] = False
    judged: bool = False
    devices: int = 1

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not hasattr(cls, "name"):
            cls.name = cls.__name__
        cls.excludes, cls.places = cls.exclusive is not Policy.exclusive, cls.cost is not Policy.cost

    @abstractmethod
    def key(self, waiting: Waiting) -> tuple[float, ...]:
        """Sort key; the smallest goes first. Ties go to the earlier arrival."""

    def group(self, waiting: Waiting) -> Hashable:
        """The trial's group. Trials of one group are ordered by `key`, groups by `rank`."""
        return None

    def rank(self, group: Hashable) -> float:
        """Present rank of a group; the smallest goes first."""
        return 0.0

    def joined(self, waiting: Waiting, group: Hashable) -> None:  # noqa: B027
        """A trial begins to wait."""

    def left(self, waiting: Waiting, group: Hashable, started: bool) -> None:  # noqa: B027
        """A trial stops waiting: it starts or was withdrawn. `waiting` is the latest view the policy was given."""

    def changed(self, before: Waiting, group: Hashable, waiting: Waiting, other: Hashable) -> None:
        """The view of a waiting trial has changed, and perhaps its group, from `group` to `other`."""
        self.left(before, group, started=False)
        self.joined(waiting, other)

    def resumed(self, waiting: Waiting, group: Hashable) -> None:
        """A paused trial runs again, without having waited in line."""
        self.joined(waiting, group)
        self.left(waiting, group, started=True)

    def ran(self, trial: int, group: Hashable, seconds: float) -> None:  # noqa: B027
        """A trial ran for some more seconds."""

    def ended(self, trial: int, group: Hashable) -> None:  # noqa: B027
        """A trial no longer runs."""

    def exclusive(self, waiting: Waiting) -> bool:
        """Whether the trial should have a device to itself."""
        return False

    def cost(self, memory: float, busy: float) -> float:
        """The cost of putting a trial on a device; the cheapest device is taken.

        Args:
            memory: Share of the device's capacity that its trials would need, this one included.
            busy: Sum of its trials' `busy` shares when alone, this one included.
        """
        return 0.0
