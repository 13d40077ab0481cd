"""Translates between the brain and lane processes: lanes' frames into events, instructions into lanes' messages."""

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
    do.StopTrial: lambda lane, order: lane.tell(Kind.STOP, order.trial),
    do.GrantTrial: lambda lane, order: lane.tell(Kind.GRANT, order.trial, order.concurrency),
    do.PauseTrial: lambda lane, order: lane.tell(Kind.PAUSE, order.trial),
    do.ResumeTrial: lambda lane, order: lane.tell(Kind.RESUME, order.trial),
    do.ParkTrial: lambda lane, order: lane.tell(Kind.PARK, order.trial),
}


def event_of(kind: int, payload: bytes, lane: int, now: float) -> ev.Event:
    """Translates a frame into an event about a lane or trial; the payload holds the event's further fields.

    Args:
        kind: Kind of the frame; neither a report nor a question, which do not go to the brain.
        payload: Payload of the frame.
        lane: Number of the lane that sent it.
        now: When it arrived.
    """
    event, said = _EVENTS[kind], pickle.loads(payload)
    return event(now, lane, *said) if issubclass(event, ev.LaneEvent) else event(now, *said)


def not_sent(trial: int, error: NotPicklable, now: float) -> ev.TrialEnded:
    """The end of a trial whose config cannot be pickled; final, since another attempt would fail too."""
    return ev.TrialEnded(now, trial, Outcome.FAILED, error=type(error).__name__, detail=str(error), final=True)


def carry_out(instruction: do.ToLane | do.ToTrial, lane: LaneHandle | None) -> None:
    """Sends an instruction to a lane of this machine.

    Args:
        instruction: The instruction.
        lane: Its lane, or the lane of its trial; None if there is none any more.
    """
    if lane is not None:
        _CALLS[type(instruction)](lane, instruction)
