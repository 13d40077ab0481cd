"""The driver's loop, which connects the brain, a body and the search.

    search ──Suggestion──▶ TrialAdded ──▶ Packer ──instructions──▶ Engine
    search ◀───────── tell ────────── ConcludeTrial ◀─┘   ▲           │
    search ◀──report── Report ◀────────────── events file │ ◀─events──┘

A report is written to the events file and handed to the operating system before the trial gets its verdict.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from cotune import errors
from cotune.dashboard.display import SHOW_EVERY, Display
from cotune.dashboard.views import View
from cotune.driver.arrivals import Arrivals
from cotune.driver.conclusions import Conclusions
from cotune.driver.expectations import Expectations
from cotune.driver.options import SweepOptions
from cotune.driver.profile import Profile
from cotune.driver.supply import Supply
from cotune.driver.verdicts import Verdicts
from cotune.engines.base import Engine, Happened
from cotune.packer import (
    POLICIES,
    AllTrialsAdded,
    ConcludeTrial,
    DeviceFound,
    Event,
    Instruction,
    IterationsDone,
    LaneReady,
    Packer,
    ResumeTrial,
    RetryTrial,
    StartTrial,
    TrialHeld,
    TrialReleased,
    TrialWithdrawn,
    lanes_that_learn,
)
from cotune.process_wide import process_wide
from cotune.record import Record, Records
from cotune.search.proposer import (
    Answer,
    Configs,
    Exhausted,
    Failure,
    Promotion,
    Proposer,
    Reply,
    Settled,
    Suggestion,
    Verdict,
)
from cotune.trial import Estimated, Outcome, Question, Report, TrialState

SWITCH_INTERVAL = 0.0003
# Seconds to wait for suggestions; less than the first lane takes to come up.
LINE_UP_WITHIN = 0.2
# Seconds to wait for verdicts once all trials have left.
HEAR_OUT_WITHIN = 5.0


@process_wide
def _switching_often() -> Iterator[None]:
    """Makes the threads of this process switch more often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class Sweep:
    """Runs trials until there are no more.

    Args:
        space: Turns parameters into configs.
        search: Proposes trials and judges reports.
        packer: The brain.
        engine: The body.
        records: The run's trials, including those of earlier sessions.
        view: Shows the sweep's state.
        options: When the sweep ends, and how it runs.
        profile: Measurements of earlier runs.

    Attributes:
        interrupted: Whether the sweep was interrupted or its time is used up; unfinished trials can be resumed.
        display: Updates the view.
    """

    def __init__(
        self,
        space: Configs,
        search: Proposer,
        packer: Packer,
        engine: Engine,
        records: Records,
        view: View | None,
        options: SweepOptions,
        profile: Profile | None = None,
    ) -> None:
        self.interrupted = False
        self.display = Display(view, options.metric, options.trials, records, packer)
        self._search = search
        self._packer = packer
        self._engine = engine
        self._records = records
        self._options = options
        self._conclusions = Conclusions(records, search, self.display, options.metric, options.callbacks)
        learns = search.judges or not options.is_blind
        most_lanes = lanes_that_learn(options.trials) if learns else None
        self._expectations = Expectations(space, profile or Profile(None), records.values(), most_lanes)
        self._arrivals = Arrivals(
            space,
            engine,
            records,
            options,
            self._expectations,
            search.waiting,
            self._feed,
            self._conclusions.reach,
        )
        self._supply = Supply(search, packer, options, proposed=len(records))
        self._signals = 0
        self._verdicts = Verdicts()
        self._began = time.monotonic()
        self._on_answer: dict[type[Answer], Callable[[Any], None]] = {
            Suggestion: self._suggested,
            Verdict: self._judged,
            Reply: self._replied,
            Promotion: self._promoted,
            Settled: self._settled,
            Exhausted: lambda _: self._supply.exhausted(),
            Failure: self._failed,
        }

    # ---- from outside of the loop

    def interrupt(self, signals: int) -> None:
        """Handles Ctrl-C: the first stops running trials at their next boundary, the second ends the sweep at once.

        Args:
            signals: How many there have been so far. A count, so that it does no harm to be told of one twice.
        """
        self._signals = max(self._signals, signals)
        self._engine.wake()

    # ---- the loop

    def run(self) -> None:
        """Runs to the end, or until interrupted.

        Raises:
            CotuneError: The run as a whole cannot go on.
            KeyboardInterrupt: The sweep was interrupted twice.
        """
        # The search thread computes in Python: by default this one would wait 5 ms for the interpreter at each event.
        with _switching_often():
            try:
                self._loop()
            finally:
                self._expectations.learn_devices(self._packer.proven_widths(), self._packer.shared())

    def _loop(self) -> None:
        devices = self._engine.start(lambda: self._signals > 0 or self._is_late())
        for record in self._records.unfinished():
            if record.withdrawn:
                # It was stopped, and had not left when the session before this one ended.
                self._conclusions.reach(ConcludeTrial(record.trial, Outcome.STOPPED))
            else:
                self._arrivals.add(record)
        if self._options.is_blind and self._expectations.know_lengths:
            self._line_up()
        self._feed(*devices)
        self._ask_more()
        # A Ctrl-C may have come while all was set up: then no trial begins.
        self._check_end()
        # While there is no device, no trial may be left and none be asked for, and yet more are to come.
        while self._packer.unfinished or self._supply.asked or self._arrivals or not self._supply.is_over:
            happened = self._engine.poll(SHOW_EVERY)
            # All of it even if an error is to end the run: a later session must not run again what has ended.
            _each(self._take_in, happened)
            only_reports = not self._hear() and all(type(one) in (Report, Question) for one in happened)
            # Before `_send_verdicts`, which writes: a caller that gave up on this loop may have closed the files.
            self._check_end()
            self._send_verdicts()
            if not only_reports:
                self._ask_more()
                if not self._arrivals:
                    self._supply.settle()
            self.display.show()
        if self.interrupted:
            self._hear_out()

    def _line_up(self) -> None:
        """Waits a moment for suggestions: the longest trial, which is to start first, may be suggested last."""
        self._ask_more()
        until = time.monotonic() + LINE_UP_WITHIN
        while self._supply.asked and time.monotonic() < until:
            # The engine is not polled: its events are about devices that the brain does not know yet.
            time.sleep(0.001)
            self._hear()

    def _hear(self) -> bool:
        """Takes in the answers of the search; returns whether there were any."""
        answers = self._search.answers()
        for answer in answers:
            self._on_answer[type(answer)](answer)
        return bool(answers)

    def _hear_out(self) -> None:
        """Waits for verdicts that an interruption came before: a later session must not go on with what is stopped."""
        until = time.monotonic() + HEAR_OUT_WITHIN
        while self._verdicts.are_to_come and self._signals < 2 and time.monotonic() < until:
            # The engine is not polled: nothing runs there any more.
            time.sleep(0.001)
            self._hear()
        self._records.flush()

    def _take_in(self, happened: Happened) -> None:
        if isinstance(happened, Report):
            self._on_report(happened)
        elif isinstance(happened, Question):
            self._search.question(happened)
        elif isinstance(happened, Estimated):
            self._arrivals.estimated(happened)
        else:
            self._feed(happened)

    def _ask_more(self) -> None:
        self._supply.ask(len(self._arrivals), is_guessing=self._arrivals.are_guesses)
        if self._packer.is_open and self._supply.is_over and not self._arrivals:
            self._feed(AllTrialsAdded(self._engine.now()))

    def _feed(self, *events: Event) -> None:
        self._records.now = time.time()
        decided = self._decide([self._noted(event) for event in events])
        try:
            for instruction in decided:
                self._carry_out(instruction)
        except Exception:
            self._save_ends(decided)
            raise
        for event in events:
            if isinstance(event, IterationsDone):
                self._expectations.compare(self._records[event.trial], self._packer.demand_of(event.trial))
        # Last, so that a freed lane has its next trial before the search thread starts to compute.
        for record in self._save_ends(decided):
            if record.lasted is not None:
                self._arrivals.ran(record.lasted)

    def _carry_out(self, instruction: Instruction) -> None:
        """Carries out an instruction, but for conclusions."""
        if isinstance(instruction, StartTrial):
            device = self._packer.device_of(instruction.trial)
            spec = self._records.starts(instruction.trial, device, instruction.lane)
            # A trial must not run whose parameters a kill of this process would lose.
            self._records.flush()
            self._engine.execute(instruction, spec)
        elif isinstance(instruction, RetryTrial):
            self._retry(instruction)
        elif isinstance(instruction, ResumeTrial):
            self._engine.execute(instruction)
            self._records.goes_on(self._records[instruction.trial])
        elif not isinstance(instruction, ConcludeTrial):
            self._engine.execute(instruction)

    def _save_ends(self, decided: Iterable[Instruction]) -> list[Record]:
        """Carries out the conclusions, also if an error ends the run: a later session must not run these trials again.

        Returns:
            The records of the trials that are over.
        """
        concluded = [instruction for instruction in decided if isinstance(instruction, ConcludeTrial)]
        _each(self._save_end, concluded)
        return [self._records[conclusion.trial] for conclusion in concluded]

    def _save_end(self, conclusion: ConcludeTrial) -> None:
        self._conclusions.reach(conclusion)
        self._expectations.learn(self._records[conclusion.trial])

    def _noted(self, event: Event) -> Event:
        """The event, on record, with what earlier runs add to it."""
        if isinstance(event, LaneReady):
            self._records.lane_up(event.lane, event.context)
        elif isinstance(event, DeviceFound):
            event = self._expectations.of_device(event)
            self._records.device(event, self._packer.options.width)
        return event

    def _decide(self, events: list[Event]) -> list[Instruction]:
        try:
            return self._packer.handle(*events)
        except Exception as error:
            policy = self._packer.options.policy
            if not isinstance(error, errors.CotuneError) and type(policy) not in POLICIES.values():
                error.add_note(f"policy={policy!r} was asked; what has run so far is kept, resume=True goes on with it")
            self._save_ends(self._packer.hand_over())
            raise

    def _send_verdicts(self) -> None:
        self._records.flush()
        for trial, attempt in self._verdicts.take():
            self._engine.verdict(trial, attempt)

    # ---- answers of the search

    def _suggested(self, suggestion: Suggestion) -> None:
        self._supply.suggested()
        record = self._arrivals.proposed(suggestion)
        if self.interrupted:
            self._records.put_off(record)
        else:
            self._arrivals.add(record)

    def _judged(self, verdict: Verdict) -> None:
        record = self._records[verdict.trial]
        if not record.state.is_final:
            if verdict.stop:
                # Also of an attempt that is over by now: that rung is not judged again.
                self._withdraw(record, TrialState.STOPPED)
            elif verdict.wait and verdict.attempt == record.attempts - 1:
                self._hold(record)
        elif verdict.stop and record.state is TrialState.INTERRUPTED:
            self._records.withdrawn(record, TrialState.STOPPED)
        self._verdicts.answered(verdict.trial, verdict.attempt)

    def _replied(self, reply: Reply) -> None:
        record = self._records[reply.trial]
        if reply.stop and not record.state.is_final:
            self._withdraw(record, TrialState.STOPPED)
        self._engine.answer(reply.trial, reply.attempt, reply.payload)

    def _promoted(self, promotion: Promotion) -> None:
        self._supply.settled()
        self._arrivals.promoted(promotion.trial)
        if not self._records[promotion.trial].state.is_final:
            self._feed(TrialReleased(self._engine.now(), promotion.trial))

    def _settled(self, _answer: Settled) -> None:
        self._supply.settled()
        for record in self._records.unfinished():
            self._withdraw(record, TrialState.STOPPED)

    def _failed(self, failure: Failure) -> None:
        error = failure.error
        if isinstance(error, errors.CotuneError) or not isinstance(error, Exception):
            raise error
        raise errors.RunError(
            f"the sampler or the pruner raised {type(error).__name__}: {error}",
            hint="see the cause above; what has run so far is kept, resume=True goes on with another one",
        ) from error

    def _withdraw(self, record: Record, state: TrialState) -> None:
        self._records.withdrawn(record, state)
        self._feed(TrialWithdrawn(self._engine.now(), record.trial))
        # The search may take long to answer, as while it makes a suggestion; a stop does not wait for that.
        self._verdicts.give_early(record.trial, record.attempts - 1)

    def _hold(self, record: Record) -> None:
        if record.state is TrialState.RUNNING:
            self._records.pauses(record)
        self._feed(TrialHeld(self._engine.now(), record.trial))

    # ---- trials start, report and end

    def _on_report(self, report: Report) -> None:
        if self._records[report.trial].state.is_final:
            # A trial that has ended waits for no verdict.
            return
        record = self._records.reported(report)
        if self._search.judges and not record.withdrawn:
            self._verdicts.ask(report.trial, report.attempt)
            self._search.report(report.trial, report.attempt, report.step, report.value)
        else:
            self._verdicts.give(report.trial, report.attempt)

    def _retry(self, retry: RetryTrial) -> None:
        record = self._records[retry.trial]
        self._records.retried(record, retry.reason, failed=retry.failed, lane_died=retry.lane_died)
        if record.state is TrialState.WAITING:
            self.display.note = f"trial {retry.trial} starts again: {errors.first_line(retry.reason, 100)}"

    # ---- the end

    def _check_end(self) -> None:
        if self._signals > 1:
            raise KeyboardInterrupt
        if self.interrupted:
            return
        if self._signals:
            self._drain("interrupted", "running trials stop at their next iteration; press again to end at once")
        elif self._is_late():
            self._drain("the time budget is used up")

    def _is_late(self) -> bool:
        budget = self._options.time_budget
        return budget is not None and time.monotonic() - self._began >= budget

    def _drain(self, why: str, advice: str = "") -> None:
        self.interrupted = True
        # A study's run goes on by itself with the next call.
        then = f"go on with name={self._records.name!r}, resume=True" if self._options.metric else ""
        self.display.ends(why, advice, then)
        self._supply.close()
        self._arrivals.put_off()
        for record in self._records.unfinished():
            self._withdraw(record, TrialState.INTERRUPTED)


def _each(call: Callable[[Any], None], items: Iterable[Any]) -> None:
    """Calls a function with each item also after it has raised, as a callback does with `sys.exit()`.

    Raises:
        BaseException: What it has raised first; KeyboardInterrupt at once, since then the user does not want to wait.
    """
    raised: list[BaseException] = []
    for item in items:
        try:
            call(item)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raised.append(error)
    if raised:
        raise raised[0]
