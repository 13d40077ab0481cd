"""One device of a Ray cluster, as we hold it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cotune.engines.others import OthersOnGpu
from cotune.engines.stillborn import Stillborn
from cotune.ray_tune.site import Site

if TYPE_CHECKING:
    from cotune.ray_tune.lane_handle import LaneHandle

ON_EVERY_NODE = "importing what the trainable uses must work on every node, and cotune be installed there"


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """How lanes are made.

    Attributes:
        gpus: GPUs to use at most; None for all the cluster has, 0 for none.
        asks_gpu: The trials ask for one, however little of it.
        cores: CPUs a trial asks for, which bounds how many lanes pay.
        margin: Share of a device's memory that is left alone; None for the usual.
        lanes: Lanes per device if that is fixed; as many are started ahead.
        trials: At most so many run at once, whatever there is; None if that is not known.
        residents: Trials that may share a lane.
        environment: For the lanes' processes.
        modules: To be imported ahead.
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
    """A placement group and what has become of it.

    Attributes:
        group: The placement group.
        cores: CPUs its lanes may use.
        share: Part of its node's memory that is its own, where memory is what it has.
        node: The node it was meant for, if any.
        name: The device's, once it is up.
        site: Where it is, once it is up.
        placed: Answered when the group has its place, if that was not there when it was asked for.
        others: Who else uses it, if it is a GPU that is up.
        spares: Processes that are no lanes yet, and their answers to `site()`; whose is first is used first.
        lanes: The lanes on it, by number.
        idle_since: When nothing ran here any more.
        stillborn: Lanes that died here before they were up.
        asked: When it was asked for.
        more: Groups of further CPUs, which had been in use by others when it was asked for.
        asked_more: One that may have no place yet, and how many CPUs it is for.
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
    lanes: dict[int, LaneHandle] = field(default_factory=dict)
    idle_since: float | None = None
    stillborn: Stillborn = field(default_factory=lambda: Stillborn(ON_EVERY_NODE))
    asked: float = 0.0
    more: list[Any] = field(default_factory=list)
    asked_more: tuple[Any, int] | None = None
    roomy: int = 0

    @property
    def groups(self) -> list[Any]:
        """All that is reserved for it."""
        return [self.group, *self.more] + ([self.asked_more[0]] if self.asked_more is not None else [])

    @property
    def place(self) -> str | None:
        """The node it is on, or is meant for."""
        return self.site.node if self.site is not None else self.node

    @property
    def news(self) -> list[Any]:
        """What is waited for until it is up: the first of these."""
        if self.placed is not None:
            return [self.placed]
        return [answer for _, answer in self.spares] if self.site is None else []
