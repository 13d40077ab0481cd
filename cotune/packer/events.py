"""What happened: everything the brain is told. Each event carries its time, in seconds of any steady clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cotune.demand import Demand
from cotune.trial import Outcome


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, at a time in seconds."""

    time: float


@dataclass(frozen=True, slots=True)
class TrialEvent(Event):
    """Something about the trial of this number, which must be known; nothing if it is over by now."""

    trial: int


@dataclass(frozen=True, slots=True)
class LaneEvent(Event):
    """Something about the lane of this number; nothing if it is gone by now."""

    lane: int


@dataclass(frozen=True, slots=True)
class DeviceFound(Event):
    """A device may be used from now on.

    Attributes:
        device: Its identity.
        capacity: Bytes all lanes on it may hold together.
        context: Bytes a lane costs before any trial, a first guess until a lane has measured it.
        max_width: More lanes than this never pay (cores of a CPU device, client limit of a GPU).
        idle_width: So many may, as long as those that run leave it idle; 0 where that is not known of them.
        width: Lanes to begin with, where an earlier sweep tells.
    """

    device: str
    capacity: int
    context: int = 0
    max_width: int = 16
    width: int = 1
    idle_width: int = 0


@dataclass(frozen=True, slots=True)
class DeviceChanged(Event):
    """What is open to us changed, because others took or returned some of it.

    Attributes:
        device: Its name.
        capacity: Bytes.
        max_width: As for `DeviceFound`; None if that stays. A user's choice stands.
    """

    device: str
    capacity: int
    max_width: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceLost(Event):
    """The device is gone, with all its lanes."""

    device: str


@dataclass(frozen=True, slots=True)
class TrialAdded(Event):
    """A trial wants to run.

    Attributes:
        trial: Its number.
        kind: Trials of one kind have comparable demands (the trainable's name).
        features: Numeric hyperparameters, from which the demand is predicted.
        priority: Higher goes first, before everything the policy looks at.
        expected: What its owner expects it to need, margin not included; believed until it was measured.
        seconds: How long its owner expects it to take alone.
        max_steps: Iterations after which it ends if nobody stops it, where that is declared.
        held: It is not to run before it is released.
        attempts: How often it was started before, by another brain: it may go on from a checkpoint.
        lane_deaths: Lanes that have died under it before.
    """

    trial: int
    kind: str = ""
    features: Mapping[str, float] = field(default_factory=dict)
    priority: float = 0.0
    expected: Demand | None = None
    seconds: float | None = None
    max_steps: int | None = None
    held: bool = False
    attempts: int = 0
    lane_deaths: int = 0


@dataclass(frozen=True, slots=True)
class AllTrialsAdded(Event):
    """None will be added any more because it could run: until this is said, another one comes whenever one could."""


@dataclass(frozen=True, slots=True)
class TrialWithdrawn(TrialEvent):
    """Nobody wants the trial any more: a pruner, the user or the time budget said so.

    Attributes:
        patient: It may take its time to clean up: its owner says so again, without this, when it has taken too long.
    """

    patient: bool = False


@dataclass(frozen=True, slots=True)
class TrialHeld(TrialEvent):
    """The trial is to pause: its owner wants to see others first."""


@dataclass(frozen=True, slots=True)
class TrialReleased(TrialEvent):
    """A trial that was held is to go on."""


@dataclass(frozen=True, slots=True)
class LaneReady(LaneEvent):
    """The lane's process is up and holds `context` bytes of its own."""

    context: int


@dataclass(frozen=True, slots=True)
class LaneResized(LaneEvent):
    """The lane's quota is now `quota`; after a shrink, what it let go is free from here on."""

    quota: int


@dataclass(frozen=True, slots=True)
class LaneHolds(LaneEvent):
    """What the lane holds for no trial in particular.

    Attributes:
        shared: Bytes of objects shared by its trials (`cotune.shared`).
        residue: Bytes ended trials left behind.
        tainted: It should take no further trial (a child process or thread of a trial lives on).
    """

    shared: int
    residue: int
    tainted: bool = False


@dataclass(frozen=True, slots=True)
class LaneQuiet(LaneEvent):
    """No trial in the lane reached an iteration boundary for `seconds`; `holder` has the turn.

    Attributes:
        holder: The trial that has the turn.
        seconds: Since the last boundary.
        held: Bytes the process holds by now.
    """

    holder: int | None
    seconds: float
    held: int = 0


@dataclass(frozen=True, slots=True)
class LaneLost(LaneEvent):
    """The lane's process is gone, and its bytes are free.

    Attributes:
        holder: Who had the turn.
        detail: How it went.
        with_others: All lanes of the machine went at once, of which those in this one need not be the cause.
    """

    holder: int | None = None
    detail: str = ""
    with_others: bool = False


@dataclass(frozen=True, slots=True)
class IterationsDone(TrialEvent):
    """A trial went on; sent now and then, not at every iteration.

    Attributes:
        count: Iterations since the last such event.
        seconds: Time they took, turns of others left out.
        persistent: Bytes it holds now.
        ephemeral: Peak bytes above `persistent` since the last such event.
        busy: Share of the device's time they used, or None.
        splits: Micro-batches the trial splits a batch into; 0 if it does not.
        concurrency: The most of them that any of these iterations ran at once.
    """

    count: int
    seconds: float
    persistent: int
    ephemeral: int
    busy: float | None = None
    splits: int = 0
    concurrency: int = 1


@dataclass(frozen=True, slots=True)
class GrantChanged(TrialEvent):
    """From its next batch on a trial runs so many micro-batches at once.

    Attributes:
        concurrency: As it was granted last; or 1, which the trial went back to when memory ran out.
        ran_out: With how many at once memory ran out; 0 where this answers a `GrantTrial`.
    """

    concurrency: int
    ran_out: int = 0


@dataclass(frozen=True, slots=True)
class TrialPaused(TrialEvent):
    """A trial waits at an iteration boundary, without the turn, and holds what it holds there.

    Attributes:
        persistent: Bytes it holds.
        saved: Whether it has a checkpoint, from which another attempt would go on.
        movable: Bytes of these that `ParkTrial` would move to the host.
    """

    persistent: int
    saved: bool = False
    movable: int = 0


@dataclass(frozen=True, slots=True)
class TrialParked(TrialEvent):
    """So many bytes of a trial that is paused are on the host now."""

    moved: int


@dataclass(frozen=True, slots=True)
class TrialEnded(TrialEvent):
    """An attempt at a trial is over and its thread has unwound.

    Attributes:
        outcome: How it ended.
        needed: After out-of-memory, the bytes it held plus those it was refused; None if not known.
        error: Name of the class in `cotune.errors` that says why it failed.
        detail: The error, in a line.
        final: A failure that another attempt would only repeat.
    """

    outcome: Outcome
    needed: int | None = None
    error: str = "TrialFailed"
    detail: str = ""
    final: bool = False


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """Time passed: said about once a second."""
