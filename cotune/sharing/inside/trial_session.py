"""A trial of `cotune.run` in its lane: the session that its trainable calls, and the thread that runs it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotune import session, trainable
from cotune.errors import InputError, NoReport
from cotune.metrics import is_number, number_line, read_report, whole_step
from cotune.script.by_value import functions_of_script
from cotune.session import TrialStopped
from cotune.sharing import wire
from cotune.sharing.inside.checkpoints import Checkpoints
from cotune.sharing.inside.ending import Ending, ended_by, forget, own_stop
from cotune.sharing.inside.event_loops import close_event_loop
from cotune.sharing.inside.leaving import Leaving
from cotune.sharing.inside.resident import ResidentTrial
from cotune.sharing.inside.tally import Tally
from cotune.stopping import StopRule
from cotune.trial import Outcome, TrialSpec

if TYPE_CHECKING:
    from cotune.sharing.inside.lane_main import ForkedHost

# The process's original: a trial may replace `time.time` for its own use.
time_of_day = time.time
# Longest wait for the verdict on a report, as a share of the time between reports.
PATIENCE = 0.05


class TrialSession(ResidentTrial):
    """One attempt at a trial, run by a thread of its own; its output goes to its own log.

    Args:
        host: The lane.
        verdicts: The eventfd of the trial's seat.
        spec: The attempt.
    """

    host: ForkedHost

    def __init__(self, host: ForkedHost, verdicts: int, spec: TrialSpec) -> None:
        super().__init__(host, verdicts, spec)
        self._spec = spec
        self._log = -1
        self._stop_rule: StopRule | None = None
        self._leaving = Leaving()
        self._checkpoints = Checkpoints(spec.trial, self._folder, self._settle_reports)
        # One question and one report at a time, whichever of the trial's threads makes it.
        self._asking = threading.Lock()
        self._reporting = threading.RLock()
        self._has_turn = threading.Event()
        self._tally = Tally(host.habit)
        # The trainable has returned: a report is its result, and no verdict on that stops the trial.
        self._has_returned = False

    def turn_begins(self) -> None:
        super().turn_begins()
        self._has_turn.set()

    def _settle_in(self) -> None:
        self.host.output.redirect(self._log)
        super()._settle_in()

    def turn_ends(self) -> None:
        self._has_turn.clear()
        super().turn_ends()

    def _await_turn(self) -> None:
        """Makes a thread started by the trial, which runs on while other trials have the turn, wait for its turn.

        Raises:
            TrialStopped: The trial has ended.
        """
        self._has_turn.wait()
        if self._over:
            raise TrialStopped

    # ---- what the trainable calls

    def report(self, metrics: Mapping[str, Any], step: int | None) -> None:
        metric = self.host.options.trials.metric
        if not metric:
            raise InputError(
                "cotune.report() was called in an Optuna objective",
                hint="call trial.report(value, step) there, and return the final value",
            )
        self._await_turn()
        with self._reporting:
            if self.met_stop_rule:
                # Before the report is looked at, which may be refused: the trial has made its last one.
                self.leave_if_over()
            number = self._tally.reports + 1
            step = self._tally.next_step if step is None else whole_step(step)
            value, values, line = read_report(metrics, metric, number == 1, self.trial, step, time_of_day())
            is_last = self._stop_rule is not None and self._stop_rule.is_met(self.trial, values, number)
            self._pass_on(step, value, line)
        if is_last:
            # The trial ends at its next boundary, so that it can still save the checkpoint of this last report.
            self.met_stop_rule = True
            self.hasten()
            self._folder.note_last_report(number)

    def observe(self, value: float, step: int) -> None:
        self._await_turn()
        with self._reporting:
            self._pass_on(step, value, number_line(self.trial, step, value, time_of_day()))

    def _pass_on(self, step: int, value: float, line: bytes) -> None:
        if self._over:
            raise TrialStopped
        tally = self._tally
        spent, is_miscounted = tally.begins_report(time.monotonic())
        if is_miscounted:
            self._folder.recount_checkpoint(tally.reports)
        if not (self._owes_report or self._has_returned):
            self.leave_if_over()
        self._await_verdict()
        # Before this report, in the state that the last verdict was about.
        self._pause_here()
        tally.reports, tally.step = tally.reports + 1, step
        self._waits.unjudged = True
        self._say(wire.encode_report(self.trial, self.attempt, step, value, line))
        has_stepped = self._has_stepped
        self._count_report()
        # A trial with an optimizer need not wait: its next step is a boundary, where it can stop.
        lockstep = self.host.options.trials.lockstep
        if not self._has_returned and (lockstep or (not has_stepped and self._is_judged_soon(spent))):
            self._await_verdict()
        self._goes_on = self._has_returned or (self._waits.unjudged and self.host.habit.saves_behind is not False)
        try:
            self._boundary()
        finally:
            self._goes_on = False
        tally.ends_report()

    def _is_judged_soon(self, spent: float) -> bool:
        """Waits briefly for the verdict on this report, so that a stopped trial makes no further iteration in vain.

        Does not wait where trials may save after a report: that checkpoint must not be lost, and waits for the verdict.
        """
        is_wanted = self.host.options.trials.judged and self.host.habit.saves_behind is False
        return is_wanted and self._waits.is_judged_within(PATIENCE * spent)

    def ask(self, payload: bytes) -> bytes:
        self._await_turn()
        with self._asking:
            if self._over:
                raise TrialStopped
            self.leave_if_over()
            self._waits.forget_answers()
            self._say(wire.encode_question(wire.Kind.ASK, self.trial, self.attempt, payload))
            while (answer := self._waits.answer()) is None:
                if self.is_stopping:
                    self._meter.read(time.monotonic())
                    self._leave()
        self._boundary()
        return answer

    @property
    def _owes_report(self) -> bool:
        """Whether a checkpoint was saved ahead of its report, which an attempt from that checkpoint would leave out."""
        return self._tally.owes_report and not self.met_stop_rule

    def _await_verdict(self) -> None:
        """Waits for the verdict on the last report, and raises `TrialStopped` if it is to stop."""
        is_judged_out = self._hear_verdict()
        # Once the trainable has returned, Ctrl-C or the time budget saves nothing.
        is_over = is_judged_out if self._has_returned else self.is_stopping
        if is_over and not self._owes_report:
            self._meter.read(time.monotonic())
            self._leave()

    def _hear_verdict(self) -> bool:
        """Waits for the verdict on the last report, if it has not been heard; returns whether it says to stop."""
        with self._reporting:
            is_judged_out = self._waits.verdict()
            if is_judged_out:
                self.is_stopping = True
            return is_judged_out

    def _settle_reports(self) -> tuple[int, bool]:
        """Waits until the reports so far are stored.

        Returns:
            How many an attempt from the checkpoint begins with, and whether the last one was the trial's last.

        Raises:
            TrialStopped: The trial is to stop, and the checkpoint belongs to a report that it will not make.
        """
        self._await_turn()
        with self._reporting:
            # The driver has stored a report before it gives a verdict on it.
            self._hear_verdict()
            is_ahead = self._tally.is_ahead and not self.met_stop_rule
            if is_ahead and not self._tally.has_saved:
                # In doubt no checkpoint may be lost.
                if self.is_stopping and self.host.habit.saves_ahead:
                    self._leave()
                # The next attempt may begin with the checkpoint before this one.
                self._pause_here()
            self._tally.saves(is_ahead=is_ahead)
            # Once it is saved, the trial makes the report that it belongs to before it leaves.
            return self._tally.reports + is_ahead, self.met_stop_rule

    @contextlib.contextmanager
    def checkpoint(self) -> Iterator[Path]:
        began, is_first = time.monotonic(), not self._tally.has_saved
        with self._checkpoints.save() as path:
            yield path
        self._tally.saved(began)
        if not (is_first and self._owes_report):
            self.leave_if_over()
        # A good place: the checkpoint of the last report is saved.
        self._pause_here()

    def _pause_here(self) -> None:
        """Pauses if the trial is to, unless a report is still to be made that belongs to a saved checkpoint."""
        if self._waits.is_pausing and not self._loan.is_open and not self._owes_report:
            self._attend(time.monotonic())

    def restore(self) -> Path | None:
        path = self._folder.latest_checkpoint()
        self._tally.restores()
        if path is not None and self._tally.reports == 0:
            # Only here: an attempt that restores nothing makes all its reports again.
            # The report that a checkpoint was saved ahead of may never have been made.
            at_checkpoint = self._folder.reports_at_checkpoint()
            if self._spec.reports == 0 and at_checkpoint > 1:
                # Reports are on record before a checkpoint behind them is: a power failure has taken their record. A
                # trial that goes on behind them might make no other.
                return None
            self._tally.reports = min(at_checkpoint, self._spec.reports)
            if not self._tally.has_saved:
                # Else that checkpoint stands behind no report of earlier attempts.
                self._tally.step = self._spec.step
            # True if the earlier attempt had met its stop rule, and the message about its end was lost.
            self.met_stop_rule = at_checkpoint == self._tally.reports and self._folder.is_over_at_checkpoint()
            self.leave_if_over()
        return path

    # ---- the whole attempt

    def run(self) -> None:
        """The body of the trial's thread."""
        host = self.host
        host.memory.cap()
        session.bind(self)
        self._waits.begin()
        host.turns.take(self)
        self._threads = set(threading.enumerate())
        try:
            self._open_folder()
            host.output.redirect(self._log)
            ending = self._attempt()
        except BaseException as error:
            self._unwinds(error)
            ending = self._explain(error)
        session.bind(None)
        close_event_loop()
        self._end(ending)
        host.turns.leave(self)
        # Wakes threads of the trial in `_await_turn`, which then see that it is over.
        self._has_turn.set()
        if self._log >= 0:
            os.close(self._log)

    def _open_folder(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            self._log = os.open(self._folder.log, flags, 0o644)
        except FileNotFoundError:
            self._folder.create()
            self._log = os.open(self._folder.log, flags, 0o644)

    def _attempt(self) -> Ending:
        """Runs the trainable."""
        host = self.host
        try:
            self.leave_if_over()
            host.prepare_thread()
            function, config = self._load()
            self.leave_if_over()
            self._stop_rule = host.load_stop()
            returned = self._call(function, config)
            self._leave_if_forked()
            self._loan.check()
            del config, function
            self._has_returned = True
            is_result = self._report_result(returned)
            if self._tally.reports == 0 and host.options.trials.metric:
                raise NoReport(
                    "the trainable ended without a report",
                    hint=f"call cotune.report({{{host.options.trials.metric!r}: ...}}), or return that number",
                )
            # Raises this trial's asynchronous device errors here, where they cannot hit the next trial.
            host.memory.synchronize()
            if host.options.trials.judged and not is_result:
                self._await_verdict()
        except BaseException as error:
            self._unwinds(error)
            self._leave_if_forked(error)
            if not isinstance(error, TrialStopped):
                return self._explain(error)
            if not self.is_stopping:
                # Told as a stop, it would look like a pause to the driver, which would start the trial again and again.
                return self._explain(own_stop(error))
            traceback.clear_frames(error.__traceback__)
            with contextlib.suppress(Exception):
                # Iterations count once the device has done them; `_end` finds out about errors there.
                host.memory.synchronize()
            return Ending(Outcome.STOPPED)
        return Ending(Outcome.DONE)

    def _load(self) -> tuple[Any, Any]:
        with functions_of_script() as functions:
            function, config = self.host.load(self._spec)
        if self.context is not None:
            self.context.adopt(functions, self.host.options.named)
        return function, config

    def _call(self, function: Any, config: Any) -> Any:
        """Runs the trainable until it returns or its stop rule ends it; returns its result, None in the latter case."""
        returned = None
        try:
            returned = trainable.call(function, config)
        except BaseException as error:
            if not (self.met_stop_rule and self._leaving.has_led_to(error)):
                raise
            traceback.clear_frames(error.__traceback__)
        # Once the stop rule is met no report may follow.
        if self.met_stop_rule:
            return None
        if self._was_stopped:
            # The trainable has caught it and returned; what it has done is not all it would have.
            raise TrialStopped
        return returned

    def _report_result(self, returned: Any) -> bool:
        """Reports what the trainable has returned, if that is a result; returns whether it is."""
        if isinstance(returned, Mapping):
            self.report(returned, None)
        elif returned is not None and (self._tally.reports == 0 or is_number(returned)):
            self.report({self.host.options.trials.metric: returned}, None)
        else:
            return False
        return True

    def leave_if_over(self) -> None:
        super().leave_if_over()
        if self.met_stop_rule:
            self._leaving.ask()
            # The trainable catches TrialStopped and goes on. The driver does not end it, since it reaches boundaries.
            self._end(Ending(Outcome.DONE))
            os._exit(1)

    def _leave_if_forked(self, error: BaseException | None = None) -> None:
        """Ends a process forked by the trainable where the trainable ends, without reporting anything for the trial."""
        if os.getpid() == self.host.process:
            return
        code: Any = 0
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            traceback.print_exception(error)
            code = 1
        os._exit(code & 0xFF)

    def _explain(self, error: BaseException) -> Ending:
        if isinstance(error, SystemExit) and error.code in (None, 0) and self._tally.reports:
            return Ending(Outcome.DONE)
        is_memory, needed = self._ran_out(error)
        ending = ended_by(error, is_memory, needed)
        with contextlib.suppress(Exception):
            self._folder.error.write_text(trainable.trace_of(error), encoding="utf-8", errors="backslashreplace")
        if self.host.survives(error):
            forget(error)
        return ending
