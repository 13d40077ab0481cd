"""The driver's loop: the brain, a body and the search, brought together.

    search ──Suggestion──▶ TrialAdded ──▶ Packer ──instructions──▶ Engine
    search ◀──complete, prune, fail── ConcludeTrial ◀─┘   ▲           │
    search ◀──report── Report ◀────────────── events file │ ◀─events──┘

A report is in the events file, handed to the operating system, before the trial gets its verdict.
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from cotune import errors
from cotune.dashboard.snapshot import RunningView, Snapshot
from cotune.dashboard.views import View
from cotune.engines.base import Engine
from cotune.estimates import Estimates
from cotune.event_log import EventLog
from cotune.packer import (
    ConcludeTrial,
    Event,
    IterationsDone,
    LaneReady,
    Outcome,
    Packer,
    ResumeTrial,
    RetryTrial,
    StartTrial,
    TrialAdded,
    TrialHeld,
    TrialReleased,
    TrialWithdrawn,
)
from cotune.paths import RunFolder
from cotune.profile import Profile
from cotune.record import Record, best_of, end_event, json_safe
from cotune.results import TrialResult
from cotune.search.proposer import Configs, Proposer, Reply
from cotune.search.search import Exhausted, Failure, Promotion, Settled, Suggestion, Verdict
from cotune.trial import Estimated, Question, Report, TrialSpec, TrialState

SHOW_EVERY = 0.25
ASK_AHEAD = 64
SWITCH_INTERVAL = 0.0003

_HINTS = {
    "TrialTooLarge": "shrink the model or the batch in the search space, or use a device with more memory",
    "TrialOverdue": "raise iteration_timeout=, or report more often",
    "LaneDied": "see error.txt and log.txt in its folder; a native library of the trainable may crash",
    "TrialFailed": "the traceback is in error.txt in the trial's folder",
}
# Errors that every other trial would repeat: the run ends with them if nothing was ever reported.
_FATAL = ("UnknownMetric", "NotPicklable")


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """What a sweep runs until, and how.

    Attributes:
        kind: Name of the trainable.
        metric: What is tuned; empty where only the search knows.
        mode: `min` or `max`.
        trials: How many; None for no limit.
        time_budget: Seconds after which running trials are interrupted; None for no limit.
        lockstep: Ask for a trial only when it can start.
        seed: From which every trial's seed is derived.
        unlimited_ahead: Whether the sampler's suggestions do not depend on results.
        callbacks: Called with the result of each trial that is over.
        priority: Of a config.
    """

    kind: str
    metric: str
    mode: str
    trials: int | None
    time_budget: float | None
    lockstep: bool
    seed: int
    unlimited_ahead: bool = False
    callbacks: Sequence[Callable[[TrialResult], Any]] = ()
    priority: Callable[[Mapping[str, Any]], float] = lambda config: 0.0


class Sweep:
    """Runs trials until there are no more.

    Args:
        space: For the configs.
        search: Proposes and judges.
        packer: Decides.
        engine: Runs.
        folder: Where the trials' folders are.
        log: Where events go.
        view: Shows it.
        options: See there.
        records: Trials of the run that is resumed.
        profile: What earlier runs have measured.
    """

    def __init__(
        self,
        space: Configs,
        search: Proposer,
        packer: Packer,
        engine: Engine,
        folder: RunFolder,
        log: EventLog,
        view: View,
        options: SweepOptions,
        records: Sequence[Record] = (),
        profile: Profile | None = None,
    ) -> None:
        self.records: dict[int, Record] = {record.trial: record for record in records}
        self.interrupted = False
        self._space = space
        self._search = search
        self._packer = packer
        self._engine = engine
        self._folder = folder
        self._log = log
        self._view = view
        self._options = options
        self._profile = profile or Profile(None)
        self._estimates = Estimates(engine)
        self._asked = 0
        self._proposed = len(self.records)
        self._exhausted = self._settling = False
        self._reported = any(record.lines for record in records)
        self._signals = 0
        self._unacknowledged: list[tuple[int, int]] = []
        self._started: dict[int, float] = {}
        self._counts = dict.fromkeys(map(str, TrialState), 0)
        for record in records:
            self._counts[record.state] += 1
            if record.demand is not None:
                features = space.features(record.params)
                self._profile.recall(features, record.demand, record.seconds, record.comparable)
        self._best = best_of(records, options.mode)
        self._began = time.monotonic()
        self._first_start = self._last_end = 0.0
        # One time for all that follows from one event: a lane's next trial starts when the last one ends.
        self._now = time.time()
        self._show_due = 0.0
        self._note = ""

    @property
    def first_start(self) -> float:
        """When the first trial of this session started, by the monotonic clock; 0 if none has."""
        return self._first_start

    @property
    def makespan(self) -> float:
        """Seconds from the first start of a trial in this session to the last end."""
        return max(0.0, self._last_end - self._first_start) if self._first_start else 0.0

    # ---- from outside of the loop

    def interrupt(self) -> None:
        """Ctrl-C: the first time running trials stop at their next boundary, the second time all ends at once."""
        self._signals += 1
        self._engine.wake()

    # ---- the loop

    def run(self) -> None:
        """Runs to the end, or until interrupted.

        Raises:
            CotuneError: The run as a whole cannot go on.
            KeyboardInterrupt: It was interrupted twice.
        """
        before = sys.getswitchinterval()
        # The search thread computes in Python: this one must not wait 5 ms for it whenever something happens.
        sys.setswitchinterval(SWITCH_INTERVAL)
        try:
            self._loop()
        finally:
            sys.setswitchinterval(before)

    def _loop(self) -> None:
        for found in self._engine.start():
            self._feed(found)
        for record in self.records.values():
            if not record.state.is_final:
                self._add(record)
        self._ask_more()
        while self._packer.unfinished or self._asked or self._estimates:
            only_reports = True
            for happened in self._engine.poll(SHOW_EVERY):
                if type(happened) is Report:
                    self._on_report(happened)
                elif type(happened) is Question:
                    self._search.question(happened)
                elif type(happened) is Estimated:
                    only_reports = False
                    self._on_estimated(happened)
                else:
                    only_reports = False
                    self._feed(happened)  # type: ignore[arg-type]
            for answer in self._search.answers():
                only_reports = False
                self._on_answer(answer)
            self._acknowledge()
            self._check_end()
            if not only_reports:
                self._ask_more()
                self._check_settled()
            self._show()

    def _feed(self, event: Event) -> None:
        self._now = time.time()
        if isinstance(event, LaneReady):
            self._lane_up(event.lane)
        concluded = []
        for instruction in self._packer.handle(event):
            if isinstance(instruction, StartTrial):
                self._engine.execute(instruction, self._spec(instruction))
            elif isinstance(instruction, ConcludeTrial):
                concluded.append(instruction)
            elif isinstance(instruction, RetryTrial):
                self._retry(instruction)
            elif isinstance(instruction, ResumeTrial):
                self._engine.execute(instruction)
                self._resume(self.records[instruction.trial])
            else:
                self._engine.execute(instruction)
        if isinstance(event, IterationsDone):
            self._compare(event.trial)
        # Last, so that a freed lane has its next trial before the search thread has something to do.
        for conclusion in concluded:
            self._conclude(conclusion)

    def _compare(self, trial: int) -> None:
        """Holds what a running trial was measured to need against its estimate, for the sake of other estimates."""
        record, demand = self.records[trial], self._packer.demand_of(trial)
        if record.estimate is not None and demand is not None:
            self._profile.compare(trial, record.estimate, demand)

    def _acknowledge(self) -> None:
        self._log.flush()
        for trial, attempt in self._unacknowledged:
            self._engine.verdict(trial, attempt)
        self._unacknowledged.clear()

    # ---- trials come

    def _ask_more(self) -> None:
        """Keeps a suggestion ready for every lane, so that a freed one never waits for the sampler."""
        if self._exhausted or self.interrupted:
            return
        packer = self._packer
        ahead = 0 if self._options.lockstep else ASK_AHEAD if self._options.unlimited_ahead else packer.breadth
        if self._estimates.are_wanted and not self._profile.is_calibrated:
            # Hints do not change once they are given: one trial at most waits by an estimate of which little is known.
            ahead = min(ahead, 1)
        wanted = packer.seats + ahead - packer.waiting - len(self._estimates) - self._asked
        if wanted < ahead // 2:
            # Many at once: a sampler that has just been at work is three times as fast.
            return
        if self._options.trials is not None:
            wanted = min(wanted, self._options.trials - self._proposed - self._asked)
        if wanted > 0:
            self._asked += wanted
            self._search.ask(wanted)

    def _on_answer(self, answer: object) -> None:
        if isinstance(answer, Suggestion):
            self._asked = max(0, self._asked - 1)
            self._proposed += 1
            self._propose(answer)
        elif isinstance(answer, Verdict):
            record = self.records[answer.trial]
            is_current = answer.attempt == record.attempts - 1
            if answer.stop and is_current and not record.state.is_final:
                self._withdraw(record, "pruned")
            elif answer.wait and is_current and not record.state.is_final:
                self._hold(record)
            self._unacknowledged.append((answer.trial, answer.attempt))
        elif isinstance(answer, Reply):
            if answer.stop and not self.records[answer.trial].state.is_final:
                self._withdraw(self.records[answer.trial], "pruned")
            self._engine.answer(answer.trial, answer.attempt, answer.payload)
        elif isinstance(answer, Promotion):
            self._settling = False
            if not self.records[answer.trial].state.is_final:
                self._feed(TrialReleased(self._engine.now(), answer.trial))
        elif isinstance(answer, Settled):
            self._settling = False
            for record in [record for record in self.records.values() if not record.state.is_final]:
                self._withdraw(record, "pruned")
        elif isinstance(answer, Exhausted):
            self._exhausted, self._asked = True, 0
        elif isinstance(answer, Failure):
            if isinstance(answer.error, errors.CotuneError) or not isinstance(answer.error, Exception):
                raise answer.error
            raise errors.RunError(
                f"the sampler or the pruner raised {type(answer.error).__name__}: {answer.error}",
                hint="see the cause above; what has run so far is kept, resume=True goes on with another one",
            ) from answer.error

    def _propose(self, suggestion: Suggestion) -> None:
        number = suggestion.trial
        record = Record(
            number,
            json_safe(suggestion.params),
            self._space.config(suggestion.params),
            seed_of(self._options.seed, number),
            self._folder.trial(number).path,
        )
        self.records[number] = record
        self._counts[TrialState.WAITING] += 1
        self._log.write("trial", time.time(), trial=number, params=record.params, seed=record.seed)
        if self.interrupted:
            self._move(record, TrialState.INTERRUPTED)
        else:
            self._add(record)

    def _add(self, record: Record) -> None:
        """Has the trial estimated first, where that is possible."""
        if record.estimate is not None or not self._estimates.ask(record.trial, record.config):
            self._join([record.trial])

    def _on_estimated(self, told: Estimated) -> None:
        self.records[told.trial].estimate = told.estimate
        figures = astuple(told.estimate) if told.estimate else None
        self._log.write(
            "estimate",
            time.time(),
            trial=told.trial,
            estimate=figures,
            seconds=round(told.seconds, 3),
            reason=told.reason,
        )
        self._join(self._estimates.heard(told))

    def _join(self, trials: Iterable[int]) -> None:
        """Hands trials to the brain, with what is expected of them."""
        for trial in trials:
            record = self.records[trial]
            features = self._space.features(record.params)
            expected, seconds = self._profile.expect(features, record.estimate)
            now, kind = self._engine.now(), self._options.kind
            priority = self._options.priority(record.config)
            self._feed(TrialAdded(now, trial, kind, features, priority, expected=expected, seconds=seconds))

    def _spec(self, start: StartTrial) -> TrialSpec:
        record = self.records[start.trial]
        folder = self._folder.trial(record.trial)
        where = self._packer.lane_of(record.trial)
        now = self._now
        reports = folder.reports_at_checkpoint() if record.attempts else 0
        spec = TrialSpec(record.trial, record.attempts, record.config, record.seed, folder.path, reports)
        record.starts(where[1] if where else None, start.lane, now)
        self._started[record.trial] = time.monotonic()
        self._log.write("start", now, trial=record.trial, lane=record.lane, device=record.device)
        self._move(record, TrialState.RUNNING)
        return spec

    # ---- trials report and end

    def _on_report(self, report: Report) -> None:
        record = self.records[report.trial]
        record.add(report)
        self._reported = True
        self._log.write_line(report.line)
        if self._search.judges and not record.withdrawn:
            self._search.report(report.trial, report.attempt, report.step, report.value)
        else:
            self._unacknowledged.append((report.trial, report.attempt))

    def _lane_up(self, lane: int) -> None:
        """Trials that were waiting in a lane for its process start now."""
        self._first_start = self._first_start or time.monotonic()
        for trial in self._started:
            record = self.records[trial]
            if record.lane == lane:
                self._started[trial] = time.monotonic()
                record.lane_up(self._now)
                self._log.write("ready", self._now, trial=trial)

    def _withdraw(self, record: Record, why: str) -> None:
        record.withdrawn = record.withdrawn or why
        self._feed(TrialWithdrawn(self._engine.now(), record.trial))

    def _hold(self, record: Record) -> None:
        if record.state is TrialState.RUNNING:
            record.pauses(self._now)
            self._log.write("pause", self._now, trial=record.trial)
            self._move(record, TrialState.PAUSED)
        self._feed(TrialHeld(self._engine.now(), record.trial))

    def _resume(self, record: Record) -> None:
        record.goes_on(self._now)
        self._log.write("resume", self._now, trial=record.trial)
        self._move(record, TrialState.RUNNING)

    def _check_settled(self) -> None:
        """Where all that are left wait for others to be worse, and there are no others, that is the end."""
        more = self._options.trials is None or self._proposed < self._options.trials
        if self._settling or self._asked or self._estimates or (more and not self._exhausted) or self.interrupted:
            return
        if self._packer.unfinished and self._packer.unfinished == self._packer.held:
            self._settling = True
            self._search.settle()

    def _retry(self, retry: RetryTrial) -> None:
        record = self.records[retry.trial]
        self._log.write("retry", time.time(), trial=retry.trial, reason=retry.reason)
        if record.state is TrialState.PAUSED:
            # It has made room for others, and starts again once it is promoted.
            return
        self._note = f"trial {retry.trial} starts again: {retry.reason.splitlines()[0][:100]}"
        self._move(record, TrialState.WAITING)

    def _conclude(self, conclusion: ConcludeTrial) -> None:
        record = self.records[conclusion.trial]
        record.demand = conclusion.demand
        record.expected = conclusion.expected.peak if conclusion.expected else None
        record.ran, record.expected_seconds = conclusion.seconds or None, conclusion.expected_seconds
        record.slowdown = conclusion.slowdown
        passed = [] if self._search.judges else record.values
        value = record.last_value
        metric = self._options.metric
        if conclusion.outcome is Outcome.DONE and (value is not None or not metric):
            self._move(record, TrialState.DONE)
            self._search.complete(record.trial, math.nan if value is None else value, passed)
            if metric:
                self._best = best_of([record, *([self._best] if self._best else [])], self._options.mode)
        elif conclusion.outcome is Outcome.STOPPED and record.withdrawn == "interrupted":
            self._move(record, TrialState.INTERRUPTED)
        elif conclusion.outcome is Outcome.STOPPED:
            self._move(record, TrialState.STOPPED)
            self._search.prune(record.trial, passed)
        else:
            self._fail(record, conclusion)
        since = self._started.pop(record.trial, None)
        self._last_end = time.monotonic()
        if record.state is not TrialState.INTERRUPTED:
            self._log.write("end", time.time(), **end_event(record))
            self._call_back(record)
        if record.demand is not None:
            features = self._space.features(record.params)
            self._profile.learn(features, record.demand, record.seconds, record.comparable)
            if record.comparable is not None:
                self._profile.compare(record.trial, record.comparable, record.demand, record.seconds)
        if since is not None:
            self._join(self._estimates.ran(self._last_end - since))

    def _fail(self, record: Record, conclusion: ConcludeTrial) -> None:
        kind = errors.named(conclusion.error)
        message, _, hint = conclusion.reason.partition("\n  hint: ")
        record.error = kind(f"trial {record.trial}: {message}", hint=hint or _HINTS.get(conclusion.error, ""))
        if conclusion.error in _FATAL and not self._reported:
            raise record.error
        self._note = f"trial {record.trial} failed: {message.splitlines()[0][:100] if message else conclusion.error}"
        self._move(record, TrialState.FAILED)
        self._search.fail(record.trial, record.error)

    def _move(self, record: Record, state: TrialState) -> None:
        self._counts[record.state] -= 1
        self._counts[state] += 1
        record.state = state
        if state.is_final:
            record.goes_on(self._now)
            record.end = self._now

    def _call_back(self, record: Record) -> None:
        for callback in self._options.callbacks:
            try:
                callback(record.result())
            except Exception as error:
                warnings.warn(
                    f"callback {callback!r} raised {type(error).__name__}: {error} for trial {record.trial}; "
                    "the run goes on",
                    stacklevel=2,
                )

    # ---- the end

    def _check_end(self) -> None:
        budget = self._options.time_budget
        if self._signals > 1:
            raise KeyboardInterrupt
        if self.interrupted:
            return
        if self._signals:
            self._drain("interrupted: running trials stop at their next iteration; press again to end at once")
        elif budget is not None and time.monotonic() - self._began >= budget:
            self._drain("the time budget is used up")

    def _drain(self, note: str) -> None:
        self.interrupted, self._note = True, note
        self._search.drop_asks()
        for trial in self._estimates.release():
            self._move(self.records[trial], TrialState.INTERRUPTED)
        for record in list(self.records.values()):
            if not record.state.is_final:
                self._withdraw(record, "interrupted")

    # ---- showing it

    def _show(self) -> None:
        now = time.monotonic()
        if now >= self._show_due:
            self._show_due = now + SHOW_EVERY
            self._view.update(self.snapshot())

    def snapshot(self) -> Snapshot:
        """The run as it stands."""
        now = time.monotonic()
        packer = self._packer
        running = []
        for trial, since in self._started.items():
            record, demand = self.records[trial], packer.demand_of(trial)
            if record.state is not TrialState.RUNNING or record.lane is None:
                continue
            running.append(
                RunningView(
                    trial,
                    record.lane,
                    record.device or "",
                    now - since,
                    record.last_step,
                    record.last_value,
                    demand.peak if demand else None,
                    packer.slowdown_of(trial),
                )
            )
        best = self._best
        return Snapshot(
            self._folder.path.name,
            self._options.metric or "value",
            now - self._began,
            self._options.trials,
            dict(self._counts),
            (best.trial, best.last_value or 0.0) if best else None,
            tuple(running),
            packer.snapshot(),
            self._note,
        )


def seed_of(seed: int, trial: int) -> int:
    """The seed of one trial, from the run's: independent streams, the same on every machine (numpy's SeedSequence)."""
    return int(np.random.SeedSequence([seed, trial]).generate_state(1)[0])
