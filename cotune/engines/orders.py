"""What the brain says to lanes that are there, and to the trials in them; `frames.py` is the way back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cotune.packer import instructions as do
from cotune.sharing.lane import LaneHandle
from cotune.sharing.wire import Kind


def carry_out(instruction: do.ToLane | do.ToTrial, lane: LaneHandle | None) -> None:
    """Tells a lane of this machine.

    Args:
        instruction: What to do.
        lane: The one it is about, or that its trial is in, if it is there.
    """
    if lane is not None:
        _CALLS[type(instruction)](lane, instruction)


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
