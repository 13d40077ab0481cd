"""What lanes say of themselves: what they hold, that nothing moves in them, that they are gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cotune.packer import events as ev
from cotune.packer.endings import Endings
from cotune.packer.learning import Learning
from cotune.packer.ledger import Ledger
from cotune.packer.state import Lane, Trial

LEAK_GROWTH = 64 << 20
STOP_GRACE = 5.0
STOP_GRACE_SHARED = 30.0
OVERDUE_FLOOR = 1800.0


class LaneEvents:
    """Brings the books of lanes up to date, and ends lanes that leak or hang.

    Args:
        ledger: Has the lanes.
        trials: All that are not over, by number.
        withdrawn: Those of them that nobody wants any more.
        endings: Decides what becomes of trials whose lane is gone.
        learning: Hears of trials that come to no iteration.
        left: Called with each of these before.
        iteration_timeout: As in `PackerOptions`.
    """

    def __init__(
        self,
        ledger: Ledger,
        trials: dict[int, Trial],
        withdrawn: dict[int, Trial],
        endings: Endings,
        learning: Learning,
        left: Callable[[Trial], None],
        iteration_timeout: float | None,
    ) -> None:
        self._ledger = ledger
        self._trials = trials
        self._withdrawn = withdrawn
        self._endings = endings
        self._learning = learning
        self._left = left
        self._iteration_timeout = iteration_timeout

    @property
    def handlers(self) -> dict[type[ev.Event], Callable[[Any], None]]:
        return {
            ev.LaneReady: self._lane_ready,
            ev.LaneResized: self._lane_resized,
            ev.LaneHolds: self._lane_holds,
            ev.LaneQuiet: self._lane_quiet,
            ev.LaneLost: self._lane_lost,
            ev.Tick: self._tick,
        }

    def _lane_ready(self, event: ev.LaneReady) -> None:
        lane = self._ledger.lanes.get(event.lane)
        if lane is None:
            return
        lane.ready = True
        grown = event.context - lane.context
        lane.context = event.context
        device = lane.device
        device.context = max(device.context, event.context) if device.knows_context else event.context
        device.knows_context = True
        # A guess that was too low must not eat into what the trial was promised.
        if grown > 0 and lane.residents and not lane.closing:
            self._ledger.ensure(lane, lane.asked + grown)
        self._ledger.touch(lane.device)

    def _lane_resized(self, event: ev.LaneResized) -> None:
        lane = self._ledger.lanes.get(event.lane)
        if lane is not None:
            self._ledger.resized(lane, event.quota)

    def _lane_holds(self, event: ev.LaneHolds) -> None:
        lane = self._ledger.lanes.get(event.lane)
        if lane is None:
            return
        lane.shared, lane.residue = event.shared, event.residue
        lane.device.shared = max(lane.device.shared, event.shared)
        if lane.first_residue is None and lane.served:
            lane.first_residue = event.residue
        grown = 0 if lane.first_residue is None else event.residue - lane.first_residue
        leaked = grown > LEAK_GROWTH or event.residue > lane.device.full // 4
        lane.retiring = lane.retiring or event.tainted or leaked
        self._ledger.ensure_need(lane)
        self._ledger.recycle(lane)
        self._ledger.touch(lane.device)

    def _lane_quiet(self, event: ev.LaneQuiet) -> None:
        lane = self._ledger.lanes.get(event.lane)
        trial = self._trials.get(event.holder) if event.holder is not None else None
        if lane is None or trial is None or trial.lane is not lane:
            return
        limit = self._iteration_timeout
        if limit is None and trial.iterations >= 3:
            limit = max(OVERDUE_FLOOR, 20 * trial.longest)
        if limit is not None and event.seconds > limit:
            self._kill(lane, trial)
        else:
            self._learning.stalled(trial, lane, event)

    def _tick(self, event: ev.Tick) -> None:
        for trial in list(self._withdrawn.values()):
            lane = trial.lane
            if lane is None or lane.closing or trial.withdrawn_at is None:
                continue
            grace = STOP_GRACE_SHARED if lane.residents.keys() - {trial.id} else STOP_GRACE
            if event.time - trial.withdrawn_at > max(grace, 3 * trial.longest):
                self._kill(lane, trial)

    def _kill(self, lane: Lane, trial: Trial) -> None:
        if not lane.closing:
            lane.overdue = trial.id
            self._ledger.close(lane, kill=True)

    def _lane_lost(self, event: ev.LaneLost) -> None:
        lane = self._ledger.lanes.get(event.lane)
        if lane is None:
            return
        paused = set(lane.paused)
        for trial in self._ledger.forget(lane):
            self._left(trial)
            self._endings.lane_lost(trial, lane, trial.id in paused, event)
