"""The brain's state of devices and their lanes."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from cotune.demand import Demand
from cotune.packer.trial import Trial
from cotune.packer.width import WidthControl

# Each paused trial keeps a thread and a file descriptor in its lane.
MOST_PAUSED = 16
# A device is idle while the running trials' `busy` shares, measured alone, sum to less than this.
IDLE = 0.8


@dataclass(slots=True, eq=False)
class Lane:
    """One process on one device, with one quota.

    Attributes:
        quota: Bytes set aside for the lane; while a shrink is unconfirmed, the old figure.
        asked: The quota last asked for.
        unanswered: `ResizeLane` instructions without a `LaneResized` so far.
        least: Bytes the lane could not go below when last asked to shrink.
        context: Bytes of the bare process.
        opened: When `OpenLane` was given.
        shared: Bytes of objects shared by the lane's trials.
        residue: Bytes left behind by ended trials.
        usual_residue: What the first two trials left (imports, caches): the price of a warm lane, not a leak.
        served: Trials that have ended in the lane.
        has_iterated: A trial has made an iteration here, so set-up of the process is done; reset on idle lanes when the
            width grows.
        is_stalled: The lane has gone so long without an iteration that others no longer wait for it.
        retiring: The lane takes no further trial and is closed when empty.
        killed_for: The trial that caused the lane to be killed.
        turn: The resident that was given every turn.
        paused: Trials that hold bytes in the lane but do not run; they are not residents.
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
    usual_residue: int = 0
    served: int = 0
    has_iterated: bool = False
    is_stalled: bool = False
    residents: dict[int, Trial] = field(default_factory=dict)
    ready: bool = False
    retiring: bool = False
    closing: bool = False
    killed_for: int | None = None
    turn: int | None = None
    paused: dict[int, Trial] = field(default_factory=dict)

    @property
    def base(self) -> int:
        """Bytes held regardless of the residents."""
        resting = sum(trial.rest.taken for trial in self.paused.values()) if self.paused else 0
        return self.context + self.shared + self.residue + resting

    @property
    def is_open(self) -> bool:
        """Whether the lane takes another trial."""
        return not (self.closing or self.retiring or len(self.paused) > MOST_PAUSED)

    @property
    def is_empty(self) -> bool:
        return not self.residents and not self.paused

    @property
    def is_spare(self) -> bool:
        """Whether it holds no trial, and may be closed for its memory."""
        return self.is_empty and self.is_open

    @property
    def is_bare(self) -> bool:
        """Whether it holds nothing that a new lane would not."""
        return self.is_empty and self.base == self.context

    @property
    def is_probing(self) -> bool:
        return any(trial.is_probe for trial in self.residents.values())

    @property
    def returning(self) -> int:
        """Bytes the lane was told to release and has not released yet."""
        return self.quota if self.closing else self.quota - self.asked

    def need(self, demands: list[Demand]) -> int:
        """Salus's safety condition for one lane: persistent bytes add up, ephemeral bytes are shared."""
        if not demands:
            return self.base
        if len(demands) == 1:
            return self.base + demands[0].peak
        return self.base + sum(d.persistent for d in demands) + max(d.ephemeral for d in demands)


def is_nearly_all(part: int, whole: int) -> bool:
    """Whether other programs keep no more of some memory than they may keep for good."""
    return part * 10 >= whole * 9


@dataclass(slots=True, eq=False)
class Device:
    """A device: capacity, lanes, width.

    Attributes:
        number: Position in the order in which devices were found.
        most: The most lanes or micro-batches at once that can pay on this device.
        full: Largest capacity seen so far: the capacity when other programs use none of it.
        taken: Sum of the quotas of the device's lanes; never grows beyond `capacity`.
        context: Bytes of a bare lane: first a guess, then the largest measured among the lanes that are ready.
        start_seconds: Seconds the latest lane took to come up; None before any is up, then 0 until a second lane is up,
            since the first waits for imports.
        shared: Bytes of shared objects in a lane, the largest among the lanes that are ready.
        stillborn: Lanes in a row that died before they were ready.
        room: Largest peak that fits when nothing else runs here.
        holes: What fits here, as computed by `Fitting.holes`; None after every change.
        opens: Most lanes that should come up at once.
        reserved_for: The trial for which the device is kept free.
    """

    name: str
    number: int
    capacity: int
    context: int
    width: WidthControl
    most: int = 1
    full: int = 0
    start_seconds: float | None = None
    shared: int = 0
    stillborn: int = 0
    opens: int = sys.maxsize
    taken: int = 0
    lanes: dict[int, Lane] = field(default_factory=dict)
    room: int = 0
    holes: tuple[int, int] | None = None
    reserved_for: Trial | None = None

    def __hash__(self) -> int:
        # Not the address: code iterates over sets of devices, and the order of instructions must be reproducible.
        return self.number

    @property
    def free(self) -> int:
        return self.capacity - self.taken

    @property
    def running(self) -> list[Lane]:
        """Lanes with residents."""
        return [lane for lane in self.lanes.values() if lane.residents]

    @property
    def active(self) -> int:
        return len(self.running)

    @property
    def trials(self) -> list[Trial]:
        """The residents of all lanes."""
        return [trial for lane in self.lanes.values() for trial in lane.residents.values()]

    @property
    def computing(self) -> list[Lane]:
        """Running lanes, without stalled ones."""
        return [lane for lane in self.running if not lane.is_stalled]

    @property
    def iterating(self) -> int:
        """How many are `computing`; 0 while one of these lanes has yet to make its first iteration."""
        computing = self.computing
        return len(computing) if all(lane.has_iterated for lane in computing) else 0

    @property
    def may_open(self) -> bool:
        """Whether another lane should begin to come up."""
        return sum(1 for lane in self.lanes.values() if not lane.ready) < self.opens

    @property
    def is_idle(self) -> bool:
        """Whether running trials leave device time unused, on devices where more lanes are known to use it."""
        if not self.width.idle_limit:
            return False
        return sum(max(trial.load for trial in lane.residents.values()) for lane in self.running) < IDLE

    @property
    def is_returning(self) -> bool:
        """Whether some memory is still being returned by lanes."""
        return any(lane.returning for lane in self.lanes.values())

    @property
    def seats(self) -> int:
        """How many more lanes may run on the device."""
        most = self.width.width
        if most > self.width.limit and not self.is_idle:
            most = self.width.limit
        for trial in self.trials:
            most = min(most, 1 if trial.exclusive or trial.alone else trial.beside + 1)
        return max(0, most - self.active)

    @property
    def idle(self) -> list[Lane]:
        return [lane for lane in self.lanes.values() if not lane.residents and lane.is_open]
