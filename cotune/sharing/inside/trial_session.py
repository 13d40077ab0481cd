"""A trial of `cotune.run` in its lane: what its trainable calls, and the thread that runs it."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotune import session, trainable
from cotune.errors import CotuneError, InputError, NoReport
from cotune.session import TrialStopped
from cotune.sharing import wire
from cotune.sharing.inside.checkpoints import Checkpoints
from cotune.sharing.inside.metrics import number_line, read_report, whole_step
from cotune.sharing.inside.resident import Ending, ResidentTrial, own_stop
from cotune.sharing.memory import causes, clear_frames, text_of
from cotune.stopping import StopRule
from cotune.trial import Outcome, TrialSpec

if TYPE_CHECKING:
    from cotune.sharing.inside.lane_main import ForkedHost

# The one the process began with: a trial may put another in its place, for its own use.
time_of_day = time.time
# The part of the time between its reports that a trial waits for the verdict on one, at most.
PATIENCE = 0.05
# A checkpoint is one taken before a report if it is by so much nearer to the next than to the last.
AHEAD = 4
# Seconds for what a trial does on its way out, and how often it may report or save there.
LEAVE_WITHIN = 2.0
LEAVE_HEARD = 8


class TrialSession(ResidentTrial):
    """One attempt at a trial, run by a thread of its own; what it prints goes to its own log.

    Args:
        host: The lane.
        verdicts: The eventfd of its seat.
        spec: What to run.
    """

    _host: ForkedHost

    def __init__(self, host: ForkedHost, verdicts: int, spec: TrialSpec) -> None:
        super().__init__(host, verdicts, spec)
        self._spec = spec
        self._log = -1
        self._reports = 0
        self._stop_rule: StopRule | None = None
        # When it first heard that it has come as far as it was meant to, and how often it has.
        self._met_at = math.inf
        self._met_heard = 0
        self._checkpoints = Checkpoints(spec.trial, self._folder, self._settle_reports)
        # One question and one report at a time, whichever of its threads asks.
        self._asking = threading.Lock()
        self._reporting = threading.RLock()
        self._has_turn = threading.Event()
        # Where its last report ended, or it began; whether it has made one; when it has saved since.
        self._reported_at = time.monotonic()
        self._has_reported = False
        self._saved: tuple[float, float] | None = None
        # A verdict has told it to stop: nobody will have it go on another time.
        self._is_judged_out = False
        # What it reports now is its result, and no verdict on that stops it.
        self._has_returned = False

    def turn_begins(self) -> None:
        super().turn_begins()
        self._has_turn.set()

    def _settle_in(self) -> None:
        self._host.output.redirect(self._log)
        super()._settle_in()

    def turn_ends(self) -> None:
        self._has_turn.clear()
        super().turn_ends()

    def _await_turn(self) -> None:
        """Where a thread waits that the trial has started for itself, and that goes on while others have the turn."""
        if self._host.turns.holder is not self:
            self._has_turn.wait()
        if self._over:
            raise TrialStopped

    # ---- what the trainable calls

    def report(self, metrics: Mapping[str, Any], step: int | None) -> None:
        metric = self._host.options.metric
        if not metric:
            raise InputError(
                "cotune.report() was called in an Optuna objective",
                hint="call trial.report(value, step) there, and return the final value",
            )
        self._await_turn()
        with self._reporting:
            number = self._reports + 1
            where = number if step is None else whole_step(step)
            value, values, line = read_report(metrics, metric, number == 1, self.trial, where, time_of_day())
            is_last = self._stop_rule is not None and self._stop_rule.is_met(self.trial, values, number)
            self._pass_on(where, value, line)
        if is_last:
            # Its last report. It ends at its next boundary, when it has saved what belongs to this one.
            self.met_stop_rule = True
            self._due = 0.0

    def observe(self, value: float, step: int) -> None:
        self._await_turn()
        with self._reporting:
            self._pass_on(step, value, number_line(self.trial, step, value, time_of_day()))

    def _pass_on(self, where: int, value: float, line: bytes) -> None:
        if self._over:
            raise TrialStopped
        entered = time.monotonic()
        self._notice_habit(entered)
        if not self._owes_report:
            self.leave_if_over()
        self._await_verdict()
        if self._waits.is_pausing and not self._loan.is_open:
            # Before this report: it is to stand where the one before was judged.
            self._attend(time.monotonic())
        self._reports += 1
        self._waits.unjudged = True
        self._say(wire.encode_report(self.trial, self.attempt, where, value, line))
        has_stepped = self._has_stepped
        self._count_report()
        # With an optimizer it hears of the verdict at its next step.
        spent, lockstep = entered - self._reported_at, self._host.options.lockstep
        if not self._has_returned and (lockstep or (not has_stepped and self._is_judged_soon(spent))):
            self._await_verdict()
        self._goes_on = self._has_returned or (self._waits.unjudged and self._host.saves_behind is not False)
        try:
            self._boundary()
        finally:
            self._goes_on = False
        self._reported_at, self._has_reported, self._saved = time.monotonic(), True, None

    def _is_judged_soon(self, spent: float) -> bool:
        """Waits a little for the verdict on this report, or a trial that is to stop would make an iteration in vain.

        Not where trials save what belongs to a report behind it: that is not to be lost, and waits for the verdict.
        """
        is_wanted = self._host.options.judged and self._host.saves_behind is False
        return is_wanted and self._waits.is_judged_within(PATIENCE * spent)

    def _notice_habit(self, now: float) -> None:
        """Notes whether trials here save behind their reports, which is seen when they come to the next one."""
        if self._has_reported and not self._host.saves_behind:
            saved, reported = self._saved, self._reported_at
            # Who saves before a report has the iteration before that. In doubt nothing is to be lost.
            self._host.saves_behind = saved is not None and saved[0] - reported < AHEAD * (now - saved[1])

    def ask(self, payload: bytes) -> bytes:
        self._await_turn()
        with self._asking:
            if self._over:
                raise TrialStopped
            self.leave_if_over()
            self._waits.forget_answers()
            self._say(wire.encode_question(wire.Kind.ASK, self.trial, self.attempt, payload))
            while (answer := self._waits.answer()) is None:
                if self._stop:
                    self._meter.read(time.monotonic())
                    raise TrialStopped
        self._boundary()
        return answer

    @property
    def _owes_report(self) -> bool:
        """Whether it has saved ahead of a report, as trials here do, which an attempt from there would leave out."""
        is_ahead = self._saved is not None and self._host.saves_behind is False
        return is_ahead and not self._is_judged_out and not self.met_stop_rule

    def _await_verdict(self) -> None:
        """Waits for the verdict on the last report, and obeys it."""
        self._hear_verdict()
        if self._stop and not self._owes_report:
            self._meter.read(time.monotonic())
            raise TrialStopped

    def _hear_verdict(self) -> None:
        with self._reporting:
            if self._waits.verdict():
                self._stop = self._is_judged_out = True

    def _settle_reports(self) -> tuple[int, bool]:
        self._await_turn()
        with self._reporting:
            # Once judged, they are safe.
            self._hear_verdict()
            return self._reports, self.met_stop_rule

    @contextlib.contextmanager
    def checkpoint(self) -> Iterator[Path]:
        began, is_first = time.monotonic(), self._saved is None
        with self._checkpoints.save() as path:
            yield path
        self._saved = began, time.monotonic()
        if not (is_first and self._owes_report):
            self.leave_if_over()
        if self._waits.is_pausing and not self._loan.is_open:
            # It is to wait, and has saved what belongs to its last report.
            self._attend(time.monotonic())

    def restore(self) -> Path | None:
        path = self._folder.latest_checkpoint()
        if path is not None and self._reports == 0:
            # One that takes nothing up makes all its reports again.
            self._reports = self._folder.reports_at_checkpoint()
            # It had come to its end, and the news was lost.
            self.met_stop_rule = self._folder.is_over_at_checkpoint()
            self.leave_if_over()
        return path

    # ---- the whole attempt

    def run(self) -> None:
        """The body of the trial's thread."""
        try:
            self._run()
        except BaseException:
            # A lane in which this fails is of no use: its death is reported, and its residents go on elsewhere.
            try:
                traceback.print_exc()
            finally:
                # Also where the trial has broken what printing needs: it would have its turn for ever.
                os._exit(1)

    def _run(self) -> None:
        host = self._host
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
            ending = self._explain(error)
        session.bind(None)
        self._end(ending)
        host.turns.leave(self)
        # Whoever waits for it hears that it is over.
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
        host = self._host
        try:
            self.leave_if_over()
            host.prepare_thread()
            function, config = host.load(self._spec)
            if self._context is not None:
                self._context.adopt(function)
            self.leave_if_over()
            self._stop_rule = host.load_stop()
            returned = self._call(function, config)
            self._leave_if_forked()
            del config
            del function
            if isinstance(returned, Mapping):
                self._report_result(returned)
            elif returned is not None and (self._reports == 0 or _is_number(returned)):
                self._report_result({host.options.metric: returned})
            if self._reports == 0 and host.options.metric:
                raise NoReport(
                    "the trainable ended without a report",
                    hint=f"call cotune.report({{{host.options.metric!r}: ...}}), or return that number",
                )
            # What went wrong on the device behind its back would otherwise befall the next trial.
            host.memory.synchronize()
            if host.options.judged and not self._has_returned:
                self._await_verdict()
        except BaseException as error:
            self._leave_if_forked(error)
            if not isinstance(error, TrialStopped):
                return self._explain(error)
            if not self._stop:
                # To the driver it would be a pause, after which it starts again, for ever.
                return self._explain(own_stop(error))
            traceback.clear_frames(error.__traceback__)
            with contextlib.suppress(Exception):
                # Iterations count once the device has done them; what has gone wrong there is about to be found.
                host.memory.synchronize()
            return Ending(Outcome.STOPPED)
        return Ending(Outcome.DONE)

    def _report_result(self, metrics: Mapping[str, Any]) -> None:
        """Reports what the trainable has returned: it is done, whatever a pruner would say of that."""
        self._has_returned = True
        self.report(metrics, None)

    def _call(self, function: Any, config: Any) -> Any:
        """Runs the trainable until it returns, or until it has come as far as it was meant to."""
        returned = None
        try:
            returned = trainable.call(function, config)
        except TrialStopped as stopped:
            if self._stop or not self.met_stop_rule:
                raise
            traceback.clear_frames(stopped.__traceback__)
        # Its last report was made.
        return None if self.met_stop_rule else returned

    def leave_if_over(self) -> None:
        super().leave_if_over()
        if not self.met_stop_rule:
            return
        now = time.monotonic()
        self._met_at = min(self._met_at, now)
        self._met_heard += 1
        if now - self._met_at > LEAVE_WITHIN and self._met_heard > LEAVE_HEARD:
            # It catches what is to end it, and goes on. Nobody else would end it, for it does come to its boundaries.
            self._end(Ending(Outcome.DONE))
            os._exit(1)
        raise TrialStopped

    def _leave_if_forked(self, error: BaseException | None = None) -> None:
        """A process that the trainable has forked ends where the trainable does, and says nothing for the trial."""
        if os.getpid() == self._host.process:
            return
        code: Any = 0
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            traceback.print_exception(error)
            code = 1
        os._exit(code & 0xFF)

    def _explain(self, error: BaseException) -> Ending:
        if isinstance(error, SystemExit) and error.code in (None, 0) and self._reports:
            return Ending(Outcome.DONE)
        is_memory, needed = self._ran_out(error)
        text = f"sys.exit({error.code!r}) was called" if isinstance(error, SystemExit) else text_of(error)
        # A class of the user's own may be named like one of ours.
        name = type(error).__name__ if isinstance(error, CotuneError) else "TrialFailed"
        kind = type(error).__name__
        with contextlib.suppress(Exception):
            self._folder.error.write_text(trainable.trace_of(error), encoding="utf-8", errors="backslashreplace")
        if self._host.survives(error):
            _forget(error)
        if is_memory:
            return Ending(Outcome.OUT_OF_MEMORY, needed, name, text[:500])
        detail = text if isinstance(error, CotuneError) else f"{kind}: {text[:2000]}"
        return Ending(Outcome.FAILED, None, name, detail, final=isinstance(error, (InputError, NoReport)))


def _is_number(value: object) -> bool:
    if isinstance(value, bool):
        return False
    if hasattr(value, "item"):
        return math.prod(getattr(value, "shape", ())) == 1
    return hasattr(type(value), "__float__")


def _forget(error: BaseException) -> None:
    """Lets go of the frames, and so the tensors, that an exception and all behind it keep alive."""
    clear_frames(error)
    for cause in causes(error):
        cause.__traceback__ = None
    sys.last_value = None
