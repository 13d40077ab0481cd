"""Classes of similar trials, weighted by their waiting time; placed by predicted memory and utilisation."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable
from itertools import islice

from cotune.packer.policies.base import Waiting
from cotune.packer.policies.fifo import Fifo

CLASSES = 3
SAMPLES = 512
FLOOR = 1.0
STEEP = 10.0
# w1 and w2.
WEIGHT = 0.5


class Horus(Fifo):
    """Weighted fair queues of similar trials, each placed where memory and utilisation cost least (Horus, TPDS'21).

    Trials are put into three classes by k-means on their predicted memory. A class weighs
    `max(median wait, floor) * length`; the class served least for its weight goes first, so no class waits much
    longer than another. Among the devices with room, the one with the least
    `w1 * memory + w2 * f(sum of utilisations)` is taken, where f is steep above 100%. Optimises utilisation
    and waiting time; assumes that both figures can be predicted. We differ in three ways: demands come from measured
    siblings, not from the model's graph; a device is full when its width says so; and the sum of utilisations chooses
    among the devices that `Pool` offers, but does not decide whether to start at all.
    """

    name = "horus"

    def __init__(self) -> None:
        self._needs: list[float] = []
        self._seen = 0
        self._centers: list[float] = []
        self._since: defaultdict[Hashable, dict[int, float]] = defaultdict(dict)
        self._latest = 0.0
        self._started: defaultdict[Hashable, int] = defaultdict(int)
        self._weights: dict[Hashable, tuple[int, float]] = {}
        self._changes = 0

    def group(self, waiting: Waiting) -> Hashable:
        if waiting.need is None or not self._centers:
            return 0
        size = _size(waiting.need)
        return min(range(len(self._centers)), key=lambda number: abs(self._centers[number] - size))

    def rank(self, group: Hashable) -> float:
        return self._started[group] / self._weight(group)

    def joined(self, waiting: Waiting, group: Hashable) -> None:
        self._since[group][waiting.trial] = waiting.since
        self._latest = max(self._latest, waiting.since)
        self._changes += 1
        self._learn(waiting.need)

    def left(self, waiting: Waiting, group: Hashable, started: bool) -> None:
        self._since[group].pop(waiting.trial, None)
        self._started[group] += started
        self._changes += 1

    def changed(self, before: Waiting, group: Hashable, waiting: Waiting, other: Hashable) -> None:
        # Within its class a trial keeps its position, so waiting trials stay in the order in which they joined.
        if other != group:
            super().changed(before, group, waiting, other)
        else:
            self._learn(waiting.need)

    def resumed(self, waiting: Waiting, group: Hashable) -> None:
        # Its need was learnt when it joined.
        self._started[group] += 1

    def cost(self, memory: float, busy: float) -> float:
        return WEIGHT * memory + WEIGHT * (busy if busy <= 1 else 1 + STEEP * (busy - 1))

    def _weight(self, group: Hashable) -> float:
        """Median wait times length; recomputed after enough of the line has changed."""
        changes, weight = self._weights.get(group, (-1, FLOOR))
        since = self._since[group]
        if changes < 0 or self._changes - changes > len(since) // 16:
            middle = next(islice(since.values(), len(since) // 2, None), self._latest)
            weight = max(self._latest - middle, FLOOR) * max(len(since), 1)
            self._weights[group] = self._changes, weight
        return weight

    def _learn(self, need: int | None) -> None:
        """Notes a size, if it is known; clusters again each time the number of sizes seen has doubled."""
        if need is None:
            return
        self._needs.append(_size(need))
        del self._needs[:-SAMPLES]
        self._seen += 1
        if self._seen & (self._seen - 1) == 0:
            self._centers = k_means(self._needs, CLASSES)


def _size(need: int) -> float:
    return math.log(max(need, 1))


def k_means(values: list[float], count: int) -> list[float]:
    """The centres of `count` clusters on a line, ascending (Lloyd's algorithm from evenly spaced quantiles)."""
    ordered = sorted(values)
    centers = [ordered[(2 * number + 1) * len(ordered) // (2 * count)] for number in range(count)]
    for _ in range(20):
        parts: list[list[float]] = [[] for _ in centers]
        for value in ordered:
            parts[min(range(count), key=lambda number: abs(centers[number] - value))].append(value)
        moved = [sum(part) / len(part) if part else center for part, center in zip(parts, centers, strict=True)]
        if moved == centers:
            break
        centers = moved
    return sorted(centers)
