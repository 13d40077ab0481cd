"""The brain's state of one trial that is not over."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cotune.demand import MIB, Demand

if TYPE_CHECKING:
    from cotune.packer.state import Device, Lane

MARGIN = 1.05
ALLOWANCE = 4 * MIB
MANY = 1 << 30


def padded(count: int) -> int:
    """Measured bytes plus a margin for growth in later iterations."""
    return int(count * MARGIN) + ALLOWANCE


@dataclass(slots=True)
class Progress:
    """Progress of one attempt.

    Attributes:
        iterations: Iterations made so far.
        seconds: Seconds the attempt has run.
        alone_seconds: Seconds the same iterations would have taken alone.
        first_iterations: Iterations in the first progress report; they include the set-up.
        first_seconds: Seconds these would have taken alone.
        metered: Seconds for which the device use was measured.
        used: Device use in these seconds, in seconds of a whole device.
        first_metered: `metered` of the first iterations.
        first_used: `used` of the first iterations.
    """

    iterations: int = 0
    seconds: float = 0.0
    alone_seconds: float = 0.0
    first_iterations: int = 0
    first_seconds: float = 0.0
    metered: float = 0.0
    used: float = 0.0
    first_metered: float = 0.0
    first_used: float = 0.0

    @property
    def pace(self) -> float:
        """Seconds per iteration when alone, without the first iterations (with set-up) once there are later ones."""
        more = self.iterations - self.first_iterations
        if not more:
            return self.alone_seconds / max(1, self.iterations)
        return (self.alone_seconds - self.first_seconds) / more

    @property
    def busy(self) -> float | None:
        """Share of the device's time in use, without the set-up once there are later iterations; None if unknown."""
        metered, used = self.metered, self.used
        if self.iterations > self.first_iterations and self.metered > self.first_metered:
            metered, used = self.metered - self.first_metered, self.used - self.first_used
        return used / metered if metered else None

    def add(self, count: int, seconds: float, speed: float, busy: float | None) -> None:
        """Adds `count` iterations made at `speed` (1 is the speed alone) while using the share `busy` of the device."""
        is_first = self.iterations == 0
        self.iterations += count
        self.seconds += seconds
        self.alone_seconds += seconds * speed
        if busy is not None:
            self.metered += seconds
            self.used += busy * seconds
        if is_first:
            self.first_iterations, self.first_seconds = self.iterations, self.alone_seconds
            self.first_metered, self.first_used = self.metered, self.used


@dataclass(slots=True)
class Rest:
    """What a paused trial keeps in its lane.

    Attributes:
        measured: Bytes held when the trial was paused.
        parked: Bytes that parking has freed.
        movable: Bytes that parking would free.
        saved: The trial had a checkpoint when it was paused.
        is_leaving: The trial was told to leave its lane, or to park, to make room.
    """

    measured: int = 0
    parked: int = 0
    movable: int = 0
    saved: bool = False
    is_leaving: bool = False

    @property
    def bytes(self) -> int:
        """`measured` plus a margin."""
        return padded(self.measured)

    @property
    def taken(self) -> int:
        """Bytes set aside for the trial in its lane."""
        return self.bytes - self.parked


