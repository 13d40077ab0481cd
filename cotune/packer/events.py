"""Everything the brain is told. Each event carries its time, in seconds of any steady clock."""

from __future__ import annotations

import sys
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
    """An event about a trial that was added before; ignored once the trial is over."""

    trial: int


@dataclass(frozen=True, slots=True)
class LaneEvent(Event):
    """An event about a lane; ignored once the lane is gone."""

    lane: int


@dataclass(frozen=True, slots=True)
class DeviceFound(Event):
    """A device may be used from now on.

    Attributes:
        device: Its identity.
        capacity: Bytes that all lanes on it may hold together.
        context: Bytes of a lane before any trial: a first guess until a lane has measured it.
        max_width: Most lanes that can pay (cores of a CPU device, client limit of a GPU).
        idle_width: Most lanes while the running ones leave the device idle; 0 if idleness cannot be measured.
        width: Lanes to begin with, if an earlier sweep found out.
        shared: Bytes of objects that a lane's trials share, as far as an earlier sweep found out.
        opens: Most lanes that should come up at once: where they come up no sooner together than one after the other,
            the first of a few is there long before the first of many.
    """

    device: str
    capacity: int
    context: int = 0
    max_width: int = 16
    width: int = 1
    idle_width: int = 0
    shared: int = 0
    opens: int = sys.maxsize


@dataclass(frozen=True, slots=True)
class DeviceChanged(Event):
    """The capacity open to this sweep has changed, because other programs took or returned memory.

    Attributes:
        device: Its name.
        capacity: Bytes.
        max_width: As for `DeviceFound`; None if unchanged. A width chosen by the user stays.
    """

    device: str
    capacity: int
    max_width: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceLost(Event):
    """A device is gone, with all its lanes."""

    device: str


@dataclass(frozen=True, slots=True)
class TrialAdded(Event):
    """A trial wants to run.

    Attributes:
        trial: Its number.
        kind: Trials of one kind have comparable demands (the trainable's name).
        features: Numeric hyperparameters, from which the demand is predicted.
        priority: Higher goes first; compared before anything the policy looks at.
        expected: The owner's estimate of the demand, without margin; used until the trial is measured.
        seconds: The owner's estimate of the run time alone.
        max_steps: Iterations after which the trial ends if nothing stops it, if declared.
        held: The trial must not run before it is released.
        attempts: Number of starts under an earlier brain: the trial may go on from a checkpoint.
        lane_deaths: Lanes that died under the trial before.
        failures: How often it failed before, of `max_failures` times.
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
    failures: int = 0


@dataclass(frozen=True, slots=True)
class AllTrialsAdded(Event):
    """No further trials come to fill free room; before this event, the owner adds one whenever one could run."""


@dataclass(frozen=True, slots=True)
class TrialWithdrawn(TrialEvent):
    """A trial is no longer wanted: the pruner, the user or the time budget decided so.

    Attributes:
        patient: The trial may take its time to clean up. If it takes too long, the owner sends the event again with
            False.
    """

    patient: bool = False


@dataclass(frozen=True, slots=True)
class TrialHeld(TrialEvent):
    """The owner wants a trial to pause, to see other trials first."""


@dataclass(frozen=True, slots=True)
class TrialReleased(TrialEvent):
    """A held trial may go on."""


@dataclass(frozen=True, slots=True)
class LaneReady(LaneEvent):
    """A lane's process is up and holds `context` bytes of its own."""

    context: int


@dataclass(frozen=True, slots=True)
class LaneResized(LaneEvent):
    """A lane's quota is now `quota`; after a shrink, the released bytes are free from now on."""

    quota: int


@dataclass(frozen=True, slots=True)
class LaneHolds(LaneEvent):
    """What a lane holds on behalf of no single trial; when one ends, sent before `TrialEnded`.

    Attributes:
        shared: Bytes of objects shared by its trials (`cotune.shared`).
        residue: Bytes left behind by ended trials.
        tainted: The lane should take no further trial (a child process or thread of a trial lives on).
    """

    shared: int
    residue: int
    tainted: bool = False


@dataclass(frozen=True, slots=True)
class LaneQuiet(LaneEvent):
    """No trial in a lane has reached an iteration boundary for `seconds`.

    Attributes:
        holder: The trial that has the turn.
        seconds: Seconds since the last boundary.
        held: Bytes the process holds now.
    """

    holder: int | None
    seconds: float
    held: int = 0


@dataclass(frozen=True, slots=True)
class LaneLost(LaneEvent):
    """A lane's process is gone, and its bytes are free.

    Attributes:
        holder: The trial that had the turn.
        detail: What happened.
        with_others: All lanes of the machine were lost at once, so trials in this lane need not be the cause.
        refused: Bytes at least that were refused to the holder, if native code ended the process because of that.
    """

    holder: int | None = None
    detail: str = ""
    with_others: bool = False
    refused: int | None = None


@dataclass(frozen=True, slots=True)
class IterationsDone(TrialEvent):
    """A trial has made progress; sent now and then, not after every iteration.

    Attributes:
        count: Iterations since the last such event.
        seconds: Time they took, without the turns of other trials.
        persistent: Bytes the trial holds now.
        ephemeral: Peak bytes above `persistent` since the last such event.
        busy: Share of the device's time they used, or None.
        splits: Micro-batches the trial splits a batch into; 0 if it does not.
        concurrency: Most micro-batches that any of these iterations ran at once.
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
    """From its next batch on, a trial runs `concurrency` micro-batches at once.

    Attributes:
        concurrency: The number granted last, or 1 if the trial went back to 1 after running out of memory.
        ran_out: Micro-batches at once with which memory ran out; 0 if the event answers a `GrantTrial`.
    """

    concurrency: int
    ran_out: int = 0


@dataclass(frozen=True, slots=True)
class TrialPaused(TrialEvent):
    """A trial waits at an iteration boundary, without the turn, and keeps its memory there.

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
    """`moved` bytes of a paused trial are now on the host."""

    moved: int


@dataclass(frozen=True, slots=True)
class TrialEnded(TrialEvent):
    """An attempt at a trial is over and its thread has unwound.

    Attributes:
        outcome: How it ended.
        needed: After out-of-memory, the bytes held plus the bytes refused; None if unknown.
        error: Name of the class in `cotune.errors` that says why it failed.
        detail: The error, in one line.
        final: Another attempt would only fail in the same way.
    """

    outcome: Outcome
    needed: int | None = None
    error: str = "TrialFailed"
    detail: str = ""
    final: bool = False


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """Time has passed; sent about once a second."""
