"""A workload: what trials come when, and what each is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cotune.demand import GIB, MIB
from cotune.engines.simulated import Costs


@dataclass(frozen=True, slots=True)
class Job:
    """A trial of a workload, as it is alone on a device.

    Attributes:
        iterations: How many it runs if nobody stops it.
        step_seconds: How long each takes.
        persistent: Bytes it holds between iterations.
        ephemeral: Bytes within one, on top.
        busy: Share of the device's time it uses.
        startup: Seconds before its first iteration.
        arrival: When it is proposed.
        kind: Trials of one kind are predicted from each other.
        features: From which.
        rungs: Iterations after which a stopping rule judges it.
        values: What it reports there; smaller is better.
        priority: Higher goes first; above 0 it is not to be slowed down much.
        name: As it is called where it comes from; nothing if it has none.
    """

    iterations: int
    step_seconds: float
    persistent: int
    ephemeral: int
    busy: float = 0.9
    startup: float = 0.0
    arrival: float = 0.0
    kind: str = ""
    features: Mapping[str, float] = field(default_factory=dict)
    rungs: tuple[int, ...] = ()
    values: tuple[float, ...] = ()
    priority: float = 0.0
    name: str = ""

    @property
    def peak(self) -> int:
        return self.persistent + self.ephemeral

    @property
    def seconds(self) -> float:
        """How long it takes alone, to its end."""
        return self.startup + self.iterations * self.step_seconds


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs, by arrival, and the devices they are meant for.

    Attributes:
        note: Where it comes from, and what of it is assumed.
        capacity: Bytes of a device.
        context: Bytes of a lane before any trial.
        devices: How many.
        lanes: Of each device; None if that is to be found.
        max_width: Never more lanes than this.
        costs: Of acting.
        judged: Some were stopped by how they did beside those before them, which is in their lengths.
    """

    name: str
    jobs: Sequence[Job]
    note: str = ""
    capacity: int = 16 * GIB
    context: int = 300 * MIB
    devices: int = 1
    lanes: int | None = None
    max_width: int = 16
    costs: Costs = field(default_factory=Costs)
    judged: bool = False
