"""A device of a Ray cluster, with what is reserved on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cotune.engines.others import OthersOnGpu
from cotune.engines.stillborn import Stillborn
from cotune.ray_tune.site import Site

ON_EVERY_NODE = "importing what the trainable uses must work on every node, and cotune be installed there"


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """How lanes are made.

    Attributes:
        gpus: Most GPUs to use; None for all the cluster has, 0 for none.
        asks_gpu: Whether the trials ask for a GPU or a fraction of one.
        cores: CPUs a trial asks for, which bounds how many lanes pay.
        margin: Share of a device's memory that is left alone; None for the default.
        lanes: Lanes per device if fixed, all started ahead; else None.
        trials: Most trials that can run at once; None if unknown.
        residents: Trials that may share a lane.
        environment: Environment variables of the lanes' processes.
        modules: Modules to import ahead.
    """

    gpus: int | None
    asks_gpu: bool
    cores: float
    margin: float | None
    lanes: int | None
    trials: int | None
    residents: int
    environment: Mapping[str, str]
    modules: Sequence[str]


@dataclass(eq=False)
class Slot:
    """A placement group, and the device it has become.

    Attributes:
        group: The placement group.
        cores: CPUs its lanes may use.
        share: The device's share of the machine's memory, unless it is a physical GPU.
        node: The node the group was asked for on, if any.
        name: The device's name, once it is up.
        site: Where the device is, once it is up.
        placed: Answered when the group is placed, if there was no place for it when it was asked for.
        others: Other programs' use of the device, if it is a GPU that is up.
        spares: Processes that are not lanes yet, and their answers to `site()`; the first to answer is used first.
        idle_since: When the device became idle; None while a trial runs there.
        stillborn: Counts lanes that died here before they were up.
        asked: When the group was asked for.
        more: Groups of further CPUs, which were in use when `group` was asked for.
        asked_more: A group of further CPUs that may not be placed yet, and its number of CPUs.
        roomy: How often in a row its node has been seen with further CPUs free.
    """

    group: Any
    cores: int
    share: float
    node: str | None
    name: str = ""
    site: Site | None = None
    placed: Any = None
    others: OthersOnGpu | None = None
    spares: list[tuple[Any, Any]] = field(default_factory=list)
    idle_since: float | None = None
    stillborn: Stillborn = field(default_factory=lambda: Stillborn(ON_EVERY_NODE))
    asked: float = 0.0
    more: list[Any] = field(default_factory=list)
    asked_more: tuple[Any, int] | None = None
    roomy: int = 0

    @property
    def groups(self) -> list[Any]:
        """All placement groups of the device."""
        return [self.group, *self.more] + ([self.asked_more[0]] if self.asked_more is not None else [])

    @property
    def place(self) -> str | None:
        """The node the device is on, or was asked for on."""
        return self.site.node if self.site is not None else self.node

    @property
    def news(self) -> list[Any]:
        """Futures to wait for until the device is up; the first answer counts."""
        if self.placed is not None:
            return [self.placed]
        return [answer for _, answer in self.spares] if self.site is None else []
