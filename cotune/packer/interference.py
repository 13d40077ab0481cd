"""How much trials on one device slow each other down: a first guess, then what was measured."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from cotune.packer.state import Device, Lane
from cotune.packer.trial import Trial

# Mean share of its own speed that a trial keeps beside others, by the sum of their shares of the device's time when
# alone: middles of the bands of 1,388 measured pairs (Gavel, OSDI'20, co-located throughputs on one GPU).
_SLOPE = ((0.0, 1.0), (0.6, 0.95), (0.875, 0.93), (1.125, 0.88), (1.375, 0.78), (1.625, 0.68), (1.875, 0.63))
_AT = [at for at, _ in _SLOPE]
# What a device does in all when it is shared well, in shares of its time when alone.
SHARED = 1.15
LEARNING = 0.3
FORGETTING = 0.9


def shared_speed(busy: float) -> float:
    """The speed of each of several trials on a device, 1 being that of one alone.

    Args:
        busy: Sum of their shares of the device's time when alone. Beyond what was measured on pairs the device does
            as much in all as it does for the busiest pairs.
    """
    last, least = _SLOPE[-1]
    if busy >= last:
        return least * last / busy
    right = bisect_right(_AT, busy)
    (a, above), (b, below) = _SLOPE[right - 1], _SLOPE[right]
    return above + (below - above) * (busy - a) / (b - a)


class Interference:
    """Predicts slowdowns: by busy shares, corrected for each pair of kinds by what was measured of such pairs."""

    def __init__(self) -> None:
        self._factors: dict[tuple[str, str], float] = {}

    def slowdown(self, trial: Trial, others: Iterable[Trial]) -> float:
        """By what factor an iteration of the trial takes longer beside these, each in a lane of its own."""
        others = list(others)
        factors = [self._factors.get((trial.kind, other.kind), 1.0) for other in others]
        return max(1.0, self._guess(trial, others) * max(factors, default=1.0))

    def measured(self, trial: Trial, others: Iterable[Trial], slowdown: float) -> None:
        """Learns from a measured slowdown; among several neighbours all are held to account alike."""
        others = list(others)
        error = slowdown / self._guess(trial, others)
        for kind in {other.kind for other in others}:
            before = self._factors.get((trial.kind, kind), 1.0)
            self._factors[trial.kind, kind] = before + LEARNING * (error - before)

    def forgive(self, kind: str) -> None:
        """Trials of the kind are over: what they have shown counts for less, so that it is seen again some time."""
        for pair, factor in self._factors.items():
            if pair[0] == kind:
                self._factors[pair] = 1.0 + FORGETTING * (factor - 1.0)

    def _guess(self, trial: Trial, others: list[Trial]) -> float:
        return 1.0 / shared_speed(trial.load + sum(other.load for other in others)) if others else 1.0


def common_speed(trials: Sequence[Trial]) -> float:
    """The speed of each of several trials on a device, 1 being that alone; 1 if it is not known what they use of it."""
    total = 0.0
    for trial in trials:
        if trial.busy is None:
            return 1.0
        total += trial.busy
    return shared_speed(total) if len(trials) > 1 else 1.0


def foremost(trials: Iterable[Trial]) -> Trial:
    """Of trials that share a lane the one that counts: who has priority has every turn; else it is the busiest."""
    return max(trials, key=lambda trial: (trial.priority, trial.load))


def neighbours(trial: Trial, device: Device, own: Lane | None = None) -> list[Trial]:
    """The trials that count of the other lanes that run there.

    Args:
        trial: Beside whom they are.
        device: Where.
        own: Its lane, if that is still to be.
    """
    own = own or trial.lane
    return [foremost(lane.residents.values()) for lane in device.lanes.values() if lane.residents and lane is not own]
