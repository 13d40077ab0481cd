"""What lanes say, as events for the brain; the same for every body whose lanes are processes."""

from __future__ import annotations

import pickle
from typing import Any

from cotune.packer import events as ev
from cotune.sharing.wire import Kind

_OF_LANES: dict[int, Any] = {
    Kind.READY: ev.LaneReady,
    Kind.RESIZED: ev.LaneResized,
    Kind.HOLDS: ev.LaneHolds,
}
_OF_TRIALS: dict[int, Any] = {
    Kind.PROGRESS: ev.IterationsDone,
    Kind.GRANTED: ev.GrantChanged,
    Kind.PAUSED: ev.TrialPaused,
    Kind.PARKED: ev.TrialParked,
    Kind.ENDED: ev.TrialEnded,
}


def event_of(kind: int, payload: bytes, lane: int, now: float) -> ev.Event:
    """Translates a frame that is about a lane or a trial in it: its payload is what the event says besides.

    Args:
        kind: Of the frame; not a report, nor a question, which are none of the brain's business.
        payload: The frame's.
        lane: Who sent it.
        now: When it arrived.
    """
    said = pickle.loads(payload)
    event: ev.Event = _OF_LANES[kind](now, lane, *said) if kind in _OF_LANES else _OF_TRIALS[kind](now, *said)
    return event
