"""The largest of many changing numbers."""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

N = TypeVar("N", int, float)


class Largest(Generic[N]):
    """A multiset of numbers that knows its largest, at a cost that does not grow with their number."""

    def __init__(self) -> None:
        self._counts: dict[N, int] = {}
        # The keys of `_counts`, negated. A number with count 0 stays a key until it surfaces.
        self._heap: list[N] = []

    def add(self, number: N) -> None:
        if number not in self._counts:
            heapq.heappush(self._heap, -number)
        self._counts[number] = self._counts.get(number, 0) + 1

    def remove(self, number: N) -> None:
        """Removes one number that was added."""
        self._counts[number] -= 1

    def get(self, default: N) -> N:
        """The largest number, or `default` if there is none."""
        while self._heap and not self._counts[-self._heap[0]]:
            del self._counts[-heapq.heappop(self._heap)]
        return -self._heap[0] if self._heap else default
