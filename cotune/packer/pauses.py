"""Trials that wait in their lanes: which go on there, and which make room.

A paused trial is not a resident of its lane: it has no turn, no seat and no part of the width, and its bytes count as
bytes of the lane (`Lane.base`). Once its owner releases it, it goes on in its lane as soon as it may run there, before
any trial in line. If its room is needed, it is parked, if a part of it can be moved to the host; otherwise it leaves
its lane and goes on from its checkpoint. A trial without a checkpoint is left alone as long as anything runs; after
that it starts again from nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from cotune.packer import events as ev
from cotune.packer import instructions as do
from cotune.packer.company import Company
from cotune.packer.fitting import Fitting
from cotune.packer.ledger import Ledger
from cotune.packer.line import Line
from cotune.packer.predictor import Predictor
from cotune.packer.reservation import LOOK_AHEAD
from cotune.packer.state import MOST_PAUSED, Device, Lane
from cotune.packer.trial import Rest, Trial


class Pauses:
    """Pauses trials and resumes them.

    Args:
        ledger: Holds the lanes.
        line: The trials that wait for a lane.
        predictor: Predicts what a trial needs.
        fitting: Knows what fits.
        company: Is told which trial starts where.
    """

    def __init__(self, ledger: Ledger, line: Line, predictor: Predictor, fitting: Fitting, company: Company) -> None:
        self._ledger = ledger
        self._line = line
        self._predictor = predictor
        self._fitting = fitting
        self._company = company
        self._held: set[int] = set()
        # Held, but still on the way to a boundary.
        self._stopping: set[int] = set()
        self._looked_for = -1
        self._paused: dict[int, Trial] = {}
        self._released: dict[int, Trial] = {}

    @property
    def held(self) -> int:
        """Held trials that do not run; those still on the way to a boundary do."""
        return len(self._held) - len(self._stopping)

    @property
    def wanted(self) -> bool:
        """Whether a released trial waits in its lane to go on."""
        return bool(self._released)

    @property
    def is_making_room(self) -> bool:
        """Whether a trial was told to leave its lane, or to park, and has not yet."""
        return any(trial.rest.is_leaving for trial in self._paused.values())

    @property
    def outside(self) -> int:
        """Trials that neither run nor wait in line."""
        return self.held + len(self._released)

    # ---- what the owner wants

    def hold(self, trial: Trial) -> None:
        if trial.held or trial.withdrawn:
            return
        trial.held = True
        self._held.add(trial.id)
        self._released.pop(trial.id, None)
        if trial.lane is None:
            self._line.leave(trial)
        elif not trial.is_paused:
            self._stopping.add(trial.id)
            if not trial.pausing:
                trial.pausing = True
                self._ledger.out.append(do.PauseTrial(trial.id))

    def release(self, trial: Trial, event: ev.TrialReleased) -> None:
        if not trial.held:
            return
        trial.held = False
        self._held.remove(trial.id)
        self._stopping.discard(trial.id)
        if trial.is_paused:
            self._released[trial.id] = trial
        elif trial.lane is None:
            trial.since = event.time
            self._line.join(trial)

    # ---- what happens

    def paused(self, trial: Trial, event: ev.TrialPaused) -> None:
        """A trial has reached a boundary and waits there."""
        lane = trial.lane
        assert lane is not None
        trial.pausing = False
        self._stopping.discard(trial.id)
        del lane.residents[trial.id]
        lane.paused[trial.id] = self._paused[trial.id] = trial
        trial.rest = Rest(event.persistent, movable=event.movable, saved=event.saved)
        if not trial.held:
            self._released[trial.id] = trial
        crowd, most = list(lane.paused.values()), MOST_PAUSED
        if lane.retiring:
            # Paused trials with a process of their own would otherwise become as many as memory holds.
            crowd = [one for one in self._paused_on(lane.device) if one.lane is not None and one.lane.retiring]
            most *= max(1, lane.device.width.width)
        if len(crowd) > most:
            self._evict(min(crowd, key=_loss))
        self._ledger.touch(lane.device)

    def parked(self, trial: Trial, event: ev.TrialParked) -> None:
        """A part of a trial is now on the host."""
        lane = trial.lane
        assert lane is not None
        rest = trial.rest
        rest.is_leaving, rest.parked, rest.movable = False, min(event.moved, rest.bytes), 0
        self._ledger.touch(lane.device)

    def left(self, trial: Trial) -> None:
        """A trial is no longer in a lane."""
        self._paused.pop(trial.id, None)
        self._released.pop(trial.id, None)
        self._stopping.discard(trial.id)
        trial.pausing, trial.rest = False, Rest()

    def over(self, trial: Trial) -> None:
        self._held.discard(trial.id)

    # ---- what to do

    def resume(self) -> None:
        """Resumes released trials whose lanes have the room, in order of release."""
        for trial in list(self._released.values()):
            lane = trial.lane
            assert lane is not None
            place = None if trial.rest.is_leaving or trial.withdrawn else self._fitting.home(trial, lane)
            if place is None:
                if trial.alone and trial.rest.saved and lane.device.active:
                    # A device is kept free for it only while it waits in line.
                    self._evict(trial)
                continue
            if place.missing > 0:
                if not self._ledger.reclaim(place.device, place.missing, keep=lane):
                    returnable = self._ledger.returnable(place.device, keep=lane)
                    if not self._free(place.device, place.missing - returnable, trial) and self._is_stranded(trial):
                        self._evict(trial)
                continue
            self._ledger.resize(lane, place.quota)
            self._go_on(trial, lane)

    def _is_stranded(self, trial: Trial) -> bool:
        """Whether nothing will free the room that a trial lacks in its lane, as when others have left memory there."""
        assert trial.lane is not None
        device = trial.lane.device
        self._predictor.appraise(trial)
        if not self._fitting.suits(trial, device):
            # Other programs may return the memory, but nobody knows when: a device that has enough is better.
            return (trial.rest.saved or not self._anything_runs) and self._suits_any(trial)
        if device.active:
            # Those that run will leave room.
            return False
        return trial.rest.saved or self._paused_on(device) == [trial] or not self._anything_runs

    def make_room(self) -> None:
        """Has paused trials make room: on devices that have shrunk or are kept free, and for the first in line."""
        if not self._paused:
            return
        devices = list(dict.fromkeys(trial.lane.device for trial in self._paused.values() if trial.lane is not None))
        # While anything runs, only devices that have changed need another look.
        looked = [one for one in devices if one in self._ledger.stirred] if self._anything_runs else devices
        for device in looked:
            if device.taken > device.capacity and not device.is_returning:
                self._free(device, device.taken - device.capacity, partly=True)
        head = self._first_that_fits() if self._ledger.pool.with_seat else None
        if head is None:
            return
        is_new, self._looked_for = head.id != self._looked_for, head.id
        devices = devices if is_new else looked
        kept = [device for device in devices if device.reserved_for is not None]
        for device in kept:
            # No other trial may start there, so no other asks for its room, whichever is first in line by now.
            assert device.reserved_for is not None
            if self._make_room_for(device.reserved_for, [device]) and device.reserved_for is head:
                return
        self._make_room_for(head, [device for device in devices if device not in kept])

    def move(self) -> None:
        """Sends one trial away from a lane used by another, if it has a checkpoint and could run elsewhere now."""
        if any(trial.rest.is_leaving for trial in self._released.values()):
            return
        for trial in self._released.values():
            if trial.rest.saved and not trial.withdrawn and trial.lane is not None and trial.lane.residents:
                self._predictor.appraise(trial)
                needs = None if trial.wants_all else trial.expected
                if needs is not None and self._fitting.find(trial, self._ledger.pool.with_room(needs.peak)):
                    self._evict(trial)
                    return

    def _first_that_fits(self) -> Trial | None:
        """The first in line or, while no device can hold that one, the first of the next few that one can hold."""
        head = self._line.head()
        if head is None or self._suits_any(head):
            return head
        return next(filter(self._suits_any, self._line.first(LOOK_AHEAD)), None)

    def _suits_any(self, trial: Trial) -> bool:
        return any(self._fitting.suits(trial, device) for device in self._ledger.devices.values())

    def _make_room_for(self, trial: Trial, devices: Iterable[Device]) -> bool:
        """Makes room on one of these devices; returns whether there will be enough."""
        able = [(self._missing(trial, one), one.number, one) for one in devices if self._would_do(trial, one)]
        return any(
            # Unless it gets a lane of its own, it uses one of the lanes, or a new one of that size.
            missing <= 0 or self._free(one, missing, own=0 if trial.is_apart else one.context + one.shared)
            for missing, _, one in sorted(able, key=lambda i: i[:2])
        )

    @property
    def _anything_runs(self) -> bool:
        return any(device.active for device in self._ledger.devices.values())

    def _would_do(self, trial: Trial, device: Device) -> bool:
        if not self._fitting.suits(trial, device):
            return False
        whole = trial.expected is None or trial.wants_all
        return not device.active if whole else device.seats > 0 and self._company.protection.tolerates(trial, device)

    def _missing(self, trial: Trial, device: Device) -> int:
        """Bytes the trial lacks there once everything that running trials do not need was returned."""
        if trial.wants_all:
            return sum(one.rest.taken for one in self._paused_on(device))
        if trial.expected is None:
            return 0
        if trial.is_apart:
            # It starts in no lane that has a paused trial.
            room = device.capacity - self._fitting.kept(device) - device.context - device.shared
        else:
            room = self._fitting.holes(device)[1]
        return trial.expected.peak - room

    def _free(
        self, device: Device, wanted: int, spared: Trial | None = None, partly: bool = False, own: int = 0
    ) -> bool:
        """Frees bytes held by paused trials, beginning with those that lose least.

        Args:
            device: Where they are.
            wanted: Bytes to free.
            spared: A trial that is not asked.
            partly: Whether less than `wanted` is of use, too.
            own: Bytes of the lanes that they empty which a trial that comes will use.

        Returns:
            Whether that yields `wanted` bytes; if not, nothing is asked for unless `partly`.
        """
        there = [trial for trial in self._paused_on(device) if trial is not spared]
        freed = sum(one.rest.movable for one in there if one.rest.is_leaving)
        gone = [one for one in there if one.rest.is_leaving and not one.rest.movable]
        steps: dict[int, tuple[Trial, bool]] = {}
        for trial, parks in self._by_loss(there):
            if freed + self._freed_by(gone, own) >= wanted:
                break
            # A trial that leaves instead of parking frees all it holds (see `gone`): uncount its movable bytes.
            freed += trial.rest.movable * (1 if parks else -(trial.id in steps))
            if not parks:
                gone.append(trial)
            steps[trial.id] = trial, parks
        freed += self._freed_by(gone, own)
        if freed < wanted and not partly:
            return False
        for trial, parks in steps.values():
            if parks:
                trial.rest.is_leaving = True
                self._ledger.out.append(do.ParkTrial(trial.id))
            else:
                self._evict(trial)
        return freed >= wanted

    def _freed_by(self, gone: list[Trial], own: int) -> int:
        """Bytes free once these trials have left, if `own` bytes of the lanes they empty are kept."""
        freed, lanes = 0, 0
        for lane in {trial.lane: None for trial in gone}:
            assert lane is not None
            left = [trial for trial in lane.paused.values() if trial in gone]
            resting = sum(trial.rest.taken for trial in left)
            freed += resting
            if lane.residents or len(left) < len(lane.paused):
                continue
            # After its last trial, the whole lane can be returned. A retiring lane is of no use to a trial that comes.
            kept = lane.asked - self._fitting.slack(lane) - resting
            freed, lanes = (freed + kept, lanes) if lane.retiring else (freed, lanes + kept)
        return freed + max(0, lanes - own)

    def _by_loss(self, trials: Iterable[Trial]) -> list[tuple[Trial, bool]]:
        """Trials that could make room, least loss first, and whether by parking; twice if they could park or leave."""
        able = [trial for trial in trials if not trial.rest.is_leaving and not trial.withdrawn]
        parks = [(trial, True) for trial in able if trial.rest.movable]
        saved = sorted((trial for trial in able if trial.rest.saved), key=lambda trial: not trial.held)
        unsaved = [] if self._anything_runs else [trial for trial in able if not trial.rest.saved]
        return [*parks, *((trial, False) for trial in [*saved, *unsaved])]

    def _paused_on(self, device: Device) -> list[Trial]:
        return [trial for trial in self._paused.values() if trial.lane is not None and trial.lane.device is device]

    def _evict(self, trial: Trial) -> None:
        if not trial.rest.is_leaving:
            trial.rest.is_leaving, trial.rest.movable = True, 0
            self._ledger.out.append(do.StopTrial(trial.id))

    def _go_on(self, trial: Trial, lane: Lane) -> None:
        del lane.paused[trial.id], self._paused[trial.id], self._released[trial.id]
        trial.rest = Rest()
        self._company.starts(trial, lane.device)
        lane.residents[trial.id] = trial
        lane.least = 0
        self._line.resumed(trial)
        self._ledger.out.append(do.ResumeTrial(trial.id))
        self._ledger.touch(lane.device)


def _loss(trial: Trial) -> tuple[bool, bool, bool, int]:
    """What is lost if the trial leaves: least with a checkpoint, then if it is held, then with few iterations."""
    return trial.rest.is_leaving, not trial.rest.saved, not trial.held, trial.progress.iterations
