"""Placement: which waiting trial starts now, and where.

The first trial in line that fits starts, and trials that do not fit are passed over (backfill), until nothing fits any
more. A trial that others overtake too often gets a device kept free for it. Neither the line nor the devices are
scanned: `Line.next` finds the first trial that needs no more than the largest hole, `Pool` the devices with one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cotune.packer import instructions as do
from cotune.packer.company import Company
from cotune.packer.fitting import Fitting, Place
from cotune.packer.forecast import Forecast
from cotune.packer.interference import speed_there
from cotune.packer.kept import KeptDevice
from cotune.packer.ledger import Ledger
from cotune.packer.line import SORT_AT_ONCE, Line, Shape, Want, Where
from cotune.packer.options import PackerOptions
from cotune.packer.predictor import Predictor
from cotune.packer.queue import Entry, Mark
from cotune.packer.reservation import Reservation
from cotune.packer.trial import Trial

# Trials for which room is asked per event; the answer is an event too.
ROOM_AT_ONCE = 2
# While some trial has priority: trials without a place that are passed over per event, since a trial that uses the
# device less may be tolerated. After these, only smaller trials are considered.
PASS_OVER = 8


@dataclass(slots=True)
class _Search:
    """What one search along the line has ruled out."""

    limits: dict[Want, float] = field(default_factory=dict)
    tried: dict[Shape, Mark] = field(default_factory=dict)
    passed: int = 0
    turns: bool = True
    # By priority, if lanes are shared: persistent bytes and peaks of trials for which there is no place, without those
    # that others imply.
    without_place: dict[float, list[tuple[int, int]]] = field(default_factory=dict)
    # By shape: what the line has found, as of so many changes to it.
    found: dict[Shape, Entry | None] = field(default_factory=dict)
    changes: int = -1

    def passes(self, trial: Trial) -> bool:
        """Whether no smaller trial has been without a place, given that lanes are shared.

        What a lane needs for another resident, the larger of its peak and of its persistent bytes beside the others'
        ephemeral ones, grows with both of the trial's figures.
        """
        expected, smaller = trial.expected, self.without_place.get(trial.priority)
        if not smaller or expected is None:
            return True
        held, peak = expected.persistent, expected.peak
        return not any(held >= least and peak >= least_peak for least, least_peak in smaller)

    def has_no_place(self, priority: float, least: int, peak: int) -> None:
        """Notes a trial that passed, for which there is no place."""
        others = self.without_place.get(priority, ())
        self.without_place[priority] = [it for it in others if it[0] < least or it[1] < peak] + [(least, peak)]

    def on(self, changes: int) -> dict[Shape, Entry | None]:
        """What the line has found; empty if it has changed since."""
        if changes != self.changes:
            self.changes, self.found = changes, {}
        return self.found


class Placement:
    """Starts waiting trials.

    Args:
        options: Settings, with the policy.
        ledger: Holds the devices.
        line: The waiting trials.
        predictor: Knows which kinds of trials need no probe.
        fitting: Knows what fits.
        company: Knows which trials must not run beside each other.
        reservation: Keeps a device free for a trial that others overtake too often.
        forecast: Predicts when there will be room.
    """

    def __init__(
        self,
        options: PackerOptions,
        ledger: Ledger,
        line: Line,
        predictor: Predictor,
        fitting: Fitting,
        company: Company,
        reservation: Reservation,
        forecast: Forecast,
    ) -> None:
        self._policy = options.policy
        self._residents = options.residents
        self._ledger = ledger
        self._pool = ledger.pool
        self._line = line
        self._predictor = predictor
        self._fitting = fitting
        self._company = company
        self._reservation = reservation
        self._kept_device = KeptDevice(options, ledger, line, fitting, forecast, reservation, self._start)
        # Version of the devices as of the latest idle moment in which the whole line was sorted.
        self._sorted_for = 0
        # What there was when a search along the line came to its end.
        self._searched: tuple[int, ...] = ()

    def place(self, is_idle: bool) -> None:
        """Starts what fits.

        Args:
            is_idle: Nothing runs, so no later event would catch up on postponed sorting.
        """
        if not self._line or not self._pool.with_seat:
            return
        devices, waiting = self._ledger.version, len(self._line)
        is_outdated = self._line.sort(devices)
        if is_idle and devices != self._sorted_for:
            self._sorted_for = devices
            self._sort_all()
        self._place()
        if is_outdated and is_idle and len(self._line) == waiting:
            self._sort_all()
            self._place()

    def _sort_all(self) -> None:
        while self._line.sort(self._ledger.version):
            pass

    def _place(self) -> None:
        self._reservation.check()
        self._kept_device.take()
        kept = self._reservation.trial
        self._place_in_order()
        if self._reservation.trial is not kept:
            # A trial with priority takes its room before others do.
            self._kept_device.take()
        self._kept_device.fill()
        self._ask_for_room()
        kept = self._reservation.trial
        self._reservation.review()
        if self._reservation.trial is not kept:
            # If nothing runs, no later event would make room for the trial.
            self._kept_device.take()

    # ---- in order

    def _place_in_order(self) -> None:
        if self._residents > 1 and self._searched and self._searched == self._state():
            # Most events tell of progress, and where lanes are shared a search looks at many trials.
            return
        search, patience = _Search(), SORT_AT_ONCE
        limit = self._limit_for(search)
        while self._pool.with_seat:
            trial = (
                self._line.next(limit, search.tried)
                if self._residents == 1
                else self._line.next(limit, search.tried, search.passes, search.on(self._line.changes))
            )
            if trial is None:
                self._searched = self._state()
                return
            if patience and self._line.refresh(trial):
                # Its prediction has changed: search again, as its position may have changed too.
                patience -= 1
                continue
            place = self._find(trial)
            if place is not None and self._reservation.gives_way(trial):
                continue
            if place is not None:
                self._reservation.overtaken_by(trial)
                self._start(trial, place)
                patience = SORT_AT_ONCE
                # The lane it has now may be shared.
                search.without_place.clear()
            else:
                self._rule_out(search, trial)

    def _state(self) -> tuple[int, ...]:
        """Changes whenever a search may find another place; empty if progress alone may lead to one."""
        if self._policy.preempts or self._policy.excludes or self._company.protection.is_on:
            return ()
        return self._ledger.changes, self._line.changes, self._predictor.version

    def _limit_for(self, search: _Search) -> Callable[[Want], float]:
        """Returns a function: the largest size worth considering, by what a trial wants."""

        def limit(want: Want) -> float:
            most = search.limits.get(want, float("inf"))
            if want.where is Where.APART:
                return most
            if want.where is not Where.LANE:
                is_outdated = want.where is Where.PROBE and self._predictor.is_known(want.kind)
                return most if self._pool.has_unused or is_outdated else -1
            if self._residents == 1:
                return min(most, self._pool.roomiest)
            # A share of a lane, or a lane of its own, both once other lanes have returned memory.
            shared = self._pool.most_shared_later if search.turns else -1
            return min(most, max(shared, self._pool.roomiest_later))

        return limit

    def _rule_out(self, search: _Search, trial: Trial) -> None:
        """Notes what a trial without a place implies for the trials behind it."""
        shape = self._line.shape(trial)
        others_would_do = trial.exclusive
        if self._company.protection.is_on and search.passed < PASS_OVER:
            # A trial that uses the device less may run where this one may not.
            search.passed += 1
            others_would_do = True
        if shape.want.where is Where.APART and others_would_do:
            search.tried[shape] = self._line.mark(trial)
            return
        if shape.want.where is not Where.LANE or not (others_would_do or self._residents > 1):
            search.limits[shape.want] = self._line.size(trial) - 1
            return
        search.tried[shape] = self._line.mark(trial)
        is_admitted = self._fitting.is_admitted(trial, self._pool.with_turns(0))
        if self._policy.preempts and not is_admitted:
            # Trials behind it would not have the turn either: the line has the same order.
            search.turns = False
        if self._residents > 1 and not others_would_do and trial.expected is not None:
            # If it may share no lane, nor may others of its priority: only their peaks matter.
            least = trial.expected.persistent if is_admitted else 0
            search.has_no_place(trial.priority, least, trial.expected.peak)

    def _find(self, trial: Trial) -> Place | None:
        """Finds a place that is free now; a share of a running lane only if no room for an own lane is being freed."""
        demand = trial.expected
        if demand is None or trial.wants_all:
            place, short = self._fitting.find_whole(trial, self._pool.unused())
            self._ledger.make_room(short)
            return place
        # `_ask_for_room` skips trials if lanes are shared, and trials that are apart.
        asks_now = self._residents > 1 or trial.is_apart
        trial.exclusive = self._line.wants_device(trial)
        if trial.exclusive:
            place = self._fitting.find(trial, self._pool.unused())
            if place is None and asks_now:
                self._ledger.make_room(self._fitting.short(trial, self._pool.unused()))
            return place
        widely = self._policy.places or self._company.protection.is_on or trial.is_apart
        place = self._fitting.find(trial, self._pool.with_room(demand.peak, widely))
        if place is not None or not asks_now:
            return place
        if self._make_own_room(trial) or trial.is_apart:
            return None
        place = self._fitting.find(trial, self._pool.with_turns(demand.persistent), share=True)
        if place is None:
            self._ledger.make_room(self._fitting.short(trial, self._pool.with_turns(0), share=True))
        return place

    # ---- room

    def _ask_for_room(self) -> None:
        """Asks lanes to return memory for the first in line that would then fit; then for a smaller one, and so on."""
        if self._residents > 1:
            return
        limit: float = self._pool.roomiest_later
        after: dict[Shape, Mark] = {}
        left, passes = ROOM_AT_ONCE, PASS_OVER if self._company.protection.is_on else 0
        while left and limit > self._pool.roomiest:
            found = self._line.next_in_lane(limit, after)
            if not found:
                return
            is_coming = found.promised is not None and found.promised.is_returning
            if not is_coming and not self._make_own_room(found) and passes:
                # A trial with priority may be in the way, and may tolerate another neighbour.
                passes -= 1
                after[self._line.shape(found)] = self._line.mark(found)
                continue
            left -= 1
            limit = min(self._line.size(found) - 1, self._pool.roomiest_later)

    def _make_own_room(self, trial: Trial) -> bool:
        assert trial.expected is not None
        devices = self._pool.with_room_later(trial.expected.peak)
        trial.promised = self._ledger.make_room(self._fitting.short(trial, devices))
        return trial.promised is not None

    # ---- starting

    def _start(self, trial: Trial, place: Place) -> None:
        device, lane = place.device, place.lane
        if lane is None:
            lane = self._ledger.open(device, place.quota, apart=trial.is_apart)
        else:
            self._ledger.resize(lane, place.quota)
        trial.attempts += 1
        left = self._predictor.seconds_left(trial) if trial.attempts == 1 else None
        self._line.leave(trial, started=True)
        self._reservation.lift(trial)
        trial.overtaken, trial.promised = 0, None
        trial.had = lane.asked
        trial.had_all = lane.asked >= device.capacity and lane.is_bare
        trial.lane = lane
        lane.least = 0
        self._company.starts(trial, device)
        lane.residents[trial.id] = trial
        trial.expected_seconds = None if left is None else left / speed_there(trial, device)
        self._ledger.out.append(do.StartTrial(trial.id, lane.id))
        self._ledger.touch(device)
