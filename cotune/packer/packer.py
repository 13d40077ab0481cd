"""The brain: what happened goes in, what to do comes out.

No I/O, no threads, no clock: time comes with the events, so a simulator on a virtual clock, a test and a cluster
run exactly this code. One `handle()` call brings the state up to date and then places as many waiting trials as fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from cotune.demand import Demand, format_bytes
from cotune.packer import events as ev
from cotune.packer import instructions as do
from cotune.packer.events import Outcome
from cotune.packer.fitting import Fitting, Place
from cotune.packer.ledger import Ledger
from cotune.packer.line import Line
from cotune.packer.policies import Makespan, Policy
from cotune.packer.snapshot import DeviceView, LaneView, PackerView, WaitingView
from cotune.packer.state import Device, Lane, Trial
from cotune.packer.width import WidthControl

PROBE_ITERATIONS = 2
LEAK_GROWTH = 64 << 20
STOP_GRACE = 5.0
STOP_GRACE_SHARED = 30.0
OVERDUE_FLOOR = 1800.0

# Such events free no room by themselves; if one does all the same, the holes of its device tell.
_QUIET = (ev.TrialAdded, ev.IterationsDone, ev.LaneReady, ev.LaneHolds, ev.LaneQuiet, ev.Tick)


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
    """

    width: int | None = None
    residents: int = 1
    policy: Policy = field(default_factory=Makespan)
    max_failures: int = 0
    iteration_timeout: float | None = None
    patience: int = 8


