"""The life of a simulated trial: its start, its boundaries, its end."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from cotune.engines.simulated.calendar import Calendar
from cotune.engines.simulated.lanes import Lane, Run
from cotune.engines.simulated.model import Costs, LastAct, Work
from cotune.engines.simulated.paces import Paces
from cotune.packer import events as ev
from cotune.packer import instructions as do
from cotune.trial import Outcome, Report, TrialSpec

# Seconds until a lane without a boundary is reported as quiet, and between two such reports at first.
QUIET_AFTER = 1.0


class Trials:
    """The running trials, and what they do at each boundary.

    Args:
        model: Returns what a trial does.
        costs: Durations of the body's actions.
        calendar: The body's calendar.
        end_lane: Called with a lane that a trial takes down, and how.
        speed: How fast trials run beside each other.

    Attributes:
        paces: How fast they run.
    """

    def __init__(
        self,
        model: Callable[[TrialSpec], Work],
        costs: Costs,
        calendar: Calendar,
        end_lane: Callable[[Lane, str], None],
        speed: Callable[[list[float]], float],
    ) -> None:
        self.paces = Paces(calendar, self._reach, speed)
        self._model = model
        self._costs = costs
        self._calendar = calendar
        self._end_lane = end_lane
        self._runs: dict[int, Run] = {}
        self._saved: dict[int, int] = {}

    # ---- instructions

    def start(self, spec: TrialSpec, lane: Lane) -> None:
        work = self._model(spec)
        run = Run(spec.trial, spec.attempt, work, lane, self._costs.start + work.startup, settled=self._calendar.time)
        done = self._saved.get(spec.trial, 0) if work.checkpoints else 0
        run.counted = done
        run.progress = done * work.step_seconds
        run.reported = bisect_right(work.report_at, done)
        run.is_starting = run.startup > 0
        often = work.iterations // max(self._costs.progress, 1)
        if often * work.step_seconds > self._costs.silence:
            often = int(self._costs.silence / work.step_seconds)
        run.every = max(1, often)
        run.quiet_since = self._calendar.time
        self._runs[spec.trial] = lane.runs[spec.trial] = run
        if run.startup > QUIET_AFTER:
            self._calendar.later(QUIET_AFTER, self._say_quiet, run)
        self.paces.renew(lane.device)

    def tell(self, instruction: do.ToTrial) -> None:
        """Carries out an instruction to a running trial."""
        run = self._runs.get(instruction.trial)
        if run is None:
            return
        match instruction:
            case do.ParkTrial():
                self._calendar.say(ev.TrialParked(self._calendar.time, run.trial, 0))
                return
            case do.StopTrial():
                run.stopping = True
                if run.blocked or run.paused:
                    self._finish(run, Outcome.STOPPED)
                    return
            case do.GrantTrial(concurrency=concurrency):
                run.granted = concurrency
            case do.PauseTrial():
                run.pausing = True
            case do.ResumeTrial():
                run.paused, run.granted = False, None
        # Its next boundary may be another one than the one planned.
        run.booked = False
        self.paces.renew(run.lane.device)

    def verdict(self, trial: int, attempt: int) -> None:
        """Lets a trial go on past its report."""
        run = self._runs.get(trial)
        if run is not None and run.attempt == attempt:
            run.unjudged = False
            if run.blocked:
                run.blocked = False
                self._reach(run)
                self.paces.renew(run.lane.device)

    def forget(self, run: Run) -> None:
        """Removes a run that is gone, with its lane or by itself."""
        del self._runs[run.trial], run.lane.runs[run.trial]
        run.version += 1

    # ---- at a boundary

    def _reach(self, run: Run) -> None:
        """A trial has come to the boundary after iteration `run.goal`."""
        work, goal = run.work, run.goal
        if run.is_starting:
            run.is_starting = False
            self.paces.renew(run.lane.device)
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
            self._calendar.say(ev.GrantChanged(self._calendar.time, run.trial, 1, at_once))
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
                self._calendar.time,
                run.trial,
                count,
                seconds,
                work.persistent,
                largest,
                work.busy,
                work.splits,
                run.most,
            )
            run.most = run.concurrency
            self._calendar.say(done)
            run.counted = run.goal

    def _report(self, run: Run) -> None:
        run.reported += 1
        run.unjudged = True
        if run.work.checkpoints:
            self._saved[run.trial] = run.goal - 1
        self._calendar.say(Report(run.trial, run.attempt, run.goal - 1, run.work.value(run.goal - 1), b""))

    def _take_up(self, run: Run) -> None:
        """Applies a grant, at a boundary."""
        if run.granted is not None:
            run.concurrency = run.most = run.granted
            run.granted = None
            self._calendar.say(ev.GrantChanged(self._calendar.time, run.trial, run.concurrency))

    def _rest(self, run: Run) -> None:
        """Pauses a run, at a boundary."""
        work = run.work
        run.pausing, run.paused = False, True
        run.granted, run.concurrency = None, 1
        saved = work.checkpoints and run.trial in self._saved
        self._calendar.say(ev.TrialPaused(self._calendar.time, run.trial, work.persistent, saved, 0))
        self.paces.renew(run.lane.device)

    def _reach_end(self, run: Run) -> None:
        match run.work.ending:
            case LastAct.RETURNS:
                self._finish(run, Outcome.DONE)
            case LastAct.RAISES:
                self._finish(run, Outcome.FAILED, detail=f"RuntimeError: {run.work.message}")
            case LastAct.DIES:
                self._end_lane(run.lane, "killed by signal 9")
            case LastAct.HANGS:
                run.hangs, run.quiet_since = True, self._calendar.time
                self._calendar.later(QUIET_AFTER, self._say_quiet, run)

    def _say_quiet(self, run: Run) -> None:
        """Reports a lane as quiet while a run hangs or starts up, which look the same from outside."""
        if self._runs.get(run.trial) is not run or not (run.hangs or run.is_starting):
            return
        now = self._calendar.time
        if run.lane.ready:
            held = run.lane.context + (run.work.persistent if run.hangs else run.held)
            self._calendar.say(ev.LaneQuiet(now, run.lane.id, run.trial, now - run.quiet_since, held))
        else:
            run.quiet_since = now
        # Less and less often: a start-up may take a year.
        self._calendar.later(max(QUIET_AFTER, (now - run.quiet_since) / 32), self._say_quiet, run)

    def _finish(self, run: Run, outcome: Outcome, needed: int | None = None, detail: str = "") -> None:
        self.forget(run)
        self._calendar.say(ev.TrialEnded(self._calendar.time, run.trial, outcome, needed, detail=detail))
        self.paces.renew(run.lane.device)
