"""Serves a user's study on the thread that called `cotune.optimize`, as `study.optimize` would.

    driver's loop ──ask, report, question, tell──▶ queue ──▶ caller's thread ──▶ study, sampler, pruner, callbacks
    driver's loop ◀──Suggestion, Verdict, Reply── answers, and a wake-up

All user code in this process runs on that thread, so an exception in it simply ends the call.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import pickle
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.storages._heartbeat import get_heartbeat_thread, is_heartbeat_enabled
from optuna.trial import FrozenTrial, Trial
from optuna.trial import TrialState as OptunaState

from cotune.errors import CotuneError, LaneDied, RunError, StorageError, TrialFailed, TrialOverdue, TrialTooLarge
from cotune.paths import RunFolder
from cotune.search.proposer import Exhausted, Proposer, Reply, Suggestion, Verdict
from cotune.search.study_wire import METHOD, decode_error, encode, encode_error
from cotune.search.telling import overwrite_lost, take_back, tell
from cotune.trial import Question, TrialState

# With so many commands queued, trials wait until their reports are stored.
BACKLOG = 16
# Errors that the objective did not raise, and `catch` need not name: they fail their trial alone.
_ALONE = (TrialTooLarge, LaneDied, TrialOverdue)

_logger = optuna.logging.get_logger("optuna.study.cotune")


@dataclass(slots=True)
class _Running:
    """A trial that was asked for, and whose end the study has not been told.

    Attributes:
        attempt: The attempt of the last report.
        end: How the objective ended, in the last attempt in which it did: `returned` a value, `pruned` with a
            message, or `raised` an exception, packed, with its traceback.
        failure: The attempt of a report and the storage's error on it, until the objective has been told.
    """

    trial: Trial
    heartbeat: Any
    attempt: int = 0
    end: tuple[str, Any] = ("", None)
    failure: tuple[int, Exception] | None = None


class StudySearch(Proposer):
    """Asks a study for trials, answers their questions, and tells the study how they ended.

    Args:
        study: The user's study.
        folder: As for `Proposer`.
        timeout: Seconds after which no further trial is asked for.
        since: Gives the monotonic time the timeout counts from; 0 until a trial has started, as lanes take time.
        catch: Exceptions of the objective that end only their trial.
        callbacks: Called with the study and each trial that has ended; gone through anew after each.
        wake: As for `Proposer`.
    """

    judges = True

    def __init__(
        self,
        study: optuna.Study,
        *,
        folder: RunFolder,
        timeout: float | None = None,
        since: Callable[[], float] = lambda: 0.0,
        catch: tuple[type[BaseException], ...] = (),
        callbacks: Iterable[Callable[[optuna.Study, FrozenTrial], Any]] = (),
        wake: Callable[[], None],
    ) -> None:
        super().__init__(folder, wake)
        self._study = study
        self._timeout = float("inf") if timeout is None else timeout
        self._since = since
        self._catch = catch
        self._callbacks = callbacks
        self._running: dict[int, _Running] = {}
        # Numbers of all trials that the study has given out.
        self._asked: set[int] = set()
        self._failure: BaseException | None = None

    # ---- for the driver's loop

    def report(self, trial: int, attempt: int, step: int, value: float) -> None:
        # Trials do not wait for the storage as long as it keeps up.
        keeps_up = self._commands.qsize() < BACKLOG
        self._commands.put(lambda: self._report(trial, attempt, step, value, is_judged=keeps_up))
        if keeps_up:
            self._answers.append(Verdict(trial, attempt, False))

    def question(self, question: Question) -> None:
        self._commands.put(lambda: self._reply(question))

    def tell(
        self,
        trial: int,
        state: TrialState,
        values: Sequence[tuple[int, float]],
        error: CotuneError | None,
    ) -> None:
        self._commands.put(lambda: self._end(trial, error, is_pruned=state is TrialState.STOPPED))

    def settle(self) -> None:
        """Nothing to do: the trials of a study are never held."""

    def drop_asks(self) -> None:
        super().drop_asks()
        self._commands.put(lambda: _logger.warning("Running trials stop now. Press Ctrl-C again to end at once."))

    def finished(self, failure: BaseException | None) -> None:
        """Called when the loop has ended: `serve` returns, or raises the failure."""
        self._failure = failure
        self._commands.put(None)

    # ---- on the caller's thread

    def serve(self) -> None:
        """Serves until the loop has ended.

        Raises:
            BaseException: An objective raised it and it is not in `catch`; a callback, the sampler or the storage
                raised it; or the loop failed with it.
        """
        while (command := self._next()) is not None:
            command()
        if self._failure is not None:
            raise self._failure

    def give_up(self, why: BaseException) -> None:
        """Tells the study the ends of trials it still counts as running: failed, unless the objective has ended.

        Args:
            why: What ended the optimization, which the trials did not cause.
        """
        stopped = RunError(f"stopped on its way, for the optimization has ended: {why!r}")
        for number in list(self._running):
            running = self._running.pop(number)
            state = {"returned": None, "pruned": OptunaState.PRUNED}.get(running.end[0], OptunaState.FAIL)
            raised: Exception = stopped
            if running.failure is not None:
                state, raised = OptunaState.FAIL, running.failure[1]
            try:
                running.heartbeat.join()
                self._overwrite_lost(running)
                tell(self._study, running.trial, state, running.end[1], raised if state is OptunaState.FAIL else None)
            except Exception as error:
                # For example, the storage is gone, or another process has told the trial's end already.
                _logger.warning(f"Trial {number} could not be told to have failed: {error!r}")

    def _ask(self) -> None:
        since = self._since()
        late = since > 0 and time.monotonic() >= since + self._timeout
        if self._dropping.is_set() or late or self._study._stop_flag:
            self._wanted = 0
            self._answer(Exhausted())
            return
        if is_heartbeat_enabled(self._study._storage):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                optuna.storages.fail_stale_trials(self._study)
        trial = self._study.ask()
        if trial.number in self._asked:
            # Optuna's journal, for one, goes on in a new file, of which it does not read the first entries.
            raise StorageError(
                f"the study has given out trial {trial.number} twice: its storage was removed or replaced meanwhile",
                hint="leave the storage alone while a study is optimized",
            )
        self._asked.add(trial.number)
        heartbeat = get_heartbeat_thread(trial._trial_id, self._study._storage)
        self._running[trial.number] = _Running(trial, heartbeat)
        heartbeat.start()
        self._folder.trial(trial.number).renew()
        self._answer(Suggestion(trial.number, {}))

    def _report(self, number: int, attempt: int, step: int, value: float, *, is_judged: bool) -> None:
        running = self._running.get(number)
        if running is not None:
            if attempt > running.attempt:
                running.attempt = attempt
                take_back(running.trial, step)
            try:
                running.trial.report(value, step)
            except Exception as error:
                # For example, another process has locked the storage's file.
                running.failure = attempt, error
        if not is_judged:
            self._answer(Verdict(number, attempt, False))

    def _reply(self, question: Question) -> None:
        running = self._running.get(question.trial)
        stop, payload = False, b""
        if running is not None:
            if running.failure is not None and running.failure[0] < question.attempt:
                # The attempt that failed to report was lost, and this one reports again.
                running.failure = None
            try:
                target, name, args, kwargs = pickle.loads(question.payload)
                if target == "end":
                    running.end = (name, args[0])
                    stop, value = name == "pruned", None
                elif running.failure is not None:
                    (_, failure), running.failure = running.failure, None
                    raise failure
                else:
                    asked = {"trial": running.trial, "study": self._study, "storage": self._study._storage}[target]
                    value = _ask(asked, name, args, kwargs)
                payload = encode((True, value))
            except Exception as error:
                payload = encode((False, encode_error(error)))
        self._answer(Reply(question.trial, question.attempt, payload, stop))

    # ---- how trials end

    def _overwrite_lost(self, running: _Running) -> None:
        if running.attempt > 0:
            overwrite_lost(self._study, running.trial)

    def _end(self, number: int, error: CotuneError | None, *, is_pruned: bool) -> None:
        """Tells the study and the callbacks how a trial ended; raises an error that is not in `catch`."""
        running = self._running.pop(number)
        running.heartbeat.join()
        # An objective may prune itself without having heard what became of its reports.
        raised = None if is_pruned and running.failure is None else _raised(running, error)
        self._overwrite_lost(running)
        state = OptunaState.FAIL if raised is not None else OptunaState.PRUNED if is_pruned else None
        tell(self._study, running.trial, state, running.end[1], raised)
        if raised is not None and not isinstance(raised, (*_ALONE, *self._catch)):
            raise raised
        frozen = self._study._storage.get_trial(running.trial._trial_id)
        for callback in self._callbacks:
            callback(self._study, copy.deepcopy(frozen))


def _ask(asked: Any, name: str, args: tuple[Any, ...] | None, kwargs: dict[str, Any]) -> Any:
    if isinstance(asked, optuna.Study) and name == "ask":
        raise RunError("study.ask() was called in a lane", hint="a further trial belongs to the driver: enqueue one")
    value = getattr(asked, name)
    if args is None:
        return METHOD if inspect.ismethod(value) else value
    return value(*args, **kwargs) if callable(value) else value


def _raised(running: _Running, error: CotuneError | None) -> BaseException | None:
    """The error that ended a trial: the storage's on a report, cotune's, or the objective's, if it can be unpickled."""
    how, what = running.end
    if not isinstance(error, _ALONE) and running.failure is not None:
        return running.failure[1]
    if isinstance(error, _ALONE) or how != "raised":
        return error
    blob, trace = what
    raised = decode_error(blob)
    if raised is None:
        return error or TrialFailed(f"trial {running.trial.number} raised what cannot leave its lane", hint=trace)
    # A class may let nothing be set, such as a frozen dataclass.
    with contextlib.suppress(Exception):
        raised.add_note(f"\nIn the lane of trial {running.trial.number}:\n{trace}")
    return raised
