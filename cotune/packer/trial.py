"""What the brain remembers of a trial that is not over."""

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
    """Measured bytes with the room that the next iterations may need on top."""
    return int(count * MARGIN) + ALLOWANCE


@dataclass(slots=True)
class Progress:
    """How far an attempt has come.

    Attributes:
        iterations: That it has made.
        seconds: For which it ran.
        alone_seconds: How long that would have taken alone.
        first_iterations: Those that it made until it was first heard of, which carry its set-up.
        first_seconds: How long these took.
        metered: Seconds of which it is known what it used of the device.
        used: What that was, in seconds of a whole device.
        first_metered: The same of the first iterations.
        first_used: As well.
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
        """Seconds of an iteration alone, those that carry its set-up left out; of the second one on."""
        more = self.iterations - self.first_iterations
        if not more:
            return self.alone_seconds / max(1, self.iterations)
        return (self.alone_seconds - self.first_seconds) / more

    @property
    def busy(self) -> float | None:
        """The share of the device it uses, set-up left out of the second iteration on; None as long as nobody knows."""
        metered, used = self.metered, self.used
        if self.iterations > self.first_iterations and self.metered > self.first_metered:
            metered, used = self.metered - self.first_metered, self.used - self.first_used
        return used / metered if metered else None

    def add(self, count: int, seconds: float, speed: float, busy: float | None) -> None:
        """So many iterations more, at this share of the speed that it has alone, with this share of the device."""
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
    """What a paused trial has in its lane.

    Attributes:
        measured: Bytes it held when it was paused.
        bytes: The same with a margin.
        parked: Bytes of these that parking it has freed.
        movable: Bytes that parking it would free.
        saved: It has a checkpoint, as of when it was paused.
        is_leaving: It was told to leave its lane, or to park, for the sake of others.
    """

    measured: int = 0
    bytes: int = 0
    parked: int = 0
    movable: int = 0
    saved: bool = False
    is_leaving: bool = False

    @property
    def held(self) -> int:
        """Bytes that are set aside for it in its lane."""
        return self.bytes - self.parked


@dataclass(slots=True, eq=False)
class Trial:
    """A trial that is not over.

    Attributes:
        hint: What its owner expects it to need, until it was measured.
        seconds_hint: How long its owner expects it to take alone.
        max_steps: Iterations to its end, where that was declared.
        since: When it began to wait.
        lane: In which it runs, or is paused.
        progress: Of its latest attempt.
        rest: What it has in its lane while it is paused there.
        attempts: How often it was started, also before this brain knew it.
        seen: What was measured, over all attempts.
        demand: The same, once it can be relied on: None before the second iteration.
        measured: `demand` with margins: what to set aside for it while it runs.
        expected: What to set aside for it, margins included, as last looked at; None if it must be probed.
        early: Peak bytes when it was first measured, in its first iterations.
        later: Peak bytes that it is expected to come to, by its siblings.
        floor: Bytes it is known to need at least, since it ran out of memory with less.
        lacked: The most with which it ran out of memory; `floor` is a guess beyond that.
        longest: Seconds that one of its iterations took, in any attempt.
        expected_seconds: How long it was expected to take when it first started.
        alone: It must have a device for itself (it ran out of memory twice, or two lanes died with it).
        oversized: It is expected to exceed every device, and must have one for itself to prove it.
        exclusive: The policy wants no other lane beside it on its device.
        beside: Other lanes that may run on its device while it does.
        had: Bytes that its lane had for sure since its latest progress.
        had_all: Its latest attempt began with a whole device and a clean lane.
        group: As the policy has it, when it last waited.
        promised: Where room was last asked for it.
        overtaken: Trials that started while this one was first in line and did not fit.
        held: Its owner wants it to wait.
        pausing: It was told to pause, and does not yet.
        withdrawn: Its owner wants it to end.
        pressed_at: Since when it is to be gone, and need not be given time to clean up.
        splits: Micro-batches it splits a batch into, as it has shown in this attempt; 0 if it does not.
        granted: The most of them it may run at once now, also what it has been told and has not yet heard.
        refused: With so many at once it ran out of memory, in any attempt; 0 if it never did.
        losses: How often all that ran beside it was lost with it.
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
        """The share of a device's time it uses when alone; None as long as nobody knows."""
        for known in (self.demand, self.expected):
            if known is not None and known.busy is not None:
                return known.busy
        return None

    @property
    def load(self) -> float:
        """The same; all of it as long as nobody knows."""
        return 1.0 if self.busy is None else self.busy

    @property
    def is_paused(self) -> bool:
        """Whether it waits in its lane."""
        return self.lane is not None and self.id in self.lane.paused

    @property
    def is_probe(self) -> bool:
        return self.demand is None and self.expected is None

    @property
    def wants_all(self) -> bool:
        return self.alone or self.oversized

    @property
    def is_apart(self) -> bool:
        """Whether it gets a new lane of its own: one has died under it, and what it does is to befall nobody else."""
        return self.lane_deaths > 0

    def believe(self, demand: Demand | None) -> None:
        """Takes this for its measured demand."""
        self.demand = demand
        self.measured = self.needing(self.grown(demand)) if demand else None

    def grown(self, demand: Demand) -> Demand:
        """What was measured of it, raised to what it is expected to come to."""
        return demand.raised_to(self.later)

    def needing(self, measured: Demand) -> Demand:
        """What to set aside for it if it was measured to need this much."""
        return self.with_floor(Demand(padded(measured.persistent), padded(measured.ephemeral), measured.busy))

    def with_floor(self, demand: Demand) -> Demand:
        """The demand, raised to what out-of-memory taught."""
        return demand.raised_to(self.floor)
