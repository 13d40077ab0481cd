"""What the brain remembers: devices, their lanes, the trials."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from cotune.demand import MIB, Demand
from cotune.packer.width import WidthControl

MARGIN = 1.05
ALLOWANCE = 4 * MIB
MANY = 1 << 30
# Each keeps a thread and a file descriptor in its lane.
MOST_PAUSED = 16


def padded(count: int) -> int:
    """Measured bytes with the room that the next iterations may need on top."""
    return int(count * MARGIN) + ALLOWANCE


@dataclass(slots=True, eq=False)
class Trial:
    """A trial that is not over.

    Attributes:
        seen: What was measured, over all attempts.
        demand: The same, once it can be relied on: None before the second iteration.
        measured: `demand` with margins: what to set aside for it while it runs.
        expected: What to set aside for it, margins included, as last looked at; None if it must be probed.
        pressed_at: Since when it is to be gone, and need not be given time to clean up.
        early: Peak bytes when it was first measured, in its first iterations.
        later: Peak bytes that it is expected to come to, by its siblings.
        floor: Bytes it is known to need at least, since it ran out of memory with less.
        alone: It must have a device for itself (it ran out of memory twice, or two lanes died with it).
        promised: Where room was last asked for it.
        oversized: It is expected to exceed every device, and must have one for itself to prove it.
        expected_seconds: How long it was expected to take when it first started.
        attempts: How often it was started, also before this brain knew it.
        had_all: This attempt began with a whole device and a clean lane.
        overtaken: Trials that started while this one was first in line and did not fit.
        group: As the policy has it, when it last waited.
        exclusive: The policy wants no other lane beside it on its device.
        seconds: For which it ran, in this attempt.
        alone_seconds: How long that would have taken alone.
        first_iterations: Those that it made until it was first heard of, which carry its set-up.
        first_seconds: How long these took.
        busy_seconds: Over which `busy` was averaged, in this attempt.
        hint: What its owner expects it to need, until it was measured.
        seconds_hint: How long its owner expects it to take alone.
        max_steps: Iterations to its end, where that was declared.
        since: When it began to wait.
        splits: Micro-batches it splits a batch into, as it has shown in this attempt; 0 if it does not.
        granted: The most of them it may run at once now, also what it has been told and has not yet heard.
        refused: With so many at once it ran out of memory, in any attempt; 0 if it never did.
        beside: Other lanes that may run on its device while it does.
        held: Its owner wants it to wait.
        pausing: It was told to pause, and does not yet.
        rested: Bytes it held when it was paused in its lane.
        resting: The same with a margin, while it is paused.
        saved: It has a checkpoint, as of when it was paused.
        movable: Bytes that parking it would free.
        parked: Bytes that parking it has freed.
        leaving: It was told to leave its lane, or to park, for the sake of others.
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
    group: Hashable = None
    exclusive: bool = False
    lane: Lane | None = None
    seen: Demand | None = None
    demand: Demand | None = None
    measured: Demand | None = None
    promised: Device | None = None
    expected: Demand | None = None
    early: int = 0
    later: int = 0
    floor: int = 0
    alone: bool = False
    expected_seconds: float | None = None
    attempts: int = 0
    oversized: bool = False
    had_all: bool = False
    overtaken: int = 0
    out_of_memories: int = 0
    lane_deaths: int = 0
    losses: int = 0
    failures: int = 0
    withdrawn: bool = False
    pressed_at: float | None = None
    iterations: int = 0
    seconds: float = 0.0
    alone_seconds: float = 0.0
    first_iterations: int = 0
    first_seconds: float = 0.0
    busy_seconds: float = 0.0
    longest: float = 0.0
    splits: int = 0
    granted: int = 1
    refused: int = 0
    beside: int = MANY
    held: bool = False
    pausing: bool = False
    rested: int = 0
    resting: int = 0
    saved: bool = False
    movable: int = 0
    parked: int = 0
    leaving: bool = False

    @property
    def busy(self) -> float | None:
        """The share of a device's time it uses when alone; None as long as nobody knows."""
        for known in (self.demand, self.expected):
            if known is not None and known.busy is not None:
                return known.busy
        return None

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

    @property
    def pace(self) -> float:
        """Seconds of an iteration alone, those that carry its set-up left out; of the second one on."""
        more = self.iterations - self.first_iterations
        if not more:
            return self.alone_seconds / max(1, self.iterations)
        return (self.alone_seconds - self.first_seconds) / more

    def believe(self, demand: Demand | None) -> None:
        """Takes this for its measured demand."""
        self.demand = demand
        self.measured = self.needing(self.grown(demand)) if demand else None

    def grown(self, demand: Demand) -> Demand:
        """What was measured of it, raised to what it is expected to come to."""
        missing = self.later - demand.peak
        return Demand(demand.persistent, demand.ephemeral + missing, demand.busy) if missing > 0 else demand

    def needing(self, measured: Demand) -> Demand:
        """What to set aside for it if it was measured to need this much."""
        return self.with_floor(Demand(padded(measured.persistent), padded(measured.ephemeral), measured.busy))

    def with_floor(self, demand: Demand) -> Demand:
        """The demand, raised to what out-of-memory taught."""
        missing = self.floor - demand.peak
        return Demand(demand.persistent, demand.ephemeral + missing, demand.busy) if missing > 0 else demand


