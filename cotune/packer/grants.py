"""Grants: idle room is lent to trials that split their batches, to run several micro-batches at once.

Zico (ATC'21) runs the micro-batches of one job concurrently; here that is done only while no other trial wants the
room. A grant is concurrency and bytes. The bytes belong to the lane's quota, which is raised first and like any other,
so quotas never exceed the capacity. They count as used until the trial confirms that it stopped using them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from cotune.demand import Demand
from cotune.packer import events as ev
from cotune.packer import instructions as do
from cotune.packer.fitting import resident_demands
from cotune.packer.ledger import Ledger
from cotune.packer.predictor import Predictor
from cotune.packer.speed import GAIN, Speed, pause_after
from cotune.packer.state import Device, Lane
from cotune.packer.trial import Trial

SAMPLES = 2
# No second measurement is needed if it is this much slower: threads wait for each other on cores used by others.
FAR_WORSE = 2.0


@dataclass(slots=True, eq=False)
class Grant:
    """The grant of one attempt at a trial, and what it was measured to bring.

    Attributes:
        asked: The concurrency last sent to the trial; larger than `best` while it is being tried.
        unanswered: The trial has not confirmed that yet.
        best: The fastest concurrency so far.
        settled: More was tried, or is not available, as long as nothing changes on the device.
        warming: The next report was measured while caches and streams were new.
        speeds: Measured speeds, by concurrency.
        refusals: How often in a row more did not pay.
        alone: Seconds per iteration without the grant, as last measured.
        slow: Progress events in a row that were slower than `alone`.
        hold: Progress events until more is tried again; 0 if that waits for a change on the device.
    """

    trial: Trial
    asked: int = 1
    unanswered: bool = False
    best: int = 1
    settled: bool = False
    warming: bool = True
    speeds: dict[int, Speed] = field(default_factory=dict)
    refusals: int = 0
    alone: float = math.inf
    slow: int = 0
    hold: int = 0

    @property
    def is_trying(self) -> bool:
        return self.asked > self.best

    def is_measured(self, concurrency: int) -> bool:
        speed, best = self.speeds.get(concurrency), self.speeds.get(self.best)
        if speed is None:
            return False
        far_worse = best is not None and speed.step_seconds > FAR_WORSE * best.step_seconds
        return speed.samples >= SAMPLES or far_worse

    def measured(self, count: int, seconds: float) -> None:
        """Notes a speed, and counts `hold` down; at its end, forgets all speeds so that they are measured again."""
        speed = self.speeds.setdefault(self.asked, Speed())
        speed.add(count, seconds)
        if self.asked == 1:
            self.alone = speed.step_seconds
        self.slow = self.slow + 1 if self.asked > 1 and seconds > self.alone * count else 0
        if self.hold:
            self.hold -= 1
            if not self.hold:
                self.forget()

    def refuse(self, best: int) -> None:
        """Settles on `best` for now, since more does not pay."""
        self.best = best
        self.settled = True
        self.refusals += 1
        self.hold = pause_after(self.refusals)
        self.slow = 0

    def forget(self) -> None:
        """Forgets all speeds: trials came or went, so earlier and later speeds cannot be compared."""
        self.speeds.clear()
        self.settled = False
        self.hold = 0


class Grants:
    """Lends idle room while nothing waits.

    On each device the trial with the longest predicted remaining time goes first. Its concurrency is doubled as long
    as that makes its iterations faster by 5%, and is then set back to the best; after a while more is tried again.

    Args:
        ledger: Holds the devices, and raises quotas.
        predictor: Predicts how long a trial will go on.
        enabled: Whether anything is lent at all.
    """

    def __init__(self, ledger: Ledger, predictor: Predictor, enabled: bool) -> None:
        self._ledger = ledger
        self._predictor = predictor
        self._enabled = enabled
        self._grants: dict[int, Grant] = {}
        self._crowds: dict[str, frozenset[int]] = {}

    # ---- what happens

    def ran(self, trial: Trial, event: ev.IterationsDone) -> None:
        """Notes that a trial splits its batches, and how fast it ran."""
        if not event.splits or not self._enabled:
            return
        trial.splits = event.splits
        grant = self._grants.get(trial.id)
        if grant is None:
            grant = self._grants[trial.id] = Grant(trial)
        if grant.unanswered or event.concurrency != grant.asked or not event.count:
            return
        if grant.warming:
            grant.warming = False
        else:
            grant.measured(event.count, event.seconds)

    def changed(self, trial: Trial, event: ev.GrantChanged) -> None:
        """A trial has confirmed its new concurrency, or has given its grant back."""
        grant = self._grants.get(trial.id)
        if grant is None:
            return
        if event.ran_out:
            trial.refused = min(trial.refused or event.ran_out, event.ran_out)
            grant.best = min(grant.best, max(1, event.ran_out // 2))
            if not grant.unanswered:
                grant.asked = 1
        else:
            grant.unanswered = False
        self._lent(trial, grant.asked)
        grant.warming = True

    def left(self, trial: Trial) -> None:
        """A trial no longer runs."""
        trial.granted, trial.splits = 1, 0
        self._grants.pop(trial.id, None)

    # ---- what to do

    def review(self, somebody_waits: bool) -> None:
        """Takes all grants back if a trial waits; else lends more, or takes back what does not pay. Once per event."""
        if not self._grants:
            return
        if somebody_waits:
            for grant in self._grants.values():
                self._tell(grant, 1)
            return
        for device in list(self._ledger.stirred):
            if device.name in self._ledger.devices:
                self._review_device(device)

    def _review_device(self, device: Device) -> None:
        running = device.trials
        grants = [self._grants[trial.id] for trial in running if trial.id in self._grants]
        crowd = frozenset(trial.id for trial in running)
        before = self._crowds.get(device.name, frozenset())
        self._crowds[device.name] = crowd
        if crowd != before:
            for grant in grants:
                grant.forget()
        if crowd - before or device.taken > device.capacity or device.reserved_for or _used(device) > device.most:
            for grant in grants:
                grant.best = 1
                self._tell(grant, 1)
        elif not any(grant.unanswered for grant in grants):
            self._search(device, grants)

    def _search(self, device: Device, grants: list[Grant]) -> None:
        """Makes one step of the search. It tries one trial at a time, or its speed would reflect changes of another."""
        for grant in grants:
            if grant.is_trying:
                if grant.is_measured(grant.asked):
                    self._judge(grant)
                return
            if grant.slow >= SAMPLES:
                # Other programs that we do not see use these cores, or this GPU.
                grant.refuse(1)
                self._tell(grant, 1)
                return
        for grant in sorted(grants, key=self._order):
            trial, lane = grant.trial, grant.trial.lane
            if lane is None or trial.demand is None or trial.withdrawn or lane.closing:
                continue
            if lane.turn is not None or (grant.settled and grant.asked == grant.best):
                # Where one resident has every turn, another might never reach a boundary to give its grant back.
                continue
            if any(other.priority > 0 and other.lane is not lane for other in device.trials):
                # The grant would slow down a trial with priority.
                continue
            if grant.asked == grant.best and not grant.is_measured(grant.best):
                return
            if self._raise(grant, device, lane):
                return
            grant.settled, grant.best = True, grant.asked

    def _order(self, grant: Grant) -> tuple[float, int]:
        return -(self._predictor.seconds_left(grant.trial) or 0.0), grant.trial.arrival

    def _judge(self, grant: Grant) -> None:
        """Keeps the concurrency that was tried if it pays."""
        before, now = grant.speeds.get(grant.best), grant.speeds[grant.asked]
        if before is not None and before.step_seconds > now.step_seconds * GAIN:
            grant.best, grant.refusals = grant.asked, 0
        else:
            if before is not None:
                # Without an earlier speed (dropped since other trials left), more is simply tried again.
                grant.refuse(grant.best)
            self._tell(grant, grant.best)

    def _raise(self, grant: Grant, device: Device, lane: Lane) -> bool:
        """Lends more, or asks idle lanes to return the memory for it; False if there is no more."""
        trial = grant.trial
        limit = min(trial.splits, device.most - _used(device) + trial.granted)
        if trial.refused:
            limit = min(limit, trial.refused - 1)
        grant.best = min(grant.best, max(limit, 1))
        concurrency = min(grant.best if grant.asked < grant.best else 2 * grant.best, limit)
        while concurrency > grant.asked:
            need = _need(lane, trial, concurrency)
            missing = need - lane.quota - device.free
            if missing <= 0:
                self._ledger.ensure(lane, need)
                self._tell(grant, concurrency)
                return True
            if self._ledger.reclaim(device, missing, keep=lane):
                return True
            concurrency -= max(1, concurrency // 4)
        return False

    def _tell(self, grant: Grant, concurrency: int) -> None:
        """Tells a trial how many micro-batches to run at once, once it has answered the last change."""
        if grant.unanswered or concurrency == grant.asked:
            return
        grant.asked, grant.unanswered = concurrency, True
        self._ledger.out.append(do.GrantTrial(grant.trial.id, concurrency))
        self._lent(grant.trial, max(grant.trial.granted, concurrency))

    def _lent(self, trial: Trial, concurrency: int) -> None:
        trial.granted = concurrency
        if trial.lane is not None:
            self._ledger.touch(trial.lane.device)


def _used(device: Device) -> int:
    """What runs at once on a device: lanes, counted with their granted micro-batches."""
    return sum(max(trial.granted for trial in lane.residents.values()) for lane in device.running)


def _need(lane: Lane, trial: Trial, concurrency: int) -> int:
    """The quota needed to run `concurrency` micro-batches at once, each with the ephemeral bytes of one."""
    demands: list[Demand] = []
    for other, demand in zip(lane.residents.values(), resident_demands(lane), strict=True):
        times = concurrency if other is trial else 1
        demands.append(Demand(demand.persistent, demand.ephemeral * times, demand.busy))
    return lane.need(demands)
