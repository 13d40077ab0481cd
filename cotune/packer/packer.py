"""The brain: what happened goes in, what to do comes out.

No I/O, no threads, no clock: time comes with the events, so a simulator on a virtual clock, a test and a cluster
run exactly this code. One `handle()` call brings the state up to date and then places as many waiting trials as fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cotune.demand import Demand, format_bytes
from cotune.packer import events as ev
from cotune.packer import instructions as do
from cotune.packer.events import Outcome
from cotune.packer.fitting import Fitting
from cotune.packer.grants import Grants
from cotune.packer.ledger import Ledger
from cotune.packer.line import Line
from cotune.packer.placement import Placement
from cotune.packer.policies import Makespan, Policy
from cotune.packer.protection import Protection
from cotune.packer.snapshot import DeviceView, LaneView, PackerView, WaitingView
from cotune.packer.state import Device, Lane, Trial
from cotune.packer.width import WidthControl

PROBE_ITERATIONS = 2
LEAK_GROWTH = 64 << 20
STOP_GRACE = 5.0
STOP_GRACE_SHARED = 30.0
OVERDUE_FLOOR = 1800.0
MAX_SLOWDOWN = 1.25


@dataclass(frozen=True, slots=True)
class PackerOptions:
    """The brain's settings.

    Attributes:
        width: Lanes per device, or None to find it.
        residents: Trials that may share a lane by turns.
        policy: The order in which waiting trials are tried.
        max_failures: How often a trial that raised is tried again.
        iteration_timeout: Seconds between two iteration boundaries after which a trial is overdue; None for half
            an hour or 20 times its longest iteration, whichever is more, once three iterations were seen.
        patience: How many trials may overtake a trial that does not fit before a device is kept free for it.
        grants: Whether idle room is lent to trials that split their batches.
        max_slowdown: By what factor a trial with a priority above 0 may be slowed down by others on its device.
    """

    width: int | None = None
    residents: int = 1
    policy: Policy = field(default_factory=Makespan)
    max_failures: int = 0
    iteration_timeout: float | None = None
    patience: int = 8
    grants: bool = True
    max_slowdown: float = MAX_SLOWDOWN


class Packer:
    """Decides which trial runs where, in which lane, with which quota, and what happens when that goes wrong."""

    def __init__(self, options: PackerOptions | None = None) -> None:
        self._options = options = options or PackerOptions()
        self._protection = Protection(options.max_slowdown)
        self._fitting = Fitting(options.residents, options.policy, self._protection)
        self._fitting.admits = self._has_turn
        self._ledger = Ledger(self._fitting)
        self._line = Line(options.policy, self._fitting, by_persistent=options.residents > 1)
        self._placement = Placement(
            options.policy,
            options.residents,
            options.patience,
            self._ledger,
            self._line,
            self._fitting,
            self._protection,
        )
        self._grants = Grants(self._ledger, self._line, options.grants)
        self._trials: dict[int, Trial] = {}
        self._withdrawn: dict[int, Trial] = {}
        self._arrivals = 0
        self._found = 0
        self._now = 0.0
        self._handlers: dict[type[ev.Event], Callable[[Any], None]] = {
            ev.DeviceFound: self._device_found,
            ev.DeviceChanged: self._device_changed,
            ev.DeviceLost: self._device_lost,
            ev.TrialAdded: self._trial_added,
            ev.TrialWithdrawn: self._trial_withdrawn,
            ev.LaneReady: self._lane_ready,
            ev.LaneResized: self._lane_resized,
            ev.LaneHolds: self._lane_holds,
            ev.LaneQuiet: self._lane_quiet,
            ev.LaneLost: self._lane_lost,
            ev.IterationsDone: self._iterations_done,
            ev.GrantChanged: self._grants.changed,
            ev.TrialEnded: self._trial_ended,
            ev.Tick: self._tick,
        }

    def handle(self, event: ev.Event) -> list[do.Instruction]:
        """Takes in what happened and returns what to do, in order.

        Events about lanes and trials that are gone already are ignored: a body may report late.
        """
        self._now = event.time
        self._handlers[type(event)](event)
        self._placement.place(is_idle=len(self._trials) == len(self._line))
        self._grants.review()
        if self._options.residents > 1:
            self._give_turns()
        self._ledger.stirred.clear()
        out, self._ledger.out = self._ledger.out, []
        return out

    # ---- queries, no side effect

    @property
    def unfinished(self) -> int:
        """Trials that are waiting or running."""
        return len(self._trials)

    @property
    def waiting(self) -> int:
        return len(self._line)

    @property
    def seats(self) -> int:
        """How many more trials could run at once as far as lanes go; memory may allow fewer."""
        return self._ledger.pool.seats

    @property
    def breadth(self) -> int:
        """Trials that run at once when every lane is taken."""
        return self._ledger.pool.breadth * self._options.residents

    def lane_of(self, trial: int) -> tuple[int, str] | None:
        """The lane and device a trial runs in."""
        lane = self._trials[trial].lane if trial in self._trials else None
        return (lane.id, lane.device.name) if lane else None

    def demand_of(self, trial: int) -> Demand | None:
        """What an unfinished trial was measured to need."""
        return self._trials[trial].demand if trial in self._trials else None

    def slowdown_of(self, trial: int) -> float | None:
        """By what factor others have slowed an unfinished trial with priority, on average, as measured."""
        return self._protection.slowdown_of(self._trials[trial]) if trial in self._trials else None

    def why_waiting(self, trial: int) -> str | None:
        """Why a trial waits, with figures; None if it does not."""
        state = self._trials.get(trial)
        return self._placement.why(state) if state and state.lane is None else None

    def snapshot(self, max_waiting: int = 8) -> PackerView:
        devices = tuple(
            DeviceView(
                device.name,
                device.capacity,
                device.held,
                device.width.width,
                tuple(
                    LaneView(lane.id, device.name, lane.quota, tuple(lane.residents), lane.ready)
                    for lane in device.lanes.values()
                ),
            )
            for device in self._ledger.devices.values()
        )
        waiting = tuple(WaitingView(trial.id, self._placement.why(trial)) for trial in self._line.first(max_waiting))
        return PackerView(devices, waiting, len(self._line))

    # ---- devices

    def _device_found(self, event: ev.DeviceFound) -> None:
        if event.device in self._ledger.devices:
            return self._device_changed(ev.DeviceChanged(event.time, event.device, event.capacity))
        policy = self._options.policy
        fixed = self._options.width or (event.max_width if policy.packs else None)
        width = WidthControl(event.max_width, fixed, gain=policy.gain, guesses=policy.guesses)
        self._found += 1
        device = Device(
            event.device, self._found, event.capacity, event.context, width, event.max_width, event.capacity
        )
        self._ledger.add(device)

    def _device_changed(self, event: ev.DeviceChanged) -> None:
        device = self._ledger.devices.get(event.device)
        if device is not None:
            self._ledger.change(device, event.capacity)

    def _device_lost(self, event: ev.DeviceLost) -> None:
        device = self._ledger.devices.get(event.device)
        if device is None:
            return
        self._placement.forget(device)
        for trial in self._ledger.remove(device):
            self._left(trial)
            self._retry_or_stop(trial, f"{event.device} is gone")
        if not self._ledger.devices:
            for trial in list(self._trials.values()):
                self._conclude(trial, Outcome.FAILED, "DeviceError", f"{event.device}, the last device, is gone")

    # ---- trials

    def _trial_added(self, event: ev.TrialAdded) -> None:
        if event.trial in self._trials:
            return
        trial = Trial(
            event.trial,
            self._arrivals,
            event.kind,
            event.features,
            event.priority,
            event.max_steps,
            event.expected,
            event.seconds,
            event.time,
        )
        self._arrivals += 1
        self._trials[trial.id] = trial
        self._protection.joined(trial)
        self._line.join(trial)

    def _trial_withdrawn(self, event: ev.TrialWithdrawn) -> None:
        trial = self._trials.get(event.trial)
        if trial is None or trial.withdrawn_at is not None:
            return
        trial.withdrawn_at = event.time
        self._withdrawn[trial.id] = trial
        if trial.lane is None:
            self._conclude(trial, Outcome.STOPPED, reason="withdrawn before it ran")
        else:
            self._ledger.out.append(do.StopTrial(trial.id))

    def _iterations_done(self, event: ev.IterationsDone) -> None:
        trial = self._trials.get(event.trial)
        if trial is None or trial.lane is None:
            return
        lane, device = trial.lane, trial.lane.device
        is_first = trial.iterations == 0
        trial.iterations += event.count
        trial.seconds += event.seconds
        self._ledger.stirred.add(device)
        self._options.policy.ran(trial.id, trial.group, event.seconds)
        if event.count:
            trial.longest = max(trial.longest, event.seconds / event.count)
        self._grants.ran(trial, event)
        if event.concurrency == 1 and self._protection.ran(trial, event.count, event.seconds):
            self._ledger.touch(device)
        if not is_first and event.concurrency == 1:
            # The first iteration carries the trial's set-up.
            device.width.measured(trial.id, event.count, event.seconds, device.active)
        before = trial.seen or Demand(0, 0)
        persistent = max(before.persistent, event.persistent)
        # What several micro-batches at once take is the grant's, not what the trial needs.
        ephemeral = event.ephemeral if event.concurrency == 1 else before.ephemeral
        peak = max(before.peak, event.persistent + ephemeral)
        trial.seen = Demand(persistent, peak - persistent, before.busy if event.busy is None else event.busy)
        width, demand = device.width.width, trial.demand
        if trial.iterations >= PROBE_ITERATIONS or trial.demand is not None:
            self._believe(trial, lane)
        device.width.review(device.active, bool(self._line))
        if trial.demand != demand or device.width.width != width:
            self._ledger.touch(device)

    def _believe(self, trial: Trial, lane: Lane) -> None:
        """Takes what was seen of a trial for its demand, and acts on it."""
        before = trial.demand
        trial.believe(trial.seen)
        if trial.demand is None:
            return
        if before is None:
            self._line.judge_hint(trial, trial.demand.peak)
        if before is None or trial.demand.peak != before.peak:
            self._line.model(trial).observe_demand(trial.id, trial.features, trial.demand)
        if lane.device.active == 1 and len(lane.residents) == 1:
            lane.device.width.guess(trial.demand.busy)
        self._ledger.ensure_need(lane)

    def _trial_ended(self, event: ev.TrialEnded) -> None:
        trial = self._trials.get(event.trial)
        if trial is None or trial.lane is None:
            return
        lane, granted = trial.lane, trial.granted
        if event.outcome in (Outcome.DONE, Outcome.STOPPED):
            self._believe(trial, lane)
            if trial.iterations == 1:
                # There is no later one to go by, and all of its kind carry their set-up.
                lane.device.width.measured(trial.id, 1, trial.seconds, lane.device.active)
                lane.device.width.review(lane.device.active, bool(self._line))
        self._leave(trial)
        if event.outcome is Outcome.DONE:
            if trial.seconds > 0:
                self._line.model(trial).observe_seconds(trial.id, trial.features, trial.seconds)
            self._conclude(trial, Outcome.DONE)
        elif event.outcome is Outcome.STOPPED or trial.withdrawn_at is not None:
            self._retry_or_stop(trial, "stopped by nobody we know")
        elif event.outcome is Outcome.OUT_OF_MEMORY and granted > 1:
            # It says nothing of what the trial needs by itself.
            trial.refused = granted if not trial.refused else min(trial.refused, granted)
            self._retry_or_stop(trial, f"out of memory with {granted} micro-batches at once: goes on without")
        elif event.outcome is Outcome.OUT_OF_MEMORY:
            self._out_of_memory(trial, lane, event)
        else:
            self._failed(trial, event.error, event.detail, event.final)
        lane.served = True
        self._ledger.recycle(lane)
        self._ledger.touch(lane.device)

    def _failed(self, trial: Trial, error: str, reason: str, final: bool = False) -> None:
        trial.failures += 1
        if final or trial.failures > self._options.max_failures:
            self._conclude(trial, Outcome.FAILED, error, reason)
        else:
            self._retry_or_stop(trial, reason)

    def _out_of_memory(self, trial: Trial, lane: Lane, event: ev.TrialEnded) -> None:
        others = sum(other.demand.persistent for other in lane.residents.values() if other.demand)
        had = max(0, lane.asked - lane.base - others)
        trial.out_of_memories += 1
        # What was refused may not have been the last it would have asked for.
        trial.floor = max(trial.floor, had + had // 2, (event.needed or 0) * 5 // 4)
        largest = max((device.full - device.context for device in self._ledger.devices.values()), default=0)
        figures = (
            f"it needs {format_bytes(max(event.needed or 0, had))} or more; "
            f"it had {format_bytes(had)} in a lane of {format_bytes(lane.asked)}; "
            f"the largest device leaves {format_bytes(largest)} to one trial"
        )
        whole = lane.asked >= lane.device.capacity and self._fitting.is_whole(lane.asked)
        if trial.had_all and whole and not lane.residents and (trial.alone or not lane.residue):
            self._conclude(trial, Outcome.FAILED, "TrialTooLarge", figures)
            return
        expected = trial.demand or trial.hint or self._line.model(trial).demand(trial.features)
        trial.alone = trial.alone or trial.out_of_memories > 1 or expected is None
        if trial.demand is None:
            self._line.judge_hint(trial, trial.floor)
        learnt = trial.with_floor(expected or Demand(0, 0))
        self._line.model(trial).observe_demand(trial.id, trial.features, learnt)
        self._retry_or_stop(trial, f"out of memory: {figures}")

    def _retry_or_stop(self, trial: Trial, reason: str) -> None:
        if trial.withdrawn_at is not None:
            self._conclude(trial, Outcome.STOPPED, reason="withdrawn")
            return
        trial.iterations, trial.seconds, trial.since = 0, 0.0, self._now
        self._line.join(trial)
        self._ledger.out.append(do.RetryTrial(trial.id, reason))

    def _conclude(self, trial: Trial, outcome: Outcome, error: str = "", reason: str = "") -> None:
        self._line.leave(trial)
        del self._trials[trial.id]
        self._withdrawn.pop(trial.id, None)
        self._placement.unreserve(trial)
        slowdown = self._protection.slowdown_of(trial)
        self._protection.over(trial)
        self._ledger.out.append(
            do.ConcludeTrial(trial.id, outcome, error, reason, trial.seen, trial.expected, slowdown)
        )

    # ---- lanes

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
        limit = self._options.iteration_timeout
        if limit is None and trial.iterations >= 3:
            limit = max(OVERDUE_FLOOR, 20 * trial.longest)
        if limit is not None and event.seconds > limit:
            self._kill(lane, trial)

    def _tick(self, event: ev.Tick) -> None:
        for trial in list(self._withdrawn.values()):
            lane = trial.lane
            if lane is None or lane.closing or trial.withdrawn_at is None:
                continue
            grace = STOP_GRACE if len(lane.residents) == 1 else STOP_GRACE_SHARED
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
        for trial in self._ledger.forget(lane):
            self._left(trial)
            if trial.id == lane.overdue and trial.withdrawn_at is None:
                limit = self._options.iteration_timeout
                known = f"iteration_timeout={limit:g}, " if limit is not None else ""
                reason = f"no iteration boundary in time ({known}longest before: {trial.longest:.1f} s)"
                self._failed(trial, "TrialOverdue", reason)
            elif lane.closing or not lane.ready or trial.withdrawn_at is not None:
                self._retry_or_stop(trial, "its lane was closed")
            else:
                self._survived_crash(trial, event.detail or "its lane process died")

    def _survived_crash(self, trial: Trial, detail: str) -> None:
        trial.lane_deaths += 1
        trial.solo = trial.solo or trial.lane_deaths >= 2
        if trial.lane_deaths >= 3:
            self._conclude(trial, Outcome.FAILED, "LaneDied", f"three lane processes died under it; last: {detail}")
        else:
            self._retry_or_stop(trial, detail)

    def _leave(self, trial: Trial) -> None:
        if trial.lane is not None:
            trial.lane.least = 0
            del trial.lane.residents[trial.id]
            trial.lane = None
            self._left(trial)

    def _left(self, trial: Trial) -> None:
        """It is in no lane any more."""
        self._grants.left(trial)
        self._protection.left(trial)
        self._options.policy.ended(trial.id, trial.group)

    def _claim(self, trial: Trial) -> tuple[float, ...]:
        """Where a resident stands among those that want the turn: priority, and then as the policy has it."""
        key = self._options.policy.key(self._line.view(trial)) if self._options.policy.preempts else ()
        return (-trial.priority, *key)

    def _has_turn(self, trial: Trial, lane: Lane) -> bool:
        """Whether a trial would have the turn in this lane, or its part of it; else it would only take memory."""
        claim, others = self._claim(trial), [self._claim(other) for other in lane.residents.values()]
        if not self._options.policy.preempts and all(other == claim for other in others):
            return True
        return all(claim < other for other in others)

    def _give_turns(self) -> None:
        """Where priorities differ or the policy preempts, the first of a lane's residents has every turn."""
        for lane in [lane for device in self._ledger.stirred for lane in device.lanes.values()]:
            claims = {trial.id: self._claim(trial) for trial in lane.residents.values()}
            if len(claims) < 2 or (not self._options.policy.preempts and len(set(claims.values())) == 1):
                lane.turn = None
                continue
            first = min(claims, key=claims.__getitem__)
            if first != lane.turn:
                lane.turn = first
                self._ledger.out.append(do.GiveTurn(lane.id, first))
