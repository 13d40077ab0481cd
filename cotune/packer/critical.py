"""Trials that a sweep ends with get no neighbours that make them end later.

Where the lengths of trials differ much, the longest begin first, among neighbours that slow them down, and at the end
they run on alone. Where a stopping rule ends most trials early, nobody can even start the longest first: which these
are shows while they run. So no more run beside a trial (`Trial.beside`) than let it end before all else is done. It
starts beside as many as there are: to be slowed for a while costs it less than to wait.
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

# How many ends are remembered.
MEMORY = 256
# Who keeps so much of its speed is not slowed down.
SLIGHT = 0.9
TINY = 1e-9


class _Left(NamedTuple):
    """What is still to come of a running trial: seconds of a device, and bytes times seconds."""

    load: float
    volume: float


class Critical:
    """Knows how long trials will go on if they are stopped as often as others were, and what all of them will take.

    The time a trial still takes is the mean residual life of those that came as far as it did, in shares of what they
    would have taken to their end (Kaplan and Meier, JASA 53, 1958; here all have ended, and one more that went to its
    end is counted with them). All that is left to do takes its device time over what devices do when shared well, or
    its bytes times seconds over all memory. Nothing is held back on a single device, which has all of that to do.

    Args:
        ledger: Has the devices.
        line: Who waits.
        predictor: Knows how long trials take to their end.
    """

    def __init__(self, ledger: Ledger, line: Line, predictor: Predictor) -> None:
        self._ledger = ledger
        self._line = line
        self._predictor = predictor
        self._ends: deque[float] = deque(maxlen=MEMORY)
        # The ends in order, and of each the sum of those from there on; made anew when it is asked for.
        self._sorted: list[float] = []
        self._sums: list[float] = []
        self._running: dict[int, _Left] = {}
        self._load = self._volume = 0.0

    # ---- what happens

    def starts(self, trial: Trial, device: Device) -> None:
        """A trial is about to get a lane there."""
        self._note(trial, device)

    def ran(self, trial: Trial) -> None:
        """A trial has made progress in a lane."""
        if trial.lane is not None:
            self._note(trial, trial.lane.device)

    def left(self, trial: Trial) -> None:
        """A trial does not run any more."""
        before = self._running.pop(trial.id, None)
        if before is not None:
            self._load -= before.load
            self._volume -= before.volume

    def ended(self, trial: Trial, stopped: bool) -> None:
        """A trial has come to its end, however long that was expected to take, or was stopped."""
        whole = self._predictor.whole(trial)
        if whole and trial.progress.iterations:
            progress = min(1.0, trial.progress.alone_seconds / whole) if stopped else 1.0
            self._ends.append(progress)
            self._sums.clear()

    # ---- what to do

    def explain(self, devices: Iterable[Device]) -> str | None:
        """Why nobody may run there although there are lanes left, if that is so."""
        found = (
            f"on {device.name} trial {trial.id} would end last because of it"
            for device in devices
            if device.active < device.width.width
            for lane in device.lanes.values()
            for trial in lane.residents.values()
            # Who has priority is protected, which is another reason.
            if trial.priority <= 0 and trial.beside < device.active
        )
        return next(found, None)

    def seconds_left(self, trial: Trial) -> float:
        """How long a trial will probably go on when alone; 0 if nobody knows."""
        whole = self._predictor.whole(trial)
        return self._residual(min(1.0, trial.progress.alone_seconds / whole)) * whole if whole else 0.0

    def _note(self, trial: Trial, device: Device) -> None:
        """Counts what a running trial still takes, and how many may slow it down."""
        self.left(trial)
        if len(self._ledger.devices) == 1:
            # Nobody is held back there, so that nothing need be known.
            trial.beside = MANY if trial.priority <= 0 else trial.beside
            return
        left = self.seconds_left(trial)
        needs = trial.measured or trial.expected
        now = _Left(left * trial.load, left * (needs.peak if needs else 0))
        self._running[trial.id] = now
        self._load += now.load
        self._volume += now.volume
        if trial.priority <= 0:
            # Who has priority is protected from more than that.
            trial.beside = self._most_beside(trial, device, left)

    def _most_beside(self, trial: Trial, device: Device, left: float) -> int:
        """How many trials that use the device as it does may run beside it so that it does not end last."""
        share = trial.busy
        if not share or self._line.is_open:
            # Nobody knows yet what all will end with.
            return MANY
        slowest = min(SLIGHT, left / max(self._rest(), TINY))
        width = device.width.width
        if shared_speed(width * share) >= slowest:
            return MANY
        return next(count for count in range(width) if shared_speed((count + 2) * share) < slowest)

    def _residual(self, progress: float) -> float:
        """What is left at some progress, on average, in shares of the time to the end."""
        if not self._sums:
            self._sorted = sorted(self._ends)
            self._sums = [*accumulate(reversed(self._sorted), initial=0.0)][::-1]
        first = bisect_right(self._sorted, progress)
        count = len(self._sorted) - first + 1
        return (self._sums[first] + 1.0) / count - progress

    def _rest(self) -> float:
        """Seconds until all is done."""
        devices = self._ledger.devices
        fresh = self._residual(0.0)
        work, volume = self._load + fresh * self._line.work, self._volume + fresh * self._line.volume
        return max(work / (SHARED * len(devices)), volume / max(1, self._ledger.capacity))
