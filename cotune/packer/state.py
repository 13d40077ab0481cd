"""What the brain remembers of devices and their lanes."""

from __future__ import annotations

from dataclasses import dataclass, field

from cotune.demand import Demand
from cotune.packer.trial import Trial
from cotune.packer.width import WidthControl

# Each keeps a thread and a file descriptor in its lane.
MOST_PAUSED = 16
# Of its time a device is idle where those that run use less when alone.
IDLE = 0.8


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
        resting = sum(trial.rest.held for trial in self.paused.values()) if self.paused else 0
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
    def is_idle(self) -> bool:
        """Whether those that run leave time for others, where it is known that more lanes could use it."""
        if not self.width.idle_limit:
            return False
        running = [lane.residents for lane in self.lanes.values() if lane.residents]
        return sum(max(trial.load for trial in residents.values()) for residents in running) < IDLE

    @property
    def is_returning(self) -> bool:
        """Whether memory that was asked back is still under way."""
        return any(lane.closing or lane.asked < lane.quota for lane in self.lanes.values())

    @property
    def seats(self) -> int:
        """How many more lanes may run here."""
        running, most = 0, self.width.width
        if most > self.width.limit and not self.is_idle:
            most = self.width.limit
        for lane in self.lanes.values():
            if lane.residents:
                running += 1
                for trial in lane.residents.values():
                    most = min(most, 1 if trial.exclusive or trial.alone else trial.beside + 1)
        return max(0, most - running)

    @property
    def idle(self) -> list[Lane]:
        return [lane for lane in self.lanes.values() if not lane.residents and lane.is_open]
