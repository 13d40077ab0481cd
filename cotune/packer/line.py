"""The line of waiting trials, in the order of a policy."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

from cotune.errors import InputError
from cotune.packer.largest import Largest
from cotune.packer.options import PackerOptions
from cotune.packer.policies import Waiting
from cotune.packer.predictor import Predictor
from cotune.packer.queue import Entry, Key, Mark, Queue
from cotune.packer.trial import Trial

# Waiting trials that are appraised again per event.
SORT_AT_ONCE = 2


class Where(StrEnum):
    """Where a trial would run: in any lane, in a new lane, or on a whole device (the last three)."""

    LANE = "lane"
    APART = "apart"
    PROBE = "probe"
    ALONE = "alone"
    OVERSIZED = "oversized"


class Want(NamedTuple):
    """What a trial wants.

    Attributes:
        where: Where it would run.
        kind: The kind of a probe, since probes of one kind all need the same; empty for other trials.
    """

    where: Where
    kind: str = ""


_LANE, _APART, _ALONE, _OVERSIZED = Want(Where.LANE), Want(Where.APART), Want(Where.ALONE), Want(Where.OVERSIZED)

_Order = tuple[float, float, Key, int]


class Shape(NamedTuple):
    """What waiting trials have in common: if one does not fit, no trial of its shape that is at least as large fits.

    Attributes:
        want: Decides, together with the size, whether a trial fits.
        group: The policy's group.
    """

    want: Want
    group: Hashable


class _Spot(NamedTuple):
    """The position of a trial in the line."""

    shape: Shape
    key: Key
    size: int
    waiting: Waiting
    trial: Trial


class Line:
    """Waiting trials, in policy order.

    Attributes:
        is_open: More trials may come.
        seconds: Sum of the times that waiting trials are expected to take alone, as far as these are known.
        work: The same sum in seconds of device time.
        volume: The same sum in bytes times seconds.
        changes: Counts changes to the trials in line, their order and their sizes.

    Args:
        options: The policy orders trials of the same priority. If lanes have several residents, a trial's size is its
            persistent bytes (the ephemeral ones may be shared) instead of its peak.
        predictor: Predicts what a trial needs.
    """

    def __init__(self, options: PackerOptions, predictor: Predictor) -> None:
        self.is_open = True
        self.seconds = self.work = self.volume = 0.0
        self._lengths: Largest[float] = Largest()
        self._timed = 0
        self._policy = options.policy
        self._predictor = predictor
        self._by_persistent = options.residents > 1
        self._queues: dict[Shape, Queue] = {}
        # By trial, least recently appraised first.
        self._spots: OrderedDict[int, _Spot] = OrderedDict()
        self.changes = 0
        self._version = 0
        self._outdated = 0

    def __len__(self) -> int:
        return len(self._spots)

    @property
    def longest(self) -> float:
        """The longest that a waiting trial is expected to take alone; 0 if no time is known."""
        return self._lengths.get(0.0)

    def lasts(self, lanes: int) -> float | None:
        """Seconds in which a device with so many lanes is done with all trials in line; None if no time is known.

        Those whose time is not known are taken for as long as the others.
        """
        known = max(self.work, self.seconds / lanes)
        return known / self._timed * len(self) if self._timed else None

    def head(self) -> Trial | None:
        """The first trial in line."""
        return self.next(lambda want: float("inf"))

    def next(
        self,
        limit: Callable[[Want], float],
        tried: Mapping[Shape, Mark] | None = None,
        passes: Callable[[Trial], bool] | None = None,
        found: dict[Shape, Entry | None] | None = None,
    ) -> Trial | None:
        """The first trial in line that is worth considering.

        Args:
            limit: Largest size to consider, by what a trial wants.
            tried: By shape, the entry after which to begin.
            passes: Whether to consider a trial that wants a lane; all are if left out.
            found: By shape, what an earlier call has found since when limits have fallen and fewer pass, and nothing
                else has changed; is updated.
        """
        best: tuple[_Order, Entry] | None = None
        limits: dict[Want, float] = {}
        for shape, queue in self._queues.items():
            want = shape.want
            most = limits.get(want)
            if most is None:
                most = limits[want] = limit(want)
            if queue.least > most:
                continue
            after, check = tried.get(shape) if tried else None, passes if want is _LANE else None
            if found is not None and shape in found:
                entry = found[shape]
                if entry is not None and (entry[:2] == after or entry[2] > most or (check and not check(entry[3]))):
                    entry = queue.first(most, entry[:2], check)
            else:
                entry = queue.first(most, after, check)
            if found is not None:
                found[shape] = entry
            if entry is not None:
                order = self._order(shape.group, entry)
                if best is None or order < best[0]:
                    best = order, entry
        return best[1][3] if best else None

    def next_in_lane(self, most: float, tried: Mapping[Shape, Mark]) -> Trial | None:
        """The first trial in line that wants a lane and needs no more than `most` bytes."""
        return self.next(lambda want: most if want is _LANE else -1, tried)

    def first(self, count: int) -> list[Trial]:
        """The first `count` trials of the line, in order."""
        found: list[tuple[_Order, Trial]] = []
        for shape, queue in self._queues.items():
            mark = None
            for _ in range(count):
                entry = queue.first(float("inf"), mark)
                if entry is None:
                    break
                mark = entry[:2]
                found.append((self._order(shape.group, entry), entry[3]))
        return [trial for _, trial in sorted(found, key=lambda item: item[0])[:count]]

    def shape(self, trial: Trial) -> Shape:
        """The shape of a waiting trial."""
        return self._spots[trial.id].shape

    def mark(self, trial: Trial) -> Mark:
        """The position of a waiting trial among those of its shape."""
        return self._spots[trial.id].key, trial.arrival

    def size(self, trial: Trial) -> int:
        """The bytes by which a waiting trial is compared with those of its shape."""
        return self._spots[trial.id].size

    def join(self, trial: Trial) -> None:
        self._predictor.appraise(trial)
        spot = self._spot(trial)
        self._put(trial, spot)
        self._policy.joined(spot.waiting, spot.shape.group)

    def leave(self, trial: Trial, started: bool = False) -> None:
        """Removes a trial, if it is in the line."""
        spot = self._take(trial)
        if spot is not None:
            self._policy.left(spot.waiting, spot.shape.group, started)

    def resumed(self, trial: Trial) -> None:
        """Tells the policy that a paused trial runs again without having waited in line."""
        self._policy.resumed(self.view(trial), trial.group)

    def refresh(self, trial: Trial) -> bool:
        """Appraises a waiting trial again; returns True if its shape or size changed."""
        before = self._spots[trial.id]
        self._predictor.appraise(trial)
        spot = self._spot(trial)
        if spot[:3] == before[:3]:
            self._spots.move_to_end(trial.id)
            return False
        self._take(trial)
        self._put(trial, spot)
        self._policy.changed(before.waiting, before.shape.group, spot.waiting, spot.shape.group)
        return (spot.shape, spot.size) != (before.shape, before.size)

    def sort(self, version: int) -> bool:
        """Brings the order up to date after devices or predictions have changed, part of a long line at a time.

        Args:
            version: Version of the devices; the version of the predictions is added.

        Returns:
            Whether anything was out of date; part of the line may still be.
        """
        version += self._predictor.version
        if version != self._version:
            self._version, self._outdated = version, len(self._spots)
        if not self._outdated:
            return False
        for spot in [*islice(self._spots.values(), min(self._outdated, SORT_AT_ONCE))]:
            self.refresh(spot.trial)
        self._outdated = max(0, self._outdated - SORT_AT_ONCE)
        return True

    def view(self, trial: Trial) -> Waiting:
        """A trial as a policy sees it."""
        left = self._predictor.seconds_left(trial) if self._policy.uses_predictions else None
        expected = trial.expected
        need, busy = (expected.peak, expected.busy) if expected else (None, None)
        return Waiting(trial.id, trial.arrival, left, need, trial.kind, busy, trial.since, trial.progress.seconds)

    def wants_device(self, trial: Trial) -> bool:
        """Whether the policy wants a device without other lanes for the trial."""
        return self._policy.excludes and self._policy.exclusive(self.view(trial))

    def _spot(self, trial: Trial) -> _Spot:
        waiting = self.view(trial)
        group = self._policy.group(waiting)
        try:
            hash(group)
        except TypeError:
            raise InputError(
                f"the policy's group() of trial {waiting.trial} is {group!r}",
                hint="return what can be a key of a dict, such as a text or a tuple",
            ) from None
        trial.group = group
        expected = trial.expected
        if expected is None:
            shape, size = Shape(Want(Where.PROBE, trial.kind), group), 0
        elif trial.wants_all:
            shape, size = Shape(_ALONE if trial.alone else _OVERSIZED, group), expected.peak
        else:
            size = expected.persistent if self._by_persistent and not trial.is_apart else expected.peak
            shape = Shape(_APART if trial.is_apart else _LANE, group)
        return _Spot(shape, (-trial.priority, *self._key(waiting)), size, waiting, trial)

    def _key(self, waiting: Waiting) -> Key:
        """The policy's key; a key that cannot be sorted raises, because trials would be lost in the line."""
        key = self._policy.key(waiting)
        try:
            # A NaN in the key makes the sum NaN.
            total = float(sum(key))
            if total == total or not any(part != part for part in key):
                return key
        except (TypeError, OverflowError):
            pass
        raise InputError(
            f"the policy's key() for trial {waiting.trial} is {key!r}",
            hint="return a tuple of numbers, none of them NaN",
        )

    def _put(self, trial: Trial, spot: _Spot) -> None:
        self.changes += 1
        self._spots[trial.id] = spot
        queue = self._queues.get(spot.shape)
        if queue is None:
            queue = self._queues[spot.shape] = Queue()
        queue.add(spot.key, spot.size, trial)
        self._count(spot.waiting, 1)

    def _take(self, trial: Trial) -> _Spot | None:
        spot = self._spots.pop(trial.id, None)
        if spot is not None:
            self.changes += 1
            queue = self._queues[spot.shape]
            queue.remove((spot.key, trial.arrival))
            if not queue:
                del self._queues[spot.shape]
            self._count(spot.waiting, -1)
        return spot

    def _count(self, waiting: Waiting, sign: int) -> None:
        left = waiting.seconds_left or 0.0
        self.seconds += sign * left
        self._timed += sign * (left > 0)
        (self._lengths.add if sign > 0 else self._lengths.remove)(left)
        self.work += sign * left * (1.0 if waiting.busy is None else waiting.busy)
        self.volume += sign * left * (waiting.need or 0)

    def _order(self, group: Hashable, entry: Entry) -> _Order:
        """The position of an entry in the whole line: priority, rank of its group, key, arrival."""
        key, arrival, _, _ = entry
        rank = self._policy.rank(group)
        if type(rank) is not float or rank != rank:
            rank = _number(rank, group)
        return key[0], rank, key, arrival


def _number(rank: object, group: Hashable) -> float:
    """A policy's rank as a float; one that cannot be compared raises, like a key."""
    try:
        number = math.nan if isinstance(rank, str) else float(rank)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if number != number:
        raise InputError(f"the policy's rank() of group {group!r} is {rank!r}", hint="return a number, not NaN")
    return number
