"""Trials that have outlived most of their siblings are what a sweep ends with.

Where a stopping rule ends most trials early, nobody can start the longest first: which these are shows while they run.
Then they are among neighbours that slow them down, and at the end they run on alone. So their neighbours are chosen:
none is placed beside a trial that would be slowed so much by it that it ended after all else is done.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import accumulate

from cotune.packer.interference import SHARED, load, neighbours, shared_speed
from cotune.packer.ledger import Ledger
from cotune.packer.line import Line
from cotune.packer.predictor import Predictor
from cotune.packer.state import Device, Trial

# How many ends are remembered, and how many it takes to speak of a rule.
MEMORY = 256
ENOUGH = 8
# Ended so early on average, trials are being stopped.
EARLY = 0.5
# What is slowed down no more than that is left alone.
SLIGHT = 1.1


class Survivors:
    """Knows how long trials will go on if they are stopped as often as others were, and what all of them will take.

    The time a trial still takes is the mean residual life of those that came as far as it did, in shares of what they
    would have taken to their end (Kaplan and Meier, JASA 53, 1958; here all have ended, and one more that went to its
    end is counted with them). All that is left to do takes its device time over what devices do when shared well, or
    its bytes times seconds over all memory. Nothing is held back on a single device, or unless trials end within half
    of their time on average.

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
        self._total = 0.0
        # The ends in order, and of each the sum of those from there on; made anew when it is asked for.
        self._sorted: list[float] = []
        self._sums: list[float] = []
        # Of running trials, device time and bytes times seconds still to come.
        self._running: dict[int, tuple[float, float]] = {}
        self._load = self._volume = 0.0

    # ---- what happens

    def starts(self, trial: Trial, device: Device) -> None:
        """A trial is about to get a lane."""
        self._note(trial)

    def ran(self, trial: Trial, count: int, seconds: float) -> None:
        """A trial has made progress in a lane. Who may run beside it is looked at when someone would."""
        self._note(trial)

    def left(self, trial: Trial) -> None:
        """A trial does not run any more."""
        before = self._running.pop(trial.id, None)
        if before is not None:
            self._load -= before[0]
            self._volume -= before[1]

    def ended(self, trial: Trial, stopped: bool) -> None:
        """A trial has come to its end, however long that was expected to take, or was stopped."""
        whole = self._predictor.whole(trial)
        if whole and trial.iterations:
            progress = min(1.0, trial.alone_seconds / whole) if stopped else 1.0
            self._total += progress - (self._ends[0] if len(self._ends) == MEMORY else 0.0)
            self._ends.append(progress)
            self._sums.clear()

    # ---- what to do

    def tolerates(self, trial: Trial, device: Device) -> bool:
        """Whether nobody there, nor the trial itself, would end last if it got a lane of its own there."""
        if not self.is_on or not device.active:
            return True
        everyone = [*neighbours(trial, device), trial]
        slowdown = 1 / shared_speed(sum(map(load, everyone)))
        return slowdown <= SLIGHT or max(map(self.seconds_left, everyone)) * slowdown <= self._rest()

    def explain(self, trial: Trial, devices: Sequence[Device]) -> str | None:
        """Why the trial may run on none of these although there is room, if that is so."""
        if any(self.tolerates(trial, device) for device in devices):
            return None
        return f"on {devices[0].name} a trial that has outlived most would end last because of it"

    def seconds_left(self, trial: Trial) -> float:
        """How long a trial will probably go on when alone; 0 if nobody knows."""
        whole = self._predictor.whole(trial)
        return self._residual(min(1.0, trial.alone_seconds / whole)) * whole if whole else 0.0

    @property
    def is_on(self) -> bool:
        count = len(self._ends)
        return count >= ENOUGH and self._total < EARLY * count and len(self._ledger.devices) > 1

    def _note(self, trial: Trial) -> None:
        """Counts what a running trial still takes."""
        self.left(trial)
        left = self.seconds_left(trial)
        needs = trial.measured or trial.expected
        self._running[trial.id] = now = left * load(trial), left * (needs.peak if needs else 0)
        self._load += now[0]
        self._volume += now[1]

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
