"""What to do: everything the brain asks of a body, or tells its owner."""

from __future__ import annotations

from dataclasses import dataclass

from cotune.demand import Demand
from cotune.trial import Outcome


@dataclass(frozen=True, slots=True)
class Instruction:
    """Something to do."""


@dataclass(frozen=True, slots=True)
class ToLane(Instruction):
    """Something to do with a lane that is there; nothing if it is gone."""

    lane: int


@dataclass(frozen=True, slots=True)
class ToTrial(Instruction):
    """Something to tell a trial in its lane; nothing if it is over."""

    trial: int


@dataclass(frozen=True, slots=True)
class OpenLane(Instruction):
    """Start a lane process on a device that may hold `quota` bytes, its own context included.

    Attributes:
        apart: It is for a trial under which a lane has died, and shares no faults with others if that can be had.
    """

    lane: int
    device: str
    quota: int
    apart: bool = False


@dataclass(frozen=True, slots=True)
class ResizeLane(ToLane):
    """Change a lane's quota; each one is answered by one `LaneResized`, in order, a growth too."""

    quota: int


@dataclass(frozen=True, slots=True)
class CloseLane(ToLane):
    """End a lane process, at once if `kill`; answered by `LaneLost`."""

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
    """Have a trial wait at its next iteration boundary, without the turn; answered by one `TrialPaused`, or its end."""


@dataclass(frozen=True, slots=True)
class ResumeTrial(ToTrial):
    """Let a trial that is paused go on, with what was parked of it; also for the owner's information.

    The bytes it takes are in its lane's quota already.
    """


@dataclass(frozen=True, slots=True)
class ParkTrial(ToTrial):
    """Move what can be moved of a paused trial to the host; answered by one `TrialParked`, or its end."""


@dataclass(frozen=True, slots=True)
class GrantTrial(ToTrial):
    """Let a trial run so many micro-batches at once from its next iteration boundary on; 1 takes the grant back.

    Answered by one `GrantChanged`, unless the trial ends before. The bytes it takes are in its lane's quota already.
    """

    concurrency: int


@dataclass(frozen=True, slots=True)
class GiveTurn(ToLane):
    """Let one resident of a lane have every turn it wants until it leaves; the others keep what they hold meanwhile.

    Only given where the policy preempts or priorities differ. While it waits for something, a verdict for one, the
    others may run. A body that cannot do this may ignore it, and residents take turns.
    """

    trial: int


@dataclass(frozen=True, slots=True)
class RetryTrial(Instruction):
    """For the owner's information: the attempt is over, the trial waits for another one."""

    trial: int
    reason: str


@dataclass(frozen=True, slots=True)
class ConcludeTrial(Instruction):
    """For the owner: the trial is over for good.

    Attributes:
        trial: Its number.
        outcome: `DONE`, `STOPPED` or `FAILED`.
        error: Name of the class in `cotune.errors` that says why, if it failed.
        reason: Why, with figures.
        demand: What was measured of it, over all attempts.
        expected: What was set aside for it when it last started; None for a probe.
        seconds: How long it ran in its last attempt, waits and turns of others left out.
        expected_seconds: How long it was expected to take when it started; None if nothing was known, or if it had to
            start again.
        slowdown: By what factor others slowed it down, on average; None if it had no priority or was not measured.
        speed: Its speed beside others on average, 1 being that alone, by the busy shares of all.
    """

    trial: int
    outcome: Outcome
    error: str = ""
    reason: str = ""
    demand: Demand | None = None
    expected: Demand | None = None
    seconds: float = 0.0
    expected_seconds: float | None = None
    slowdown: float | None = None
    speed: float = 1.0
