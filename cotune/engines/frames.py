"""What lanes say, as events for the brain; the same for every body whose lanes are processes."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable

from cotune.packer import events as ev
from cotune.sharing import wire
from cotune.sharing.wire import Kind


def event_of(kind: int, payload: bytes, lane: int, now: float) -> ev.Event:
    """Translates a frame that is about a lane or a trial in it.

    Args:
        kind: Of the frame; not a report, nor a question, which are none of the brain's business.
        payload: The frame's.
        lane: Who sent it.
        now: When it arrived.
    """
    return _EVENTS[kind](now, lane, payload)


def _progress(now: float, _lane: int, payload: bytes) -> ev.Event:
    trial, count, seconds, persistent, ephemeral, busy, *micro = wire.decode_progress(payload)
    known = None if math.isnan(busy) else busy
    return ev.IterationsDone(now, trial, count, seconds, persistent, ephemeral, known, *micro)


def _ended(now: float, _lane: int, payload: bytes) -> ev.Event:
    trial, outcome, needed, name, detail, final = pickle.loads(payload)
    return ev.TrialEnded(now, trial, ev.Outcome(outcome), needed, name, detail, final)


_EVENTS: dict[int, Callable[[float, int, bytes], ev.Event]] = {
    Kind.PROGRESS: _progress,
    Kind.HOLDS: lambda now, lane, payload: ev.LaneHolds(now, lane, *pickle.loads(payload)),
    Kind.GRANTED: lambda now, lane, payload: ev.GrantChanged(now, *wire.decode_granted(payload)),
    Kind.PAUSED: lambda now, lane, payload: ev.TrialPaused(now, *pickle.loads(payload)),
    Kind.PARKED: lambda now, lane, payload: ev.TrialParked(now, *pickle.loads(payload)),
    Kind.ENDED: _ended,
    Kind.READY: lambda now, lane, payload: ev.LaneReady(now, lane, wire.decode_int(payload)),
    Kind.RESIZED: lambda now, lane, payload: ev.LaneResized(now, lane, wire.decode_int(payload)),
}
