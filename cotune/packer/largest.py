"""The largest of many changing numbers."""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

N = TypeVar("N", int, float)

# Numbers of which most may be gone before they are looked through.
FEW = 64


class Largest(Generic[N]):
    """A multiset of numbers that knows its largest, at a cost that does not grow with their number."""

    def __init__(self) -> None:
        self._counts: dict[N, int] = {}
        # The keys of `_counts`, negated. A number with count 0 stays a key until it surfaces, or there are `_most`.
        self._heap: list[N] = []
        self._most = FEW

    def add(self, number: N) -> None:
        if number not in self._counts:
            if len(self._heap) == self._most:
                self._tidy()
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

    def _tidy(self) -> None:
        self._counts = {number: count for number, count in self._counts.items() if count}
        self._heap = [-number for number in self._counts]
        heapq.heapify(self._heap)
        self._most = max(FEW, 2 * len(self._heap))
