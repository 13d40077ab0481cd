"""A study of the user's own, served on the thread that called `cotune.optimize`, as `study.optimize` would be.

    driver's loop ──ask, report, question, tell──▶ queue ──▶ caller's thread ──▶ study, sampler, pruner, callbacks
    driver's loop ◀──Suggestion, Verdict, Reply── answers, and a wake-up

Whatever of the user's runs in this process runs on that thread, so an exception in it simply ends the call.
"""

from __future__ import annotations

import copy
import pickle
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.storages._heartbeat import get_heartbeat_thread, is_heartbeat_enabled
from optuna.trial import FrozenTrial, Trial
from optuna.trial import TrialState as OptunaState

from cotune.errors import CotuneError, LaneDied, RunError, TrialFailed, TrialOverdue, TrialTooLarge
from cotune.search.proposer import Exhausted, Proposer, Reply, Suggestion, Verdict
from cotune.search.study_proxy import pack, pack_error, unpack_error
from cotune.search.telling import settle, take_back, tell
from cotune.trial import Question, TrialState

# Reports on their way to the storage before trials wait for it.
BACKLOG = 16
# The objective raised nothing that could be caught: these fail their trial alone.
_ALONE = (TrialTooLarge, LaneDied, TrialOverdue)

_logger = optuna.logging.get_logger("optuna.study.cotune")


@dataclass(slots=True)
class _Running:
    """A trial that was asked for and not told.

    Attributes:
        attempt: Of the last report.
        end: How the objective ended in the last attempt that came to that: `returned` a value, `pruned` with some
            words, or `raised` an exception, packed, with its traceback.
        failure: What the storage raised of a report, as long as the objective has not heard of it, and of which
            attempt that was.
    """

    trial: Trial
    heartbeat: Any
    attempt: int = 0
    end: tuple[str, Any] = ("", None)
    failure: tuple[int, Exception] | None = None


class StudySearch(Proposer):
    """Asks a study for trials, answers what they ask, and tells it what became of them.

    Args:
        study: The user's.
        timeout: Seconds after which no trial is asked for any more.
        since: Tells from when on, by the monotonic clock; 0 while no trial runs, since lanes take time to start.
        catch: What an objective may raise without ending it all.
        callbacks: Called with the study and each trial that has ended.
        prepare: As for `Proposer`.
        wake: The same.
    """

    judges = True

    def __init__(
        self,
        study: optuna.Study,
        *,
        timeout: float | None = None,
        since: Callable[[], float] = lambda: 0.0,
        catch: tuple[type[BaseException], ...] = (),
        callbacks: Sequence[Callable[[optuna.Study, FrozenTrial], Any]] = (),
        prepare: Callable[[int], None] = lambda _: None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(prepare, wake)
        self._study = study
        self._timeout = float("inf") if timeout is None else timeout
        self._since = since
        self._catch = catch
        self._callbacks = callbacks
        self._running: dict[int, _Running] = {}
        self._failure: BaseException | None = None

    # ---- for the driver's loop

    def report(self, trial: int, attempt: int, step: int, value: float) -> None:
        # Nobody waits for the storage, as long as that keeps up.
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
        value: float | None,
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
        """The loop is over, well or not: `serve` returns, or raises the failure."""
        self._failure = failure
        self._commands.put(None)

    # ---- on the caller's thread

    def serve(self) -> None:
        """Serves until the loop is over.

        Raises:
            BaseException: What an objective raised that is not to be caught, what a callback, the sampler or the
                storage raised, or why the loop could not go on.
        """
        while (command := self._next()) is not None:
            command()
        if self._failure is not None:
            raise self._failure

    def give_up(self, why: BaseException) -> None:
        """Tells the study how trials ended that it still counts as running: failed, unless they came to their end.

        Args:
            why: What has ended the optimization, which is none of their doing.
        """
        stopped = RunError(f"stopped on its way, for the optimization has ended: {why!r}")
        for number in list(self._running):
            running = self._running.pop(number)
            state = {"returned": None, "pruned": OptunaState.PRUNED}.get(running.end[0], OptunaState.FAIL)
            try:
                running.heartbeat.join()
                self._settle(running)
                tell(self._study, running.trial, state, running.end[1], stopped if state is OptunaState.FAIL else None)
            except Exception as error:
                # Such as a storage that is gone, or another process that has told it already.
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
        heartbeat = get_heartbeat_thread(trial._trial_id, self._study._storage)
        self._running[trial.number] = _Running(trial, heartbeat)
        heartbeat.start()
        self._prepare(trial.number)
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
                # Such as a file that another process has locked.
                running.failure = attempt, error
        if not is_judged:
            self._answer(Verdict(number, attempt, False))

    def _reply(self, question: Question) -> None:
        running = self._running.get(question.trial)
        stop, payload = False, b""
        if running is not None:
            if running.failure is not None and running.failure[0] < question.attempt:
                # That attempt was lost, and this one reports again.
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
                payload = pack((True, value))
            except Exception as error:
                payload = pack((False, pack_error(error)))
        self._answer(Reply(question.trial, question.attempt, payload, stop))

    # ---- how trials end

    def _settle(self, running: _Running) -> None:
        if running.attempt > 0:
            settle(self._study, running.trial)

    def _end(self, number: int, error: CotuneError | None, *, is_pruned: bool) -> None:
        """Tells the study how a trial ended, and the callbacks; raises what nobody catches."""
        running = self._running.pop(number)
        raised = None if is_pruned else _raised(running, error)
        running.heartbeat.join()
        self._settle(running)
        state = OptunaState.PRUNED if is_pruned else OptunaState.FAIL if raised is not None else None
        tell(self._study, running.trial, state, running.end[1], raised)
        if raised is not None and not isinstance(raised, (*_ALONE, *self._catch)):
            raise raised
        frozen = self._study._storage.get_trial(running.trial._trial_id)
        for callback in self._callbacks:
            callback(self._study, copy.deepcopy(frozen))


def _ask(asked: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(asked, optuna.Study) and name == "ask":
        raise RunError("study.ask() was called in a lane", hint="a further trial belongs to the driver: enqueue one")
    value = getattr(asked, name)
    return value(*args, **kwargs) if callable(value) else value


def _raised(running: _Running, error: CotuneError | None) -> BaseException | None:
    """What ended a trial: what its objective raised, or would have, if that could travel; else what befell it."""
    how, what = running.end
    if not isinstance(error, _ALONE) and running.failure is not None:
        return running.failure[1]
    if isinstance(error, _ALONE) or how != "raised":
        return error
    blob, trace = what
    raised = unpack_error(blob)
    if raised is None:
        return error or TrialFailed(f"trial {running.trial.number} raised what cannot leave its lane", hint=trace)
    raised.add_note(f"\nIn the lane of trial {running.trial.number}:\n{trace}")
    return raised
