"""The driver's side of a lane on a Ray cluster."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError, RaySystemError

from cotune.ray_tune.lane import Beat
from cotune.ray_tune.slot import Slot


@dataclass(eq=False)
class ActorLane:
    """The driver's side of a lane.

    Attributes:
        lane: The lane's number in the brain.
        actor: The lane's process.
        slot: The lane's device.
        news: The call of `beat()` under way.
        opening: The call of `open()`, until it is answered.
        last: The last beat.
        last_at: When the last beat came.
        ready: Whether the lane has reported that it is ready.
        fault: Why the lane is useless and was killed.
        calls: The last call of each trial in it; a lane is closed when these are answered.
        leaving: Whether the lane is to be closed.
        trainables: Numbers of the pickled classes it has.
        pid: Id of its process, once that has opened.
        unsigned: Metrics that Tune was given before `pid` was known, to which it is to be added.
        unheard: Calls of trials that were stopped, whose errors no longer matter.
        resizes: How often the lane was told another quota.
        resizing: These calls, until they are answered.
        missed: Whether the lane has missed a call: there was no memory to unpack it.
        quota: Its quota in bytes, as last told.
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
    resizes: int = 0
    resizing: list[Any] = field(default_factory=list)
    missed: bool = False
    quota: int = 0

    def resize(self, quota: int) -> None:
        """Tells the lane another quota, in bytes."""
        self.resizes += 1
        self.quota = quota
        self.resizing.append(self.actor.resize.remote(self.resizes, quota))

    def is_deaf(self) -> bool:
        """Whether the lane has missed a call, of a trial or of a quota, and is of no more use."""
        if calls := self.resizing:
            done, self.resizing = ray.wait(calls, num_returns=len(calls), timeout=0)
            try:
                ray.get(done)
            except RaySystemError:
                self.missed = True
            except RayError:
                # The beat fails with the same error, and is handled there.
                pass
        return self.missed

    @property
    def is_answered(self) -> bool:
        """Whether all of Tune's calls to the lane are answered: a result may still be on its way."""
        calls = list(self.calls.values())
        return not calls or len(ray.wait(calls, num_returns=len(calls), timeout=0)[0]) == len(calls)

    def opened(self, pid: int) -> None:
        """Notes the process's id, and adds it to the metrics that lack it."""
        self.pid = pid
        for given in self.unsigned:
            given["pid"] = pid
        self.unsigned.clear()

    def look_away(self, is_over: bool = False) -> None:
        """Takes the unheard answers, or all if the lane is over: Ray would print errors that are never taken."""
        calls = [*self.unheard, *(self.calls.values() if is_over else ())]
        done, self.unheard = ray.wait(calls, num_returns=len(calls), timeout=0) if calls else ([], [])
        for answer in done:
            with contextlib.suppress(Exception):
                ray.get(answer)
