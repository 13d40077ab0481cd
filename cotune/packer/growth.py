"""How much more trials come to need than in their first iterations, as when they validate or save."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

from cotune.packer.prediction import ENOUGH, Changes

# Trials remembered, the share of them that the estimate should cover, and the factor up to which growth is ignored.
REMEMBERED = 32
MOST = 0.75
LITTLE = 1.1


class _Seen(NamedTuple):
    """The growth that one trial has shown.

    Attributes:
        factor: What it came to need, over what it needed at first.
        more: The same in bytes on top.
        is_all: Whether it ended with that; otherwise it needs more.
    """

    factor: float = 1.0
    more: int = 0
    is_all: bool = False


class _By(Enum):
    """What trials have grown alike by."""

    FACTOR = auto()
    BYTES = auto()


class _Usual(NamedTuple):
    """The usual growth; trials that do not tell whether by factor or by bytes leave `by` open."""

    factor: float = 1.0
    more: int = 0
    by: _By | None = None


class Growth:
    """Learns from the trials of one kind how much they grow.

    Args:
        changes: Counts changes to what is predicted.
    """

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._seen: dict[int, _Seen] = {}
        self._usual = _Usual()

    @property
    def is_known(self) -> bool:
        """Whether any trial has shown its growth, or a part of it."""
        return bool(self._seen)

    @property
    def has_ended(self) -> bool:
        """Whether any trial has ended with as much as it had grown to."""
        return any(seen.is_all for seen in self._seen.values())

    def observe(self, trial: int, early: int, peak: int, is_all: bool) -> None:
        """Notes how much more a trial came to need than in its first iterations.

        Args:
            trial: Its number.
            early: Bytes it needed at first.
            peak: Bytes it needed in the end, or had when it ran out of memory.
            is_all: Whether it ended with that; otherwise it needs more.
        """
        known = self._seen.pop(trial, _Seen())
        if is_all:
            known = _Seen()
        self._seen[trial] = _Seen(max(known.factor, peak / early), max(known.more, peak - early), is_all)
        if len(self._seen) > REMEMBERED:
            del self._seen[next(iter(self._seen))]
        before, self._usual = self._usual, _usual(list(self._seen.values()))
        changed = (1 + before.more) / (1 + self._usual.more)
        self._changes.count += before.by is not self._usual.by or not 1 / LITTLE < changed < LITTLE

    def later(self, early: int) -> int:
        """Later need of a trial that needs `early` at first, by the usual factor or bytes, whichever tells it better.

        Larger models come to need larger activations for their validation, while a library's workspace is the same for
        all. Where siblings do not tell these apart, the lesser.
        """
        factor, more, by = self._usual
        by_factor, by_bytes = early * factor, early + more
        if by is None:
            return int(min(by_factor, by_bytes))
        return int(by_factor if by is _By.FACTOR else by_bytes)


def _usual(found: Sequence[_Seen]) -> _Usual:
    factor = _most([(seen.factor, seen.is_all) for seen in found])
    more = int(_most([(seen.more, seen.is_all) for seen in found]))
    return _Usual(factor, more, _alike(found, factor, more)) if factor > LITTLE else _Usual()


def _most(found: Sequence[tuple[float, bool]]) -> float:
    """A value that covers most trials; values with False are lower bounds, which their trials exceeded.

    Beyond a lower bound, the distribution of the larger values is assumed (Kaplan and Meier, JASA 53, 1958).
    """
    left = 1.0
    for rank, (value, is_all) in enumerate(sorted(found)):
        if is_all:
            left *= 1.0 - 1.0 / (len(found) - rank)
        if left <= 1.0 - MOST:
            return value
    return max(value for value, _ in found)


def _alike(found: Sequence[_Seen], factor: float, more: int) -> _By | None:
    """Whether `factor` or `more` bytes tells better what trials came to need; None if neither, or too few ended."""
    by_factor = by_bytes = 0.0
    grown = [(seen.factor, seen.more) for seen in found if seen.is_all and seen.factor > 1.0]
    for each, count in grown:
        early = count / (each - 1.0)
        by_factor += abs(math.log(factor / each))
        by_bytes += abs(math.log((early + more) / (early + count)))
    if len(grown) < ENOUGH or by_factor == by_bytes:
        return None
    return _By.FACTOR if by_factor < by_bytes else _By.BYTES
