"""Everything the brain asks of a body, or tells the owner."""

from __future__ import annotations

from dataclasses import dataclass

from cotune.demand import Demand
from cotune.trial import Outcome


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction to a body, or information for the owner."""


@dataclass(frozen=True, slots=True)
class ToLane(Instruction):
    """An instruction about an existing lane; does nothing if the lane is gone."""

    lane: int


@dataclass(frozen=True, slots=True)
class ToTrial(Instruction):
    """An instruction to a trial in its lane; does nothing if the trial is over."""

    trial: int


@dataclass(frozen=True, slots=True)
class OpenLane(Instruction):
    """Start a lane process on a device; it may hold `quota` bytes, its own context included.

    Attributes:
        apart: The lane is for a trial under which a lane has died; isolate its faults from other lanes if possible.
    """

    lane: int
    device: str
    quota: int
    apart: bool = False


@dataclass(frozen=True, slots=True)
class ResizeLane(ToLane):
    """Change a lane's quota; each request, growth too, is answered by one `LaneResized`, in order."""

    quota: int


@dataclass(frozen=True, slots=True)
class CloseLane(ToLane):
    """End a lane process, immediately if `kill`; answered by `LaneLost`."""

    kill: bool = False


@dataclass(frozen=True, slots=True)
class StartTrial(Instruction):
    """Begin the next attempt at a trial in a lane, from its last checkpoint; answered by `TrialEnded`."""

    trial: int
    lane: int


@dataclass(frozen=True, slots=True)
class StopTrial(ToTrial):
    """Stop a trial at its next iteration boundary; answered by `TrialEnded`."""


@dataclass(frozen=True, slots=True)
class PauseTrial(ToTrial):
    """Make a trial wait at its next iteration boundary, without the turn; answered by one `TrialPaused`, or its end."""


@dataclass(frozen=True, slots=True)
class ResumeTrial(ToTrial):
    """Let a paused trial go on, restoring what was parked; also informs the owner.

    The lane's quota already includes the bytes it takes.
    """


@dataclass(frozen=True, slots=True)
class ParkTrial(ToTrial):
    """Move the movable part of a paused trial to the host; answered by one `TrialParked`, or its end."""


@dataclass(frozen=True, slots=True)
class GrantTrial(ToTrial):
    """Let a trial run `concurrency` micro-batches at once from its next iteration boundary on; 1 revokes the grant.

    Answered by one `GrantChanged`, unless the trial ends before. The lane's quota already includes the bytes it takes.
    """

    concurrency: int


@dataclass(frozen=True, slots=True)
class GiveTurn(ToLane):
    """Give one resident of a lane every turn it wants until it leaves; the others keep their memory meanwhile.

    None gives the turns back to all. Only given where the policy preempts or priorities differ, or to one that is to
    leave. While that resident waits for something, such as a pruner's verdict, the others may run. A body that cannot
    do this may ignore it; residents then take turns.
    """

    trial: int | None


@dataclass(frozen=True, slots=True)
class RetryTrial(Instruction):
    """For the owner: an attempt is over, and the trial waits for another one.

    Attributes:
        trial: Its number.
        reason: Why the attempt was lost.
        failed: It counts against `max_failures`.
        lane_died: Its lane died under it.
    """

    trial: int
    reason: str
    failed: bool = False
    lane_died: bool = False


@dataclass(frozen=True, slots=True)
class Measures:
    """What the brain has measured of a trial, and what it had expected.

    Attributes:
        demand: Measured demand, over all attempts.
        expected: Bytes set aside for the trial when it last started; None for a probe.
        seconds: Run time of the last attempt, without waits and the turns of others; None if it was not measured.
        expected_seconds: Predicted run time at the start; None if unknown, or if the trial had to start
            again.
        slowdown: Average factor by which others slowed it; None without a priority or a measurement.
        speed: Average speed beside others, estimated from all `busy` shares; 1 is the speed alone.
    """

    demand: Demand | None = None
    expected: int | None = None
    seconds: float | None = None
    expected_seconds: float | None = None
    slowdown: float | None = None
    speed: float = 1.0


@dataclass(frozen=True, slots=True)
class ConcludeTrial(Instruction):
    """For the owner: a trial is over for good.

    Attributes:
        trial: Its number.
        outcome: `DONE`, `STOPPED` or `FAILED`.
        error: Name of the class in `cotune.errors` that says why it failed, if it did.
        reason: Why, with figures.
        measures: What was measured and expected.
    """

    trial: int
    outcome: Outcome
    error: str = ""
    reason: str = ""
    measures: Measures = Measures()