class Packer:
    """Decides which trial runs where, in which lane, with which quota, and what happens when that goes wrong."""

    def __init__(self, options: PackerOptions | None = None) -> None:
        self._options = options or PackerOptions()
        self._fitting = Fitting(self._options.residents)
        self._ledger = Ledger(self._fitting)
        self._line = Line(self._options.policy, self._ledger.devices)
        self._trials: dict[int, Trial] = {}
        self._arrivals = 0
        self._reserved: Device | None = None
        self._too_large = math.inf
        self._unprobed: set[str] = set()
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
            ev.TrialEnded: self._trial_ended,
            ev.Tick: self._tick,
        }

    def handle(self, event: ev.Event) -> list[do.Instruction]:
        """Takes in what happened and returns what to do, in order.

        Events about lanes and trials that are gone already are ignored: a body may report late.
        """
        self._ledger.news = self._options.residents > 1 or not isinstance(event, _QUIET)
        self._handlers[type(event)](event)
        self._place_waiting()
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
        per_lane = self._options.residents
        total = 0
        for device in self._ledger.devices.values():
            total += max(0, device.width.width - device.active) * per_lane
            total += sum(per_lane - len(lane.residents) for lane in device.lanes.values() if lane.residents)
        return total

    @property
    def breadth(self) -> int:
        """Trials that run at once when every lane is taken."""
        return sum(device.width.width for device in self._ledger.devices.values()) * self._options.residents

    def lane_of(self, trial: int) -> tuple[int, str] | None:
        """The lane and device a trial runs in."""
        lane = self._trials[trial].lane if trial in self._trials else None
        return (lane.id, lane.device.name) if lane else None

    def demand_of(self, trial: int) -> Demand | None:
        """What an unfinished trial was measured to need."""
        return self._trials[trial].demand if trial in self._trials else None

    def why_waiting(self, trial: int) -> str | None:
        """Why a trial waits, with figures; None if it does not."""
        state = self._trials.get(trial)
        return self._why(state) if state and state.lane is None else None

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
        waiting = tuple(WaitingView(trial.id, self._why(trial)) for trial in self._line.first(max_waiting))
        return PackerView(devices, waiting, len(self._line))

    # ---- devices

    def _device_found(self, event: ev.DeviceFound) -> None:
        if event.device in self._ledger.devices:
            return self._device_changed(ev.DeviceChanged(event.time, event.device, event.capacity))
        width = WidthControl(limit=event.max_width, fixed=self._options.width)
        self._ledger.add(Device(event.device, event.capacity, event.context, width, full=event.capacity))

    def _device_changed(self, event: ev.DeviceChanged) -> None:
        device = self._ledger.devices.get(event.device)
        if device is not None:
            self._ledger.change(device, event.capacity)

    def _device_lost(self, event: ev.DeviceLost) -> None:
        device = self._ledger.devices.get(event.device)
        if device is None:
            return
        if self._reserved is device:
            self._reserved = None
        for trial in self._ledger.remove(device):
            self._retry_or_stop(trial, f"{event.device} is gone")
        if not self._ledger.devices:
            for trial in list(self._trials.values()):
                self._conclude(trial, Outcome.FAILED, "DeviceError", f"{event.device}, the last device, is gone")

    # ---- trials

    def _trial_added(self, event: ev.TrialAdded) -> None:
        if event.trial in self._trials:
            return
        trial = Trial(event.trial, self._arrivals, event.kind, event.features, event.priority, event.max_steps)
        self._arrivals += 1
        self._trials[trial.id] = trial
        self._wait(trial)

    def _trial_withdrawn(self, event: ev.TrialWithdrawn) -> None:
        trial = self._trials.get(event.trial)
        if trial is None or trial.withdrawn_at is not None:
            return
        trial.withdrawn_at = event.time
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
        if event.count:
            trial.longest = max(trial.longest, event.seconds / event.count)
        if not is_first:
            # The first iteration carries the trial's set-up.
            device.width.measured(trial.id, event.count, event.seconds, device.active)
        before = trial.seen or Demand(0, 0)
        persistent = max(before.persistent, event.persistent)
        peak = max(before.peak, event.persistent + event.ephemeral)
        trial.seen = Demand(persistent, peak - persistent, before.busy if event.busy is None else event.busy)
        if trial.iterations >= PROBE_ITERATIONS or trial.demand is not None:
            self._believe(trial, lane)
        device.width.review(device.active, bool(self._line))
        self._ledger.touch(device)

    def _believe(self, trial: Trial, lane: Lane) -> None:
        """Takes what was seen of a trial for its demand, and acts on it."""
        before, trial.demand = trial.demand, trial.seen
        if trial.demand is None:
            return
        if before is None or trial.demand.peak != before.peak:
            self._line.model(trial).observe_demand(trial.id, trial.features, trial.demand)
        if lane.device.active == 1 and len(lane.residents) == 1:
            lane.device.width.guess(trial.demand.busy)
        self._ledger.ensure_need(lane)

    def _trial_ended(self, event: ev.TrialEnded) -> None:
        trial = self._trials.get(event.trial)
        if trial is None or trial.lane is None:
            return
        lane = trial.lane
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
        expected = trial.demand or self._line.model(trial).demand(trial.features)
        trial.alone = trial.alone or trial.out_of_memories > 1 or expected is None
        learnt = trial.with_floor(expected or Demand(0, 0))
        self._line.model(trial).observe_demand(trial.id, trial.features, learnt)
        self._retry_or_stop(trial, f"out of memory: {figures}")

    def _retry_or_stop(self, trial: Trial, reason: str) -> None:
        if trial.withdrawn_at is not None:
            self._conclude(trial, Outcome.STOPPED, reason="withdrawn")
            return
        trial.iterations, trial.seconds = 0, 0.0
        self._wait(trial)
        self._ledger.out.append(do.RetryTrial(trial.id, reason))

    def _conclude(self, trial: Trial, outcome: Outcome, error: str = "", reason: str = "") -> None:
        self._line.leave(trial)
        del self._trials[trial.id]
        self._unreserve(trial)
        self._ledger.out.append(do.ConcludeTrial(trial.id, outcome, error, reason, trial.seen))

    # ---- lanes

    def _lane_ready(self, event: ev.LaneReady) -> None:
        lane = self._ledger.lanes.get(event.lane)
        if lane is None:
            return
        lane.ready = True
        grown = event.context - lane.context
        lane.context = event.context
        lane.device.context = max(lane.device.context, event.context)
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
        for lane in list(self._ledger.lanes.values()):
            for trial in lane.residents.values():
                if trial.withdrawn_at is None or lane.closing:
                    continue
                grace = STOP_GRACE if len(lane.residents) == 1 else STOP_GRACE_SHARED
                if event.time - trial.withdrawn_at > max(grace, 3 * trial.longest):
                    self._kill(lane, trial)
                    break

    def _kill(self, lane: Lane, trial: Trial) -> None:
        if not lane.closing:
            lane.overdue = trial.id
            self._ledger.close(lane, kill=True)

    def _lane_lost(self, event: ev.LaneLost) -> None:
        lane = self._ledger.lanes.get(event.lane)
        if lane is None:
            return
        for trial in self._ledger.forget(lane):
            if trial.id == lane.overdue and trial.withdrawn_at is None:
                reason = f"no iteration boundary in time (longest before: {trial.longest:.1f} s)"
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

    # ---- placement

    def _wait(self, trial: Trial) -> None:
        self._line.join(trial)
        self._ledger.news = self._ledger.news or not self._is_hopeless(trial, trial.size)

    def _is_hopeless(self, trial: Trial, size: int) -> bool:
        """Whether a trial that needs no more found no place in the last search."""
        return size >= self._too_large or (trial.expected is None and trial.kind in self._unprobed)

    def _candidates(self, trial: Trial) -> Iterable[Device]:
        """Devices with a seat, less those kept free for another trial."""
        devices = self._ledger.with_seat.values()
        if self._reserved is None:
            return devices
        return [device for device in devices if device.reserved_for in (None, trial)]

    def _place_waiting(self) -> None:
        """Starts what fits. A search is spared where nothing has changed for the better since the last one."""
        if self._ledger.news:
            self._too_large, self._unprobed = math.inf, set()
        if not self._line or not self._ledger.with_seat:
            return
        for trial in self._line.sort(self._ledger.version):
            self._ledger.news = self._ledger.news or not self._is_hopeless(trial, trial.size)
        self._check_reservation()
        if not self._ledger.news:
            return
        reserved = self._reserved
        first_blocked = self._place_in_order()
        if reserved is not None and self._reserved is None:
            # Trials that were passed over for its sake may have the rest of the device now.
            first_blocked = self._place_in_order()
        if first_blocked is not None:
            self._reserve(first_blocked)

    def _place_in_order(self) -> Trial | None:
        """Starts what fits; returns the first trial in line that does not."""
        first_blocked: Trial | None = None
        self._too_large, self._unprobed = math.inf, set()
        favoured = self._reserved.reserved_for if self._reserved else None
        for size, trial in self._line:
            if trial is favoured:
                favoured = None
            elif (size >= self._too_large or self._unprobed) and self._is_hopeless(trial, size):
                if favoured is None and self._line.smallest >= self._too_large:
                    break
                continue
            if not self._ledger.with_seat:
                break
            self._line.appraise(trial)
            place = self._find(trial)
            if place is not None:
                self._start(trial, place)
                if first_blocked is not None:
                    first_blocked.overtaken += 1
                continue
            if trial.expected is None:
                self._unprobed.add(trial.kind)
            elif trial.size and self._options.residents == 1:
                roomiest = max((self._fitting.holes(d)[1] for d in self._candidates(trial)), default=0)
                self._too_large = min(self._too_large, trial.size, roomiest + 1)
            first_blocked = first_blocked or trial
        return first_blocked

    def _find(self, trial: Trial) -> Place | None:
        """A place now; turns in a lane of others only where no room for an own lane is under way."""
        found = self._fitting.find(trial, self._candidates(trial))
        if isinstance(found, Place):
            return found
        if self._make_room(found) or self._options.residents == 1 or trial.expected is None or trial.wants_all:
            return None
        shared = self._fitting.find(trial, self._candidates(trial), share=True)
        if isinstance(shared, Place):
            return shared
        self._make_room(shared)
        return None

    def _make_room(self, places: list[Place]) -> bool:
        """Has the bytes returned that are missing at one of these places; False if nobody can return them."""
        return any(self._ledger.reclaim(place.device, place.missing, keep=place.lane) for place in places)

    def _why(self, trial: Trial) -> str:
        """Why the trial waits, with figures."""
        if not self._ledger.with_seat:
            return "its turn has not come"
        devices = list(self._candidates(trial))
        if not devices:
            return "a device is kept free for a trial that has waited longer"
        found = self._fitting.find(trial, devices)
        if isinstance(found, Place):
            return "its turn has not come"
        reason = self._fitting.explain(trial, devices)
        for place in found:
            lanes = (lane for lane in place.device.lanes.values() if lane is not place.lane)
            if sum(lane.returning for lane in lanes) >= place.missing:
                return f"{reason}; it is being freed"
        return reason

    def _reserve(self, trial: Trial) -> None:
        """Keeps a device free for a trial that others have overtaken too often."""
        if trial.overtaken < self._options.patience or self._reserved is not None:
            return
        able = [device for device in self._ledger.devices.values() if self._fitting.suits(trial, device)]
        if able:
            self._reserved = max(able, key=lambda d: (d.capacity if trial.wants_all else 0, d.free, -d.active))
            self._reserved.reserved_for = trial

    def _check_reservation(self) -> None:
        """Lets go of a device that would no longer do for the trial it is kept free for."""
        trial = self._reserved.reserved_for if self._reserved else None
        if self._reserved and trial:
            self._line.appraise(trial)
            if not self._fitting.suits(trial, self._reserved):
                self._unreserve(trial)

    def _unreserve(self, trial: Trial) -> None:
        if self._reserved is not None and self._reserved.reserved_for is trial:
            self._reserved.reserved_for = None
            self._reserved = None
            self._ledger.news = True

    def _start(self, trial: Trial, place: Place) -> None:
        device, lane = place.device, place.lane
        if lane is None:
            lane = self._ledger.open(device, place.quota)
        else:
            self._ledger.resize(lane, place.quota)
        self._line.leave(trial)
        self._unreserve(trial)
        trial.overtaken = 0
        trial.had_all = lane.asked >= device.capacity and not lane.residents and not lane.residue
        trial.lane = lane
        lane.least = 0
        lane.residents[trial.id] = trial
        self._ledger.out.append(do.StartTrial(trial.id, lane.id))
        self._ledger.touch(device)