@dataclass(slots=True, eq=False)
class Lane:
    """One process on one device, with one quota.

    Attributes:
        quota: Bytes set aside for it; after a shrink was asked for, the old figure until it is confirmed.
        asked: The quota last asked for.
        unanswered: `ResizeLane` instructions whose `LaneResized` has not come yet.
        least: Bytes it could not go below when it was last asked to shrink.
        context: Bytes of the bare process.
        opened: When that was asked for.
        shared: Bytes of objects its trials share.
        residue: Bytes that ended trials left behind.
        first_residue: What the first one left (imports, caches): the price of a warm lane, not a leak.
        served: A trial has ended in it.
        has_iterated: A trial has come to an iteration in it, and it runs since: what is done once in a process is done.
        is_stalled: No trial has for so long that it is not waited for.
        retiring: It takes no further trial and is closed when empty.
        overdue: The trial for whose sake it is being killed.
        turn: The resident that was given every turn.
        paused: Trials that hold bytes here and do not run; they are no residents.
    """

    id: int
    device: Device
    quota: int
    asked: int
    context: int
    opened: float = 0.0
    unanswered: int = 0
    least: int = 0
    shared: int = 0
    residue: int = 0
    first_residue: int | None = None
    served: bool = False
    has_iterated: bool = False
    is_stalled: bool = False
    residents: dict[int, Trial] = field(default_factory=dict)
    ready: bool = False
    retiring: bool = False
    closing: bool = False
    overdue: int | None = None
    turn: int | None = None
    paused: dict[int, Trial] = field(default_factory=dict)

    @property
    def base(self) -> int:
        """Bytes it holds whoever runs in it."""
        resting = sum(trial.resting - trial.parked for trial in self.paused.values()) if self.paused else 0
        return self.context + self.shared + self.residue + resting

    @property
    def is_open(self) -> bool:
        """Whether it takes another trial."""
        return not (self.closing or self.retiring or len(self.paused) > MOST_PAUSED)

    @property
    def is_empty(self) -> bool:
        return not self.residents and not self.paused

    @property
    def is_probing(self) -> bool:
        return any(trial.is_probe for trial in self.residents.values())

    @property
    def returning(self) -> int:
        """Bytes it was told to let go, and has not yet."""
        return self.quota if self.closing else self.quota - self.asked

    def need(self, demands: list[Demand]) -> int:
        """Salus's safety condition for one lane: persistent bytes add up, ephemeral ones are shared."""
        if not demands:
            return self.base
        if len(demands) == 1:
            return self.base + demands[0].peak
        return self.base + sum(d.persistent for d in demands) + max(d.ephemeral for d in demands)


@dataclass(slots=True, eq=False)
class Device:
    """A device: capacity, lanes, width.

    Attributes:
        number: Its place in the order in which devices were found.
        most: More at once, lanes or micro-batches, never pays here.
        full: The largest capacity it was seen with: what it has when others use none of it.
        held: Sum of the quotas of its lanes, which never grows beyond `capacity`.
        context: Bytes of a bare lane here: a guess at first, then the largest measured of those that are up.
        knows_context: It is no guess any more.
        start_seconds: What the last lane took to come up; 0 until there was a second one, since the first waits for
            imports.
        shared: Bytes of shared objects in a lane here, the largest of those that are up.
        stillborn: Lanes that have died in a row before they were up.
        room: The largest peak it has room for when nothing else runs here.
        holes: What fits here, as `Fitting` has worked it out; None after every change.
        reserved_for: The trial that has waited long enough for nothing else to start here.
    """

    name: str
    number: int
    capacity: int
    context: int
    width: WidthControl
    most: int = 1
    full: int = 0
    knows_context: bool = False
    start_seconds: float = 0.0
    shared: int = 0
    stillborn: int = 0
    held: int = 0
    lanes: dict[int, Lane] = field(default_factory=dict)
    room: int = 0
    holes: tuple[int, int] | None = None
    reserved_for: Trial | None = None

    def __hash__(self) -> int:
        # Not its address: sets of devices are walked through, and instructions follow in that order.
        return self.number

    @property
    def free(self) -> int:
        return self.capacity - self.held

    @property
    def active(self) -> int:
        return sum(1 for lane in self.lanes.values() if lane.residents)

    @property
    def computing(self) -> int:
        """How many lanes run, those left out that do nothing for long before their first iteration."""
        return sum(1 for lane in self.lanes.values() if lane.residents and not lane.is_stalled)

    @property
    def iterating(self) -> int:
        """The same; none as long as one of them has yet to come to its first iteration."""
        running = [lane for lane in self.lanes.values() if lane.residents and not lane.is_stalled]
        return len(running) if all(lane.has_iterated for lane in running) else 0

    @property
    def is_returning(self) -> bool:
        """Whether memory that was asked back is still under way."""
        return any(lane.closing or lane.asked < lane.quota for lane in self.lanes.values())

    @property
    def seats(self) -> int:
        """How many more lanes may run here."""
        running, most = 0, self.width.width
        for lane in self.lanes.values():
            if lane.residents:
                running += 1
                for trial in lane.residents.values():
                    most = min(most, 1 if trial.exclusive or trial.alone else trial.beside + 1)
        return max(0, most - running)

    @property
    def idle(self) -> list[Lane]:
        return [lane for lane in self.lanes.values() if not lane.residents and lane.is_open]
