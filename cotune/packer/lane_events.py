"""Events of lanes: what they hold, that nothing moves in them, that they are gone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from cotune.demand import MIB
from cotune.packer import events as ev
from cotune.packer.endings import Endings
from cotune.packer.learning import Learning
from cotune.packer.ledger import Ledger
from cotune.packer.options import PackerOptions
from cotune.packer.state import Lane
from cotune.packer.trial import Trial

LEAK_GROWTH = 64 * MIB
STOP_GRACE = 5.0
STOP_GRACE_SHARED = 30.0
# Seconds that count of the time between two ticks: in the rest perhaps nothing ran, as in a paused container.
MOST_A_TICK = 2.0
OVERDUE_FLOOR = 1800.0
# Lanes in a row that die before they are ready, after which only the ready ones are used for a while.
STILLBORN = 2


class LaneEvents:
    """Updates the state of lanes, and ends lanes that leak or hang.

    Args:
        options: When a trial is overdue.
        ledger: Holds the lanes.
        endings: Decides what becomes of trials whose lane is gone.
        learning: Is told of trials that make no iteration.
        left: Called first with each trial whose lane is gone.
    """

    def __init__(
        self,
        options: PackerOptions,
        ledger: Ledger,
        endings: Endings,
        learning: Learning,
        left: Callable[[Trial], None],
    ) -> None:
        self._iteration_timeout = options.iteration_timeout
        self._ledger = ledger
        self._endings = endings
        self._learning = learning
        self._left = left
        self._ticked = math.inf

    @property
    def handlers(self) -> dict[type[ev.LaneEvent], Callable[[Lane, Any], None]]:
        return {
            ev.LaneReady: self._ready,
            ev.LaneResized: lambda lane, event: self._ledger.resized(lane, event.quota),
            ev.LaneHolds: self._holds,
            ev.LaneQuiet: self._quiet,
            ev.LaneLost: self._lost,
        }

    def kill_overdue(self, withdrawn: Iterable[Trial]) -> None:
        """Ends lanes of withdrawn trials that do not reach a boundary; called at every `Tick`."""
        now = self._ledger.now
        asleep, self._ticked = max(0.0, now - self._ticked - MOST_A_TICK), now
        for trial in list(withdrawn):
            lane = trial.lane
            if lane is None or lane.closing or trial.pressed_at is None:
                continue
            trial.pressed_at = min(now, trial.pressed_at + asleep)
            grace = STOP_GRACE_SHARED if lane.residents.keys() - {trial.id} else STOP_GRACE
            if now - trial.pressed_at > max(grace, 3 * trial.longest):
                self._kill(lane, trial)

    def _ready(self, lane: Lane, event: ev.LaneReady) -> None:
        lane.ready, lane.device.stillborn = True, 0
        grown = event.context - lane.context
        lane.context = event.context
        device = lane.device
        device.start_seconds = 0.0 if device.start_seconds is None else event.time - lane.opened
        # A guess that was too low must not eat into what the trial was promised.
        if grown > 0 and lane.residents and not lane.closing:
            self._ledger.ensure(lane, lane.asked + grown)
        self._ledger.touch(lane.device)

    def _holds(self, lane: Lane, event: ev.LaneHolds) -> None:
        lane.shared, lane.residue = event.shared, event.residue
        if lane.served < 2:
            # The second trial's end is yet to come.
            lane.usual_residue = max(lane.usual_residue, event.residue)
        leaked = event.residue - lane.usual_residue > LEAK_GROWTH or event.residue > lane.device.full // 4
        lane.retiring = lane.retiring or event.tainted or leaked
        self._ledger.ensure_need(lane)
        self._ledger.recycle(lane)
        self._ledger.touch(lane.device)

    def _quiet(self, lane: Lane, event: ev.LaneQuiet) -> None:
        if event.holder is None:
            return
        trial = lane.residents.get(event.holder) or lane.paused.get(event.holder)
        if trial is None:
            return
        limit = self._iteration_timeout
        if limit is None and trial.progress.iterations >= 3:
            limit = max(OVERDUE_FLOOR, 20 * trial.longest)
        if limit is not None and event.seconds > limit:
            self._kill(lane, trial)
        else:
            self._learning.stalled(trial, lane, event)

    def _kill(self, lane: Lane, trial: Trial) -> None:
        if not lane.closing:
            lane.killed_for = trial.id
            self._ledger.close(lane, kill=True)

    def _lost(self, lane: Lane, event: ev.LaneLost) -> None:
        device = lane.device
        device.width.changed(event.time)
        if not lane.ready and not lane.closing:
            device.stillborn += 1
            up = sum(1 for other in device.lanes.values() if other.ready)
            if up and device.stillborn >= STILLBORN:
                device.width.refused(up)
        for trial, was_paused in self._ledger.forget(lane):
            self._left(trial)
            self._endings.lane_lost(trial, lane, was_paused, event)
