"""The brain: events go in, instructions come out.

No I/O, no threads, no clock: time comes with the events, so a simulator on a virtual clock, a test and a cluster
run exactly this code. One `handle()` call updates the state and then places as many waiting trials as fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cotune.demand import Demand
from cotune.packer import events as ev
from cotune.packer import instructions as do
from cotune.packer.company import Company
from cotune.packer.critical import Critical
from cotune.packer.device_events import DeviceEvents
from cotune.packer.endings import Endings
from cotune.packer.fitting import Fitting
from cotune.packer.forecast import Forecast
from cotune.packer.grants import Grants
from cotune.packer.lane_events import LaneEvents
from cotune.packer.learning import Learning
from cotune.packer.ledger import Ledger
from cotune.packer.line import Line
from cotune.packer.options import PackerOptions
from cotune.packer.pauses import Pauses
from cotune.packer.placement import Placement
from cotune.packer.predictor import Predictor
from cotune.packer.protection import Protection
from cotune.packer.reasons import Reasons
from cotune.packer.reservation import Reservation
from cotune.packer.snapshot import DeviceView, LaneView, PackerView, WaitingView
from cotune.packer.trial import Trial
from cotune.packer.turn_rules import TurnRules
from cotune.trial import Outcome


class Packer:
    """Decides which trial runs where, in which lane, with which quota, and what follows a failure."""

    def __init__(self, options: PackerOptions | None = None) -> None:
        self.options = options = options or PackerOptions()
        options.policy.judged = options.judged
        protection = Protection(options.max_slowdown)
        self._fitting = Fitting(options, protection)
        self._ledger = Ledger(self._fitting, reuse=self.options.reuse)
        predictor = Predictor(self._fitting)
        self._line = Line(options, predictor)
        critical = Critical(options.policy.spares_critical, self._ledger, self._line, predictor)
        self._company = Company(protection, critical)
        forecast = Forecast(self._fitting, predictor)
        self._reservation = Reservation(options.patience, self._ledger, self._line, self._fitting, forecast)
        self._placement = Placement(
            options, self._ledger, self._line, predictor, self._fitting, self._company, self._reservation, forecast
        )
        self._reasons = Reasons(self._ledger, self._fitting, self._company)
        self._grants = Grants(self._ledger, predictor, options.grants)
        self._turns = TurnRules(options.policy, self._ledger, self._line)
        self._fitting.admits = self._turns.has_turn
        self._pauses = Pauses(self._ledger, self._line, predictor, self._fitting, self._company)
        self._learning = Learning(options.policy, self._ledger, self._line, predictor, self._grants, self._company)
        self._endings = Endings(options, self._ledger, self._line, predictor, self._fitting, self._over)
        self._trials: dict[int, Trial] = {}
        self._withdrawn: dict[int, Trial] = {}
        self._arrivals = 0
        devices = DeviceEvents(options, self._ledger, self._reservation, self._endings, self._left)
        lanes = LaneEvents(options, self._ledger, self._endings, self._learning, self._left)
        self._of_lanes = lanes.handlers
        self._of_trials: dict[type[ev.TrialEvent], Callable[[Trial, Any], None]] = {
            ev.TrialWithdrawn: self._withdraw,
            ev.TrialHeld: self._hold,
            ev.TrialReleased: self._pauses.release,
            ev.TrialPaused: self._paused,
            ev.TrialParked: self._parked,
            ev.IterationsDone: self._progressed,
            ev.GrantChanged: self._grants.changed,
            ev.TrialEnded: self._ended,
        }
        self._of_others: dict[type[ev.Event], Callable[[Any], None]] = {
            **devices.handlers,
            ev.TrialAdded: self._add,
            ev.AllTrialsAdded: self._close,
            ev.Tick: lambda event: lanes.kill_overdue(self._withdrawn.values()),
        }

    def handle(self, *events: ev.Event) -> list[do.Instruction]:
        """Processes what has happened and returns the resulting instructions, in order.

        Events about lanes and trials that are gone are ignored: a body may report late.

        Args:
            events: One event, or several of one moment, such as devices found together: of trials that wait meanwhile
                the first device would take as many as it can hold.
        """
        for event in events:
            self._take_in(event)
        self._place()
        if self._is_idle and not self._ledger.out and not self._pauses.is_making_room and self._ledger.give_up_gone():
            # Nothing else will run meanwhile: what is there has to do.
            self._place()
        self._grants.review(bool(self._line) or self._pauses.wanted)
        if self.options.residents > 1:
            self._turns.review()
        self._ledger.stirred.clear()
        return self.hand_over()

    def hand_over(self) -> list[do.Instruction]:
        """Returns, once, what a call of `handle()` had decided when it raised, as a user's policy may."""
        out, self._ledger.out = self._ledger.out, []
        return out

    def _take_in(self, event: ev.Event) -> None:
        self._ledger.now = event.time
        if isinstance(event, ev.TrialEvent):
            trial = self._trials.get(event.trial)
            if trial is not None:
                self._of_trials[type(event)](trial, event)
        elif isinstance(event, ev.LaneEvent):
            lane = self._ledger.lanes.get(event.lane)
            if lane is not None:
                self._of_lanes[type(event)](lane, event)
        else:
            self._of_others[type(event)](event)

    def _place(self) -> None:
        self._pauses.resume()
        self._placement.place(self._is_idle)
        self._pauses.make_room()
        self._pauses.move()

    @property
    def _is_idle(self) -> bool:
        """Whether nothing runs."""
        return len(self._trials) == len(self._line) + self._pauses.outside

    # ---- queries, no side effect

    @property
    def unfinished(self) -> int:
        """Trials that wait, run or are held."""
        return len(self._trials)

    @property
    def is_open(self) -> bool:
        """Whether more trials may come: the owner has not sent `AllTrialsAdded` yet."""
        return self._line.is_open

    @property
    def waiting(self) -> int:
        return len(self._line)

    @property
    def held(self) -> int:
        """Held trials that do not run (any more)."""
        return self._pauses.held

    @property
    def seats(self) -> int:
        """How many more trials could run at once by the number of lanes; memory may allow fewer."""
        return self._ledger.pool.seats

    @property
    def breadth(self) -> int:
        """Trials that run at once when every lane is in use."""
        return self._ledger.pool.breadth * self.options.residents

    def device_of(self, trial: int) -> str | None:
        """The device an unfinished trial runs on."""
        lane = self._trials[trial].lane if trial in self._trials else None
        return lane.device.name if lane else None

    def demand_of(self, trial: int) -> Demand | None:
        """The measured demand of an unfinished trial."""
        return self._trials[trial].demand if trial in self._trials else None

    def proven_widths(self) -> list[tuple[int, int, int]]:
        """For each device with a proven width: bytes, most lanes, and the number of lanes measured to pay."""
        devices = self._ledger.devices.values()
        return [(device.full, device.most, device.width.proven) for device in devices if device.width.proven]

    def shared(self) -> int | None:
        """Bytes of objects that a lane's trials share, the most of all lanes; None if no lane tells."""
        return max((lane.shared for lane in self._ledger.lanes.values() if lane.has_iterated), default=None)

    def slowdown_of(self, trial: int) -> float | None:
        """Measured average factor by which others slowed an unfinished trial with priority."""
        return self._company.protection.slowdown_of(self._trials[trial]) if trial in self._trials else None

    def why_waiting(self, trial: int) -> str | None:
        """Why a trial waits, with figures; None if it does not wait."""
        state = self._trials.get(trial)
        if state is None or state.lane is not None:
            return None
        return "it is held" if state.held else self._reasons.why(state)

    def snapshot(self) -> PackerView:
        """A view of the current state."""
        devices = tuple(
            DeviceView(
                device.name,
                device.capacity,
                device.taken,
                device.width.width,
                tuple(
                    LaneView(lane.id, lane.quota, tuple(lane.residents), lane.ready, tuple(lane.paused))
                    for lane in device.lanes.values()
                ),
            )
            for device in self._ledger.devices.values()
        )
        head = self._line.head()
        first = WaitingView(head.id, self._reasons.why(head)) if head is not None else None
        return PackerView(devices, first, len(self._line))

    # ---- trials

    def _add(self, event: ev.TrialAdded) -> None:
        if event.trial in self._trials:
            return
        trial = Trial(
            event.trial,
            self._arrivals,
            event.kind,
            event.features,
            event.priority,
            hint=event.expected,
            seconds_hint=event.seconds,
            max_steps=event.max_steps,
            since=event.time,
            attempts=event.attempts,
            lane_deaths=event.lane_deaths,
            failures=event.failures,
            alone=event.lane_deaths > 1,
        )
        self._arrivals += 1
        self._trials[trial.id] = trial
        self._company.protection.joined(trial)
        self._line.join(trial)
        if event.held:
            self._pauses.hold(trial)

    def _close(self, _event: ev.AllTrialsAdded) -> None:
        self._line.is_open = False

    def _withdraw(self, trial: Trial, event: ev.TrialWithdrawn) -> None:
        if trial.pressed_at is None and not event.patient:
            trial.pressed_at = event.time
        if trial.withdrawn:
            return
        trial.withdrawn = True
        self._withdrawn[trial.id] = trial
        if trial.lane is None:
            self._endings.conclude(trial, Outcome.STOPPED, reason="withdrawn before it ran")
        else:
            self._ledger.out.append(do.StopTrial(trial.id))
            # It needs the turn to leave.
            self._ledger.stirred[trial.lane.device] = None

    def _progressed(self, trial: Trial, event: ev.IterationsDone) -> None:
        if trial.lane is not None and not trial.is_paused:
            self._learning.progressed(trial, trial.lane, event)

    def _ended(self, trial: Trial, event: ev.TrialEnded) -> None:
        if trial.lane is None:
            return
        lane, granted, was_paused = trial.lane, trial.granted, trial.is_paused
        if event.outcome in (Outcome.DONE, Outcome.STOPPED) and not was_paused:
            self._learning.ended(trial, lane, stopped=event.outcome is Outcome.STOPPED)
        elif event.outcome is Outcome.FAILED:
            self._learning.failed(trial, lane)
        lane.least = 0
        lane.residents.pop(trial.id, None)
        lane.paused.pop(trial.id, None)
        trial.lane = None
        self._learning.left(lane)
        self._left(trial)
        self._endings.attempt(trial, lane, granted, was_paused, event)
        lane.served += 1
        self._ledger.recycle(lane)
        self._ledger.touch(lane.device)

    # ---- pauses

    def _hold(self, trial: Trial, _event: ev.TrialHeld) -> None:
        self._reservation.lift(trial)
        self._pauses.hold(trial)

    def _paused(self, trial: Trial, event: ev.TrialPaused) -> None:
        if trial.lane is not None and trial.pausing:
            if trial.demand is None:
                self._learning.believe(trial, trial.lane)
            self._stopped_running(trial)
            self._pauses.paused(trial, event)
            self._learning.left(trial.lane)

    def _parked(self, trial: Trial, event: ev.TrialParked) -> None:
        if trial.is_paused:
            self._pauses.parked(trial, event)

    def _left(self, trial: Trial) -> None:
        """Cleans up after a trial that is no longer in a lane."""
        self._pauses.left(trial)
        self._stopped_running(trial)

    def _stopped_running(self, trial: Trial) -> None:
        self._grants.left(trial)
        self._company.left(trial)
        self.options.policy.ended(trial.id, trial.group)

    def _over(self, trial: Trial) -> float | None:
        """Forgets a trial that is over for good; returns its measured slowdown."""
        del self._trials[trial.id]
        self._withdrawn.pop(trial.id, None)
        self._reservation.lift(trial)
        self._pauses.over(trial)
        return self._company.protection.over(trial)
