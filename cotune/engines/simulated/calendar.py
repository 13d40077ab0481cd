"""Virtual time: what is to happen when, and what has happened."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from cotune.packer.events import Event
from cotune.trial import Report

Happened = Event | Report


class Calendar:
    """Time jumps from one entry to the next.

    Attributes:
        time: Now, in seconds.
    """

    def __init__(self) -> None:
        self.time = 0.0
        self._count = 0
        self._entries: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._said: list[Happened] = []

    def later(self, seconds: float, act: Callable[[Any], None], what: Any) -> None:
        """Schedules something; of what is due at once, the first that was entered comes first."""
        self._count += 1
        heapq.heappush(self._entries, (self.time + seconds, self._count, act, what))

    def say(self, event: Happened) -> None:
        """Tells whoever polls."""
        self._said.append(event)

    def poll(self, timeout: float) -> list[Happened]:
        """What is said next; the clock jumps there, or by `timeout` seconds if nothing is before."""
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
