"""Between the brain and lanes that are processes: what they say as events, what it says as messages."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from cotune.errors import NotPicklable
from cotune.packer import events as ev
from cotune.packer import instructions as do
from cotune.sharing.lane import LaneHandle
from cotune.sharing.wire import Kind
from cotune.trial import Outcome

_EVENTS: dict[int, type[ev.LaneEvent | ev.TrialEvent]] = {
    Kind.READY: ev.LaneReady,
    Kind.RESIZED: ev.LaneResized,
    Kind.HOLDS: ev.LaneHolds,
    Kind.PROGRESS: ev.IterationsDone,
    Kind.GRANTED: ev.GrantChanged,
    Kind.PAUSED: ev.TrialPaused,
    Kind.PARKED: ev.TrialParked,
    Kind.ENDED: ev.TrialEnded,
}
_CALLS: dict[type[do.Instruction], Callable[[LaneHandle, Any], None]] = {
    do.ResizeLane: lambda lane, order: lane.resize(order.quota),
    do.CloseLane: lambda lane, order: lane.kill() if order.kill else lane.exit(),
    do.GiveTurn: lambda lane, order: lane.prefer(order.trial),
    do.StopTrial: lambda lane, order: lane.stop(order.trial),
    do.GrantTrial: lambda lane, order: lane.grant(order.trial, order.concurrency),
    do.PauseTrial: lambda lane, order: lane.tell(Kind.PAUSE, order.trial),
    do.ResumeTrial: lambda lane, order: lane.tell(Kind.RESUME, order.trial),
    do.ParkTrial: lambda lane, order: lane.tell(Kind.PARK, order.trial),
}


def event_of(kind: int, payload: bytes, lane: int, now: float) -> ev.Event:
    """Translates a frame that is about a lane or a trial in it: its payload is what the event says besides.

    Args:
        kind: Of the frame; not a report, nor a question, which are none of the brain's business.
        payload: The frame's.
        lane: Who sent it.
        now: When it arrived.
    """
    event, said = _EVENTS[kind], pickle.loads(payload)
    return event(now, lane, *said) if issubclass(event, ev.LaneEvent) else event(now, *said)


def not_sent(trial: int, error: NotPicklable, now: float) -> ev.TrialEnded:
    """What becomes of a trial whose config cannot travel: it would not the next time, either."""
    return ev.TrialEnded(now, trial, Outcome.FAILED, error=type(error).__name__, detail=str(error), final=True)


def carry_out(instruction: do.ToLane | do.ToTrial, lane: LaneHandle | None) -> None:
    """Tells a lane of this machine.

    Args:
        instruction: What to do.
        lane: The one it is about, or that its trial is in, if it is there.
    """
    if lane is not None:
        _CALLS[type(instruction)](lane, instruction)