@dataclass(slots=True, eq=False)
class Trial:
    """A trial that is not over.

    What it needs has several names. Before it runs: the owner's `hint`, and `expected`, with margins, by hint or
    siblings. Once it runs: `seen` is the largest measurement, `demand` the same once it is reliable, `measured` that
    with margins, raised to `later`, the peak by which siblings that needed `early` at first have grown. After it ran
    out of memory, none of these is less than `floor`. `set_aside` is the one to use.

    Attributes:
        hint: The owner's estimate of the demand, used until the trial is measured.
        seconds_hint: The owner's estimate of the run time alone.
        max_steps: Declared number of iterations, if any.
        since: When the trial began to wait.
        lane: The lane in which the trial runs or is paused.
        progress: Progress of the latest attempt.
        rest: What the trial keeps in its lane while paused there.
        attempts: Number of starts, including those under an earlier brain.
        seen: Largest measured demand, over all attempts.
        demand: `seen`, once it is reliable; None before the second iteration.
        measured: `demand` plus margins: what to set aside while the trial runs.
        expected: What to set aside, margins included, as last predicted; None if the trial must be probed.
        early: Peak bytes in its first iterations, when its demand was first measured.
        later: Peak bytes the trial is expected to reach, judged by its siblings.
        floor: Least bytes the trial is assumed to need after it ran out of memory.
        lacked: Most bytes with which the trial ran out of memory; `floor` adds a guess to that.
        outgrown: Most room of a device that the trial had for itself and that was not enough.
        longest: Most seconds per iteration in any progress report, over all attempts.
        expected_seconds: Predicted run time when the trial first started.
        alone: The trial must have a device for itself (repeated out-of-memory, two lane deaths, or too many `losses`).
        oversized: The predicted demand exceeds every device; the trial must have one for itself to prove it.
        exclusive: The policy wants no other lane on the trial's device.
        beside: How many other lanes may run on the trial's device.
        had: Quota the lane is certain to have had since the latest progress.
        had_all: The latest attempt began with a whole device and a clean lane.
        group: The policy's group of the trial, as of when it last waited.
        promised: The device on which room was last asked for the trial.
        overtaken: Trials that started before this one while it was first in line and did not fit.
        held: The owner wants the trial to wait.
        pausing: The trial was told to pause and has not paused yet.
        withdrawn: The owner wants the trial to end.
        pressed_at: Since when the trial must end without further time to clean up.
        splits: Micro-batches per batch, as reported in this attempt; 0 if the trial does not split.
        granted: Most micro-batches the trial may run at once, counting a grant it was sent but has not confirmed.
        refused: Fewest micro-batches at once with which it ran out of memory, in any attempt; 0 if it never did.
        losses: How often the trial was lost together with everything that ran beside it.
    """

    id: int
    arrival: int
    kind: str
    features: Mapping[str, float]
    priority: float
    hint: Demand | None = None
    seconds_hint: float | None = None
    max_steps: int | None = None
    since: float = 0.0

    lane: Lane | None = None
    progress: Progress = field(default_factory=Progress)
    rest: Rest = field(default_factory=Rest)
    attempts: int = 0

    seen: Demand | None = None
    demand: Demand | None = None
    measured: Demand | None = None
    expected: Demand | None = None
    early: int = 0
    later: int = 0
    floor: int = 0
    lacked: int = 0
    outgrown: int = 0
    longest: float = 0.0
    expected_seconds: float | None = None

    alone: bool = False
    oversized: bool = False
    exclusive: bool = False
    beside: int = MANY
    had: int = 0
    had_all: bool = False

    group: Hashable = None
    promised: Device | None = None
    overtaken: int = 0

    held: bool = False
    pausing: bool = False
    withdrawn: bool = False
    pressed_at: float | None = None

    splits: int = 0
    granted: int = 1
    refused: int = 0

    out_of_memories: int = 0
    lane_deaths: int = 0
    losses: int = 0
    failures: int = 0

    @property
    def busy(self) -> float | None:
        """Share of a device's time the trial uses when alone; None if unknown."""
        for known in (self.demand, self.expected):
            if known is not None and known.busy is not None:
                return known.busy
        return None

    @property
    def load(self) -> float:
        """`busy`, or 1 if unknown."""
        return 1.0 if self.busy is None else self.busy

    @property
    def set_aside(self) -> Demand | None:
        """What to set aside for the trial: as measured or, before that, as predicted; None if nothing is known."""
        return self.measured or self.expected

    @property
    def is_paused(self) -> bool:
        """Whether the trial is paused in its lane."""
        return self.lane is not None and self.id in self.lane.paused

    @property
    def is_probe(self) -> bool:
        return self.demand is None and self.expected is None

    @property
    def wants_all(self) -> bool:
        return self.alone or self.oversized

    @property
    def is_apart(self) -> bool:
        """Whether the trial gets a new lane of its own: a lane has died under it, and it must not harm other trials."""
        return self.lane_deaths > 0

    def believe(self, demand: Demand | None) -> None:
        """Sets the measured demand."""
        self.demand = demand
        self.measured = self.needing(self.grown(demand)) if demand else None

    def grown(self, demand: Demand) -> Demand:
        """A measured demand, raised to the peak the trial is expected to reach."""
        return demand.raised_to(self.later)

    def needing(self, measured: Demand) -> Demand:
        """What to set aside for the trial if `measured` is its measured demand."""
        return self.with_floor(Demand(padded(measured.persistent), padded(measured.ephemeral), measured.busy))

    def with_floor(self, demand: Demand) -> Demand:
        """The demand, raised to the floor learnt from out-of-memory."""
        return demand.raised_to(self.floor)
