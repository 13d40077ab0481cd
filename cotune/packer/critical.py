"""Trials that a sweep ends with get no neighbours that would make them end later.

If trial lengths differ much, the longest begin first, are slowed by their neighbours, and run on alone at the end. If
a stopping rule ends most trials early, the longest cannot even be started first: which they are shows only while they
run. So `Trial.beside` limits the neighbours of a trial to a number with which it ends before everything else is done.
A trial starts beside any number: being slowed for a while costs it less than waiting.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

from cotune.packer.interference import SHARED, shared_speed
from cotune.packer.ledger import Ledger
from cotune.packer.line import Line
from cotune.packer.predictor import Predictor
from cotune.packer.state import Device
from cotune.packer.trial import MANY, Trial

# Number of ends remembered.
MEMORY = 256
# A trial that keeps this share of its speed does not count as slowed.
SLIGHT = 0.9
TINY = 1e-9


class _Left(NamedTuple):
    """The remaining work of a running trial: seconds of a device, and bytes times seconds."""

    load: float
    volume: float


class Critical:
    """Predicts how long trials will go on if they are stopped as often as others were, and how long the sweep takes.

    The remaining time of a trial is the mean residual life of the trials that came as far, in shares of the time to
    their end (Kaplan and Meier, JASA 53, 1958; here all have ended, and one more that went to its end is added).
    The remaining time of the sweep is its device time over what devices do when shared well, or its bytes times seconds
    over all memory, whichever is more. It is no less than what is left of a trial and, after it, what the longest takes
    that is held back. On a single device nothing is held back: it has all the work to do anyway.

    Args:
        enabled: Whether anything is held back at all.
        ledger: Holds the devices.
        line: The waiting trials.
        predictor: Predicts how long trials take to their end.
    """

    def __init__(self, enabled: bool, ledger: Ledger, line: Line, predictor: Predictor) -> None:
        self._enabled = enabled
        self._ledger = ledger
        self._line = line
        self._predictor = predictor
        self._ends: deque[float] = deque(maxlen=MEMORY)
        # The ends in order, and for each the sum of it and all later ones; computed on demand.
        self._sorted: list[float] = []
        self._sums: list[float] = []
        self._running: dict[int, _Left] = {}
        self._load = self._volume = 0.0

    # ---- what happens

    def note(self, trial: Trial, device: Device) -> None:
        """Records the remaining work of a trial that is about to get a lane on a device, or has made progress there.

        Also records how many others may run beside it.
        """
        self.left(trial)
        most = MANY
        if self._enabled and len(self._ledger.devices) > 1:
            left, needs = self.seconds_left(trial), trial.set_aside
            now = _Left(left * trial.load, left * (needs.peak if needs else 0))
            self._running[trial.id] = now
            self._load += now.load
            self._volume += now.volume
            most = self._most_beside(trial, device, left)
        if trial.priority <= 0:
            # Trials with priority are protected more strictly.
            trial.beside = most

    def left(self, trial: Trial) -> None:
        """A trial no longer runs."""
        before = self._running.pop(trial.id, None)
        if before is not None:
            self._load -= before.load
            self._volume -= before.volume

    def ended(self, trial: Trial, stopped: bool) -> None:
        """A trial has come to its end, whatever duration was predicted, or was stopped."""
        whole = self._predictor.whole(trial)
        if whole and trial.progress.iterations:
            progress = min(1.0, trial.progress.alone_seconds / whole) if stopped else 1.0
            self._ends.append(progress)
            self._sums.clear()

    # ---- what to do

    def explain(self, devices: Iterable[Device]) -> str | None:
        """Why no trial may run there although lanes are free, if that is so."""
        found = (
            f"on {device.name} trial {trial.id} would end last because of it"
            for device in devices
            if device.active < device.width.width
            for trial in device.trials
            # Trials with priority are protected for another reason.
            if trial.priority <= 0 and trial.beside < device.active
        )
        return next(found, None)

    def seconds_left(self, trial: Trial) -> float:
        """Expected remaining time alone, considering that trials are stopped; 0 if unknown."""
        whole = self._predictor.whole(trial)
        return self._residual(min(1.0, trial.progress.alone_seconds / whole)) * whole if whole else 0.0

    def _most_beside(self, trial: Trial, device: Device, left: float) -> int:
        """How many trials with the same device use may run beside it without making it end last."""
        share = trial.busy
        if not share or self._line.is_open:
            # It is not known yet what the sweep will end with.
            return MANY
        # What is held back until the trial has ended begins after it.
        rest = max(self._rest(), left + self._residual(0.0) * self._line.longest)
        slowest = min(SLIGHT, left / max(rest, TINY))
        width = device.width.width
        if shared_speed(width * share) >= slowest:
            return MANY
        return next(count for count in range(width) if shared_speed((count + 2) * share) < slowest)

    def _residual(self, progress: float) -> float:
        """Mean remainder at some progress, in shares of the time to the end."""
        if not self._sums:
            self._sorted = sorted(self._ends)
            self._sums = [*accumulate(reversed(self._sorted), initial=0.0)][::-1]
        first = bisect_right(self._sorted, progress)
        count = len(self._sorted) - first + 1
        return (self._sums[first] + 1.0) / count - progress

    def _rest(self) -> float:
        """Seconds until everything is done."""
        devices = self._ledger.devices
        fresh = self._residual(0.0)
        work, volume = self._load + fresh * self._line.work, self._volume + fresh * self._line.volume
        return max(work / (SHARED * len(devices)), volume / max(1, self._ledger.capacity))
