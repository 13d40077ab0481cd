"""Workloads: which trials arrive when, and what each needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cotune.demand import GIB, MIB
from cotune.engines.simulated import Costs
from cotune.packer import MAX_SLOWDOWN
from cotune.plain import real


@dataclass(frozen=True, slots=True)
class Job:
    """A trial of a workload, described as it is alone on a device.

    Attributes:
        iterations: Iterations it runs if nothing stops it.
        step_seconds: Seconds per iteration.
        persistent: Bytes held between iterations.
        ephemeral: Bytes in addition within an iteration.
        busy: Share of the device's time it uses.
        startup: Seconds before its first iteration.
        arrival: When it is proposed.
        kind: Trials of one kind are predicted from each other.
        features: What the prediction is based on.
        rungs: Iterations after which a stopping rule judges it.
        values: What it reports there; smaller is better.
        priority: Higher goes first; above 0, the trial is protected from slowdown.
        name: Its name in the source of the workload; empty if it has none.
        stopped: Its end is where it was stopped.
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
    stopped: bool = False

    @property
    def peak(self) -> int:
        return self.persistent + self.ephemeral

    @property
    def seconds(self) -> float:
        """Seconds it takes alone, to its end."""
        return self.startup + self.iterations * self.step_seconds


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs, and the devices they are meant for.

    Attributes:
        jobs: Ordered by arrival when the object is made; a job's place is the number of its trial.
        note: Where the workload comes from, and what is assumed.
        capacity: Bytes of a device.
        context: Bytes of a lane before any trial.
        devices: Number of devices.
        lanes: Lanes per device; None if the number is to be found.
        max_width: Most lanes per device.
        idle_width: Most lanes per device while the running ones leave it idle; 0 if that makes no difference.
        costs: Durations of the body's actions.
        judged: Some trials were stopped by comparison with earlier ones, which shows in their lengths.
        policy: Name of the policy under which it ran, if it is a run; else empty.
        residents: Most trials that share a lane by taking turns.
        max_slowdown: Largest factor by which others may slow a trial with a priority above 0.
    """

    name: str
    jobs: Sequence[Job]
    note: str = ""
    capacity: int = 16 * GIB
    context: int = 300 * MIB
    devices: int = 1
    lanes: int | None = None
    max_width: int = 16
    idle_width: int = 0
    costs: Costs = field(default_factory=Costs)
    judged: bool = False
    policy: str = ""
    residents: int = 1
    max_slowdown: float = MAX_SLOWDOWN

    def __post_init__(self) -> None:
        object.__setattr__(self, "jobs", sorted(self.jobs, key=lambda job: job.arrival))


def features(params: Mapping[str, object]) -> dict[str, float]:
    """Hyperparameters as features of the prediction: numbers as they are, others one-hot, as in `cotune.run`."""
    found: dict[str, float] = {}
    for name, value in params.items():
        # Not finite are those beyond all floats, and what is no number, as a boolean, which is a choice.
        number = real(value)
        found |= {name: number} if math.isfinite(number) else {f"{name}={value}": 1.0}
    return found
