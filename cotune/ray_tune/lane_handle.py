"""The driver's side of a lane on a Ray cluster."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import ray

from cotune.ray_tune.lane import Beat
from cotune.ray_tune.slot import Slot


@dataclass(eq=False)
class LaneHandle:
    """The driver's side of a lane.

    Attributes:
        lane: Its number in the brain.
        actor: Its process.
        slot: Its device.
        news: The call of `beat()` under way.
        opening: The call of `open()`, until it is answered.
        last: The last beat.
        last_at: When it came.
        ready: It has said that it is.
        fault: Why it is of no use, and was killed.
        calls: The last call of each trial in it; a lane is closed when these are answered.
        leaving: It is to be closed.
        trainables: Numbers of the pickled classes it has.
        pid: Its process, once that has opened.
        unsigned: What Tune was given of trials that began before that, and is to say the process too.
        unheard: Calls of trials that were stopped: whatever they raise is nobody's concern any more.
    """

    lane: int
    actor: Any
    slot: Slot
    news: Any
    opening: Any
    last: Beat = field(default_factory=Beat)
    last_at: float = 0.0
    ready: bool = False
    fault: str = ""
    calls: dict[int, Any] = field(default_factory=dict)
    leaving: bool = False
    trainables: set[int] = field(default_factory=set)
    pid: int | None = None
    unsigned: list[dict[str, Any]] = field(default_factory=list)
    unheard: list[Any] = field(default_factory=list)

    @property
    def is_answered(self) -> bool:
        """Whether all is that Tune has asked there: a result may be on its way."""
        calls = list(self.calls.values())
        return not calls or len(ray.wait(calls, num_returns=len(calls), timeout=0)[0]) == len(calls)

    def opened(self, pid: int) -> None:
        """Its process is there, and is said to whoever was to say it."""
        self.pid = pid
        for given in self.unsigned:
            given["pid"] = pid
        self.unsigned.clear()

    def look_away(self, is_over: bool = False) -> None:
        """Takes the answers that nobody wants, all if it is over, or Ray would print the errors among them."""
        calls = [*self.unheard, *(self.calls.values() if is_over else ())]
        done, self.unheard = ray.wait(calls, num_returns=len(calls), timeout=0) if calls else ([], [])
        for answer in done:
            with contextlib.suppress(Exception):
                ray.get(answer)
