"""The simulated body: lanes, turns and trials as entries of a calendar."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from cotune.engines.base import Engine
from cotune.engines.simulated.lanes import Device, Lane, Run, busy
from cotune.engines.simulated.model import Costs, Ending, Work
from cotune.packer import events as ev
from cotune.packer import instructions as do
from cotune.packer.events import Outcome
from cotune.packer.interference import shared_speed
from cotune.trial import Report, TrialSpec

Happened = ev.Event | Report


class SimulatedEngine(Engine):
    """Runs imagined trials on imagined devices; `poll()` lets virtual time pass until something happens.

    Lanes run in parallel and slow each other down by the sum of what their trials use of the device; residents of a
    lane take turns evenly, or as `GiveTurn` says. A trial that exceeds its lane's quota runs out of memory; one with a
    grant gives that back first. What a grant does to others on the device is not in the model.

    Args:
        devices: What is there.
        model: What a trial is.
        costs: What acting costs.
    """

    def __init__(
        self,
        devices: Iterable[ev.DeviceFound],
        model: Callable[[TrialSpec], Work],
        costs: Costs | None = None,
    ) -> None:
        self._found = {found.device: found for found in devices}
        self._model = model
        self._costs = costs or Costs()
        self._time = 0.0
        self._count = 0
        self._calendar: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._out: list[Happened] = []
        self._devices = {name: Device() for name in self._found}
        self._lanes: dict[int, Lane] = {}
        self._runs: dict[int, Run] = {}
        self._saved: dict[int, int] = {}
        self._handlers: dict[type[do.Instruction], Callable[[Any], None]] = {
            do.OpenLane: self._open,
            do.ResizeLane: self._resize,
            do.CloseLane: self._close,
            do.StopTrial: self._stop,
            do.GiveTurn: self._give_turn,
            do.GrantTrial: self._grant,
            do.PauseTrial: self._pause,
            do.ResumeTrial: self._resume,
            do.ParkTrial: self._park,
        }

    # ---- the contract

    def start(self) -> list[ev.DeviceFound]:
        return list(self._found.values())

    def execute(self, instruction: do.Instruction, spec: TrialSpec | None = None) -> None:
        if isinstance(instruction, do.StartTrial):
            assert spec is not None
            self._start(instruction, spec)
        elif handler := self._handlers.get(type(instruction)):
            handler(instruction)

    def poll(self, timeout: float) -> list[Happened]:
        """What happens next; the clock jumps there, or by `timeout` seconds if nothing does before."""
        until = self._time + timeout
        while not self._out and self._calendar and self._calendar[0][0] <= until:
            self._time, _, act, what = heapq.heappop(self._calendar)
            act(what)
        if not self._out and timeout != float("inf"):
            self._time = until
        out, self._out = self._out, []
        return out

    def verdict(self, trial: int, attempt: int) -> None:
        run = self._runs.get(trial)
        if run is not None and run.attempt == attempt:
            run.unjudged = False
            if run.blocked:
                run.blocked = False
                self._reach(run)
                self._pace(run.lane.device)

    def answer(self, trial: int, attempt: int, payload: bytes) -> None:
        """Nothing to do: imagined trials ask nothing."""

    def wake(self) -> None:
        """Nothing to do: a poll never waits in real time."""

    def close(self) -> None:
        self._calendar.clear()
        self._lanes.clear()
        self._runs.clear()

    def now(self) -> float:
        return self._time

    def at(self, time: float, event: Happened) -> None:
        """Has something happen at a later time that the engine knows nothing of."""
        self._later(time - self._time, self._say, event)

    def _say(self, event: Happened) -> None:
        self._out.append(event)

    # ---- lanes

    def _open(self, instruction: do.OpenLane) -> None:
        device, found = self._devices[instruction.device], self._found[instruction.device]
        lane = Lane(instruction.lane, device, instruction.quota, found.context)
        self._lanes[lane.id] = device.lanes[lane.id] = lane
        self._later(self._costs.open, self._opened, lane)

    def _opened(self, lane: Lane) -> None:
        if not lane.gone:
            lane.ready = True
            self._out.append(ev.LaneReady(self._time, lane.id, lane.context))
            self._pace(lane.device)

    def _resize(self, instruction: do.ResizeLane) -> None:
        lane = self._lanes.get(instruction.lane)
        if lane is not None:
            lane.quota = max(instruction.quota, min(lane.quota, lane.held))
            self._later(self._costs.resize, self._resized, (lane, lane.quota))

    def _resized(self, answer: tuple[Lane, int]) -> None:
        lane, quota = answer
        if not lane.gone:
            self._out.append(ev.LaneResized(self._time, lane.id, quota))

    def _close(self, instruction: do.CloseLane) -> None:
        lane = self._lanes.get(instruction.lane)
        if lane is not None and not lane.gone:
            self._end_lane(lane, "killed" if instruction.kill else "closed", self._costs.close)

    def _end_lane(self, lane: Lane, detail: str, after: float = 0.0) -> None:
        """The lane's process ends, with whatever runs in it; its bytes are free when that is said."""
        holder = lane.holder
        lane.gone = True
        for run in list(lane.runs.values()):
            self._forget(run)
        self._later(after, self._lost, (lane, holder.trial if holder else None, detail))
        self._pace(lane.device)

    def _lost(self, what: tuple[Lane, int | None, str]) -> None:
        lane, holder, detail = what
        del self._lanes[lane.id], lane.device.lanes[lane.id]
        self._out.append(ev.LaneLost(self._time, lane.id, holder, detail))

    def _give_turn(self, instruction: do.GiveTurn) -> None:
        lane = self._lanes.get(instruction.lane)
        if lane is not None:
            lane.given = instruction.trial
            self._pace(lane.device)

    # ---- trials

    def _start(self, instruction: do.StartTrial, spec: TrialSpec) -> None:
        lane = self._lanes.get(instruction.lane)
        if lane is None or lane.gone:
            return
        work = self._model(spec)
        run = Run(spec.trial, spec.attempt, work, lane, self._costs.start + work.startup, settled=self._time)
        done = self._saved.get(spec.trial, 0) if work.checkpoints else 0
        run.counted = done
        run.progress = done * work.step_seconds
        run.reported = bisect_right(work.report_at, done)
        run.is_starting = run.startup > 0
        run.every = max(1, work.iterations // max(self._costs.progress, 1))
        self._runs[spec.trial] = lane.runs[spec.trial] = run
        self._pace(lane.device)

    def _stop(self, instruction: do.StopTrial) -> None:
        run = self._runs.get(instruction.trial)
        if run is None:
            return
        run.stopping = True
        if run.blocked or run.paused:
            self._finish(run, Outcome.STOPPED)
        else:
            run.booked = False
            self._pace(run.lane.device)

    def _grant(self, instruction: do.GrantTrial) -> None:
        run = self._runs.get(instruction.trial)
        if run is not None:
            run.granted = instruction.concurrency
            run.booked = False
            self._pace(run.lane.device)

    def _pause(self, instruction: do.PauseTrial) -> None:
        run = self._runs.get(instruction.trial)
        if run is not None:
            run.pausing = True
            run.booked = False
            self._pace(run.lane.device)

    def _rest(self, run: Run) -> None:
        """At a boundary: it waits from here on."""
        work = run.work
        run.pausing, run.paused = False, True
        run.granted, run.concurrency = None, 1
        saved = work.checkpoints and run.trial in self._saved
        self._out.append(ev.TrialPaused(self._time, run.trial, work.persistent, saved, work.movable))
        self._pace(run.lane.device)

    def _resume(self, instruction: do.ResumeTrial) -> None:
        run = self._runs.get(instruction.trial)
        if run is not None:
            run.paused, run.booked, run.parked, run.granted = False, False, 0, None
            self._pace(run.lane.device)

    def _park(self, instruction: do.ParkTrial) -> None:
        run = self._runs.get(instruction.trial)
        if run is not None:
            run.parked = run.work.movable
            self._out.append(ev.TrialParked(self._time, run.trial, run.parked))

    def _take_up(self, run: Run) -> None:
        """At a boundary: what was granted holds from here on."""
        if run.granted is not None:
            run.concurrency = run.most = run.granted
            run.granted = None
            self._out.append(ev.GrantChanged(self._time, run.trial, run.concurrency))

    def _reach(self, run: Run) -> None:
        """A trial has come to the boundary after iteration `run.goal`."""
        work, goal = run.work, run.goal
        if run.is_starting:
            run.is_starting = False
            self._pace(run.lane.device)
            return
        if goal > run.counted and self._is_short(run):
            return
        is_report = run.reported < len(work.report_at) and goal == work.report_at[run.reported]
        if is_report and run.unjudged:
            run.blocked = True
            return
        self._note_progress(run)
        if is_report:
            self._report(run)
        if run.stopping:
            self._finish(run, Outcome.STOPPED)
        elif goal >= work.iterations:
            self._reach_end(run)
        else:
            self._take_up(run)
            if run.pausing:
                self._rest(run)

    def _is_short(self, run: Run) -> bool:
        """Ends the trial if its lane's quota does not hold it."""
        work, at_once = run.work, run.concurrency
        others = sum(other.held for other in run.lane.runs.values() if other is not run)
        room = run.lane.quota - run.lane.context - others
        bursts = 0 < work.bursts < at_once
        if at_once > 1 and (bursts or work.persistent + work.peak(run.goal, at_once) > room):
            run.concurrency = 1
            self._out.append(ev.GrantChanged(self._time, run.trial, 1, at_once))
        needed = work.persistent + work.peak(run.goal)
        if needed <= room:
            return False
        self._finish(run, Outcome.OUT_OF_MEMORY, needed=needed)
        return True

    def _note_progress(self, run: Run) -> None:
        work, count = run.work, run.goal - run.counted
        if count > 0:
            largest = work.peak(run.goal, run.concurrency)
            seconds, run.seconds = run.seconds, 0.0
            done = ev.IterationsDone(
                self._time, run.trial, count, seconds, work.persistent, largest, work.busy, work.splits, run.most
            )
            run.most = run.concurrency
            self._out.append(done)
            run.counted = run.goal

    def _report(self, run: Run) -> None:
        run.reported += 1
        run.unjudged = True
        if run.work.checkpoints:
            self._saved[run.trial] = run.goal - 1
        self._out.append(Report(run.trial, run.attempt, run.goal - 1, run.work.value(run.goal - 1), b""))

    def _reach_end(self, run: Run) -> None:
        match run.work.ending:
            case Ending.RETURNS:
                self._finish(run, Outcome.DONE)
            case Ending.RAISES:
                self._finish(run, Outcome.FAILED, detail=f"RuntimeError: {run.work.message}")
            case Ending.DIES:
                self._end_lane(run.lane, "killed by signal 9")
            case Ending.HANGS:
                run.hung_since = self._time
                self._later(self._costs.quiet, self._say_quiet, run)

    def _say_quiet(self, run: Run) -> None:
        if self._runs.get(run.trial) is run and run.hung_since is not None:
            quiet = ev.LaneQuiet(self._time, run.lane.id, run.trial, self._time - run.hung_since)
            self._out.append(quiet)
            self._later(self._costs.quiet, self._say_quiet, run)

    def _finish(self, run: Run, outcome: Outcome, needed: int | None = None, detail: str = "") -> None:
        self._forget(run)
        self._out.append(ev.TrialEnded(self._time, run.trial, outcome, needed, detail=detail))
        self._pace(run.lane.device)

    def _forget(self, run: Run) -> None:
        del self._runs[run.trial], run.lane.runs[run.trial]
        run.version += 1

    # ---- time

    def _later(self, seconds: float, act: Callable[[Any], None], what: Any) -> None:
        self._count += 1
        heapq.heappush(self._calendar, (self._time + seconds, self._count, act, what))

    def _pace(self, device: Device) -> None:
        """Works out anew how fast the trials of a device run, and when each comes to its next boundary."""
        lanes = [(lane, lane.moving()) for lane in device.lanes.values()]
        loads = [load for _, moving in lanes if (load := busy(moving))]
        # Alone nothing slows a trial down, however busy it keeps the device; nor while it starts up.
        speed = shared_speed(sum(loads)) if len(loads) > 1 else 1.0
        for lane, moving in lanes:
            for run in lane.runs.values():
                share = 1.0 / len(moving) if run in moving else 0.0
                rate = share if run.is_starting else speed * share * run.work.gain(run.concurrency)
                self._set_pace(run, rate, share)

    def _set_pace(self, run: Run, rate: float, share: float) -> None:
        if rate == run.rate and run.booked:
            return
        run.settle(self._time)
        goal = run.next_goal()
        run.rate, run.share, run.goal = rate, share, goal
        run.version += 1
        run.booked = rate > 0.0
        if run.booked:
            self._later(run.seconds_to(goal) / rate, self._arrive, (run, run.version))

    def _arrive(self, what: tuple[Run, int]) -> None:
        run, version = what
        if version != run.version:
            return
        run.settle(self._time)
        run.startup = 0.0
        run.progress = run.goal * run.work.step_seconds
        run.booked = False
        at_once = run.concurrency
        self._reach(run)
        if self._runs.get(run.trial) is run:
            if run.is_moving and run.concurrency == at_once:
                self._set_pace(run, run.rate, run.share)
            else:
                self._pace(run.lane.device)


def devices(count: int, capacity: int, context: int = 0, max_width: int = 16) -> Sequence[ev.DeviceFound]:
    """So many equal devices."""
    return [ev.DeviceFound(0.0, f"gpu {number}", capacity, context, max_width) for number in range(count)]
