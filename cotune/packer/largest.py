"""The largest of many numbers that change."""

from __future__ import annotations

import heapq


class Largest:
    """A bag of numbers that knows its largest, at a price that does not grow with how many there are."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        # The keys of the above, negated. One of which there are none any more is a key until it surfaces.
        self._heap: list[int] = []

    def add(self, number: int) -> None:
        if number not in self._counts:
            heapq.heappush(self._heap, -number)
        self._counts[number] = self._counts.get(number, 0) + 1

    def remove(self, number: int) -> None:
        """Takes out one that was added."""
        self._counts[number] -= 1

    def get(self, default: int) -> int:
        """The largest; or what is given, if there is none."""
        while self._heap and not self._counts[-self._heap[0]]:
            del self._counts[-heapq.heappop(self._heap)]
        return -self._heap[0] if self._heap else default
