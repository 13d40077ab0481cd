"""How much trials on one device slow each other down: first a guess, then measurements."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from cotune.packer.state import Device, Lane
from cotune.packer.trial import Trial

# Mean share of its own speed that a trial keeps beside others, by the sum of their `busy` shares when alone:
# middles of the bands of 1,388 measured pairs (Gavel, OSDI'20, co-located throughputs on one GPU).
_SLOPE = ((0.0, 1.0), (0.6, 0.95), (0.875, 0.93), (1.125, 0.88), (1.375, 0.78), (1.625, 0.68), (1.875, 0.63))
_AT = [at for at, _ in _SLOPE]
# Work per second of a well-shared device, in seconds of its time when alone.
SHARED = 1.15
LEARNING = 0.3
FORGETTING = 0.9


def shared_speed(busy: float) -> float:
    """The speed of each of several trials on a device; 1 is the speed alone.

    Args:
        busy: Sum of the trials' `busy` shares when alone. Beyond the measured pairs, the device's total throughput is
            that of the busiest pairs.
    """
    last, least = _SLOPE[-1]
    if busy >= last:
        return least * last / busy
    right = bisect_right(_AT, busy)
    (a, above), (b, below) = _SLOPE[right - 1], _SLOPE[right]
    return above + (below - above) * (busy - a) / (b - a)


def speed_of_each(loads: Sequence[float]) -> float:
    """The speed of each of several trials on a device, given what each uses of it; one that is alone is not slowed."""
    return shared_speed(sum(loads)) if len(loads) > 1 else 1.0


class Interference:
    """Predicts slowdowns from `busy` shares, corrected for each pair of kinds by measurements of such pairs."""

    def __init__(self) -> None:
        self._factors: dict[tuple[str, str], float] = {}

    def slowdown(self, trial: Trial, others: Sequence[Trial]) -> float:
        """Factor by which an iteration of the trial takes longer beside these trials, each in a lane of its own."""
        factors = [self._factors.get((trial.kind, other.kind), 1.0) for other in others]
        return max(1.0, self._guess(trial, others) * max(factors, default=1.0))

    def measured(self, trial: Trial, others: Sequence[Trial], slowdown: float) -> None:
        """Learns from a measured slowdown; with several neighbours, each kind is blamed for all of it."""
        error = slowdown / self._guess(trial, others)
        for kind in {other.kind for other in others}:
            before = self._factors.get((trial.kind, kind), 1.0)
            self._factors[trial.kind, kind] = before + LEARNING * (error - before)

    def forgive(self, kind: str) -> None:
        """Weakens what was learnt once trials of the kind are over, so that it is measured again at some point."""
        for pair, factor in self._factors.items():
            if pair[0] == kind:
                self._factors[pair] = 1.0 + FORGETTING * (factor - 1.0)

    def _guess(self, trial: Trial, others: Sequence[Trial]) -> float:
        return 1.0 / shared_speed(trial.load + sum(other.load for other in others)) if others else 1.0


def common_speed(trials: Iterable[Trial]) -> float:
    """The speed of each of several trials on a device; 1 is the speed alone, and is returned if a share is unknown."""
    loads: list[float] = []
    for trial in trials:
        busy = trial.busy
        if busy is None:
            return 1.0
        loads.append(busy)
    return speed_of_each(loads)


def speed_there(trial: Trial, device: Device) -> float:
    """The `common_speed` of a trial and of those that run beside it on a device."""
    return common_speed([trial, *neighbours(trial, device)])


def foremost(trials: Iterable[Trial]) -> Trial:
    """The trial that represents a lane: the highest priority, which has every turn; then the busiest."""
    return max(trials, key=lambda trial: (trial.priority, trial.load))


def neighbours(trial: Trial, device: Device, own: Lane | None = None) -> list[Trial]:
    """The foremost trial of every other running lane on the device.

    Args:
        trial: The trial whose neighbours to find.
        device: The device to look at.
        own: The trial's lane, if it is not in that lane yet.
    """
    own = own or trial.lane
    return [foremost(lane.residents.values()) for lane in device.running if lane is not own]
