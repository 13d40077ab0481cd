"""Limits the slowdown of trials with priority: predicted before a neighbour starts, then measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cotune.packer.interference import Interference, foremost, neighbours
from cotune.packer.speed import Speed, pause_after
from cotune.packer.state import Device, Lane
from cotune.packer.trial import MANY, Trial

SAMPLES = 2


@dataclass(slots=True)
class _Watch:
    """The measured speed of one attempt at a trial with priority.

    Attributes:
        crowd: The trials beside it in other lanes, as of its last progress.
        warming: The next progress report began among other neighbours, or includes the set-up.
        now: Speed among the present neighbours.
        least: Speed in the least crowd so far.
        slowed: Slowdown in the least crowd: 1 if the trial was alone, else as predicted.
        crowded: Whether there were neighbours in the least crowd.
        all: All its iterations.
        refusals: How often the bound was exceeded.
        hold: Progress events until more neighbours are tried again.
    """

    crowd: frozenset[int] = frozenset()
    warming: bool = True
    now: Speed = field(default_factory=Speed)
    least: Speed = field(default_factory=Speed)
    slowed: float = 1.0
    crowded: bool = True
    all: Speed = field(default_factory=Speed)
    refusals: int = 0
    hold: int = 0

    def slowdown(self, speed: Speed) -> float | None:
        alone = self.least.step_seconds / self.slowed
        return speed.step_seconds / alone if speed.count and alone > 0 else None


class Protection:
    """Chooses the neighbours of trials with priority, and how many.

    A neighbour is placed where the predicted slowdown of every trial with priority stays under the bound. A trial
    with priority that starts on an unused device has it to itself until its second iteration; its later speed is
    compared with that. If it never ran alone, it is compared with its least crowd and the slowdown predicted for that.
    When its measured slowdown exceeds the bound, one lane beside it is not filled again, for a time that doubles each
    time.

    Args:
        bound: Largest slowdown of a trial with priority.
    """

    def __init__(self, bound: float) -> None:
        self._bound = bound
        self._interference = Interference()
        self._watches: dict[int, _Watch] = {}
        self._slowdowns: dict[int, float] = {}
        # Kinds with a trial that ended before it could be measured.
        self._unmeasurable: set[str] = set()
        self._count = 0

    @property
    def is_on(self) -> bool:
        """Whether there is any trial with priority."""
        return self._count > 0

    # ---- what happens

    def joined(self, trial: Trial) -> None:
        self._count += trial.priority > 0

    def over(self, trial: Trial) -> float | None:
        """Forgets a trial that is over for good; returns its measured slowdown, if any."""
        self._count -= trial.priority > 0
        return self._slowdowns.pop(trial.id, None)

    def starts(self, trial: Trial, device: Device) -> None:
        """A trial is about to get a lane on a device."""
        if trial.priority > 0:
            self._watches[trial.id] = _Watch()
            trial.beside = 0 if not device.active and trial.kind not in self._unmeasurable else MANY

    def left(self, trial: Trial) -> None:
        """A trial no longer runs."""
        if self._watches.pop(trial.id, None) is not None:
            self._interference.forgive(trial.kind)

    def ended(self, trial: Trial) -> None:
        """A trial has come to its end by itself."""
        watch = self._watches.get(trial.id)
        if watch is not None and not watch.all.count:
            self._unmeasurable.add(trial.kind)

    def stalled(self, trial: Trial) -> None:
        """A trial that should be measured alone has made no progress for long: others need not wait for it."""
        watch = self._watches.get(trial.id)
        if watch is not None and not watch.all.count and trial.beside == 0:
            trial.beside = MANY

    def ran(self, trial: Trial, device: Device, count: int, seconds: float) -> None:
        """Notes a trial's speed, and derives how many may run beside it (`Trial.beside`)."""
        watch = self._watches.get(trial.id)
        if watch is None or count <= 0:
            return
        others = neighbours(trial, device)
        crowd = frozenset(other.id for other in others)
        if crowd != watch.crowd:
            watch.crowd, watch.warming, watch.now = crowd, True, Speed()
        if watch.warming:
            watch.warming = False
            return
        watch.now.add(count, seconds)
        watch.all.add(count, seconds)
        self._compare(trial, watch, others)
        slowdown = watch.slowdown(watch.all)
        if slowdown is not None:
            self._slowdowns[trial.id] = slowdown
        self._judge(trial, watch, others)

    # ---- what to do

    def tolerates(self, trial: Trial, device: Device, lane: Lane | None = None) -> bool:
        """Whether every bound, the trial's own included, would be kept if the trial ran there.

        Args:
            trial: A trial that does not run.
            device: The device.
            lane: The lane whose residents it would join; None for a lane of its own.
        """
        return not self.is_on or self._victim(trial, device, lane) is None

    def explain(self, trial: Trial, devices: Sequence[Device]) -> str | None:
        """Why the trial may not run beside others although there is room, if that is so."""
        for device in devices:
            if (victim := self._victim(trial, device)) is not None:
                one, slowdown = victim
                whose = "it" if one is trial else f"trial {one.id}, which has priority,"
                return f"on {device.name} {whose} would be slowed {slowdown:.2f} times, {self._bound:g} is allowed"
        return None

    def slowdown_of(self, trial: Trial) -> float | None:
        """Average measured slowdown of a trial with priority in its last attempt."""
        return self._slowdowns.get(trial.id)

    def _victim(self, trial: Trial, device: Device, lane: Lane | None = None) -> tuple[Trial, float] | None:
        """A trial whose bound would be exceeded, and its slowdown, if the trial ran there."""
        if lane is not None and foremost([*lane.residents.values(), trial]) is not trial:
            # Nothing changes for trials in other lanes.
            return None
        everyone = [*neighbours(trial, device, lane), trial]
        for one in everyone:
            if one.priority > 0 and not self._is_tried(one):
                slowdown = self._interference.slowdown(one, [other for other in everyone if other is not one])
                if slowdown > self._bound:
                    return one, slowdown
        return None

    def _is_tried(self, trial: Trial) -> bool:
        """Whether neighbours are judged by measurement only: the trial has run alone, and its device use is unknown."""
        watch = self._watches.get(trial.id)
        return watch is not None and not watch.crowded and watch.least.count > 0 and trial.busy is None

    def _compare(self, trial: Trial, watch: _Watch, others: list[Trial]) -> None:
        """Keeps the speed in the least crowd: the speed alone, if it was ever measured."""
        if not others:
            if watch.crowded:
                watch.crowded, watch.slowed, watch.least = False, 1.0, Speed()
            watch.least.add(watch.now.count, watch.now.seconds)
            watch.now = Speed()
        elif watch.crowded:
            predicted = self._interference.slowdown(trial, others)
            if not watch.least.count or predicted <= watch.slowed:
                watch.slowed, watch.least = predicted, Speed(watch.now.count, watch.now.seconds)

    def _judge(self, trial: Trial, watch: _Watch, others: list[Trial]) -> None:
        watch.hold -= watch.hold > 0
        if watch.hold == 0 and trial.beside < MANY and (watch.refusals or not others):
            trial.beside = MANY
            return
        if not others:
            return
        slowdown = watch.slowdown(watch.now)
        if watch.now.samples < SAMPLES or slowdown is None:
            return
        if not watch.crowded:
            self._interference.measured(trial, others, slowdown)
        watch.now = Speed()
        if slowdown <= self._bound or trial.beside < len(others):
            # In the second case, a lane that must stay empty still runs its last trial.
            return
        watch.refusals += 1
        watch.hold = pause_after(watch.refusals)
        trial.beside = len(others) - 1
