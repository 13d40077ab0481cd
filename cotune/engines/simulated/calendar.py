"""Virtual time: what is scheduled, and what has happened."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from cotune.packer.events import Event
from cotune.trial import Report

Said = Event | Report


class Calendar:
    """A virtual clock that jumps from one entry to the next.

    Attributes:
        time: Now, in seconds.
    """

    def __init__(self) -> None:
        self.time = 0.0
        self._count = 0
        self._entries: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._said: list[Said] = []

    def later(self, seconds: float, act: Callable[[Any], None], what: Any) -> None:
        """Schedules a call; calls that are due at the same time run in the order in which they were scheduled."""
        self._count += 1
        heapq.heappush(self._entries, (self.time + seconds, self._count, act, what))

    def say(self, event: Said) -> None:
        """Queues an event for the next poll."""
        self._said.append(event)

    def poll(self, timeout: float) -> list[Said]:
        """The next events; the clock jumps to them, or by `timeout` seconds if nothing happens before."""
        until = self.time + timeout
        while not self._said and self._entries and self._entries[0][0] <= until:
            self.time, _, act, what = heapq.heappop(self._entries)
            act(what)
        if not self._said and timeout != float("inf"):
            self.time = until
        said, self._said = self._said, []
        return said

    def clear(self) -> None:
        self._entries.clear()
