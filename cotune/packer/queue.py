"""A long line that finds its first trial with at most a given size."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable

from cotune.packer.trial import Trial

BLOCK = 64

Key = tuple[float, ...]
Mark = tuple[Key, int]
Entry = tuple[Key, int, int, Trial]


class Queue:
    """Trials in the order of their keys, each with a size.

    Blocks of about a hundred entries, each with its smallest size: a block in which nothing fits is skipped as a whole,
    so finding, adding and removing cost about the square root of the length.

    Attributes:
        least: The smallest size in the queue.
    """

    def __init__(self) -> None:
        self.least = 0
        self._blocks: list[list[Entry]] = []
        # Of each block, at least its last mark, and less than the first of the next block.
        self._lasts: list[Mark] = []
        self._least: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def add(self, key: Key, size: int, trial: Trial) -> None:
        entry = (key, trial.arrival, size, trial)
        if not self._blocks:
            self._blocks, self._lasts, self._least = [[entry]], [entry[:2]], [size]
            self.least = size
            return
        self.least = min(self.least, size)
        number = min(bisect_left(self._lasts, entry[:2]), len(self._blocks) - 1)
        block = self._blocks[number]
        insort(block, entry)
        self._lasts[number] = block[-1][:2]
        self._least[number] = min(self._least[number], size)
        if len(block) > 2 * BLOCK:
            self._blocks[number : number + 1] = block[:BLOCK], block[BLOCK:]
            self._lasts[number : number + 1] = block[BLOCK - 1][:2], block[-1][:2]
            self._least[number : number + 1] = _least(block[:BLOCK]), _least(block[BLOCK:])

    def remove(self, mark: Mark) -> None:
        """Removes the entry with this key and arrival."""
        number = bisect_left(self._lasts, mark)
        block = self._blocks[number]
        _, _, size, _ = block.pop(bisect_left(block, mark))
        if not block:
            del self._blocks[number], self._lasts[number], self._least[number]
        elif size == self._least[number]:
            self._least[number] = _least(block)
        if size == self.least:
            self.least = min(self._least, default=0)

    def first(
        self, limit: float, after: Mark | None = None, passes: Callable[[Trial], bool] | None = None
    ) -> Entry | None:
        """The first entry behind `after` whose size is at most `limit` and whose trial passes."""
        start = 0
        if after is not None:
            start = bisect_right(self._lasts, after)
            if start < len(self._blocks) and self._least[start] <= limit:
                block = self._blocks[start]
                for entry in block[bisect_right(block, after, key=_mark) :]:
                    if entry[2] <= limit and (passes is None or passes(entry[3])):
                        return entry
            start += 1
        for number, least in enumerate(self._least[start:] if start else self._least, start):
            if least <= limit:
                for entry in self._blocks[number]:
                    if entry[2] <= limit and (passes is None or passes(entry[3])):
                        return entry
        return None


def _mark(entry: Entry) -> Mark:
    return entry[:2]


def _least(block: list[Entry]) -> int:
    return min(entry[2] for entry in block)
