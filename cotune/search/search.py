"""The search: Optuna on a thread of its own, off the driver's hot path.

    driver ──ask, report, tell──▶ queue ──▶ search thread ──▶ Optuna study ──▶ journal
    driver ◀─Suggestion, Verdict, Promotion ...─────── answers, and a wake-up

Only the search thread touches Optuna. It serves reports and ends in the order they came, and suggests when few other
commands wait, so that one lane in lockstep is reproducible.
"""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, Trial, create_trial
from optuna.trial import TrialState as OptunaState

from cotune.errors import CotuneError, InputError
from cotune.paths import RunFolder
from cotune.search.journal import RunStorage, SystemAttributes, WriteBehindBackend, system_attributes
from cotune.search.promotion import AshaPromote, Rungs
from cotune.search.proposer import Exhausted, Failure, Promotion, Proposer, Reply, Settled, Suggestion, Verdict
from cotune.search.spaces import Space
from cotune.search.telling import overwrite_lost, take_back
from cotune.trial import Question, TrialState, last_value

FLUSH_EVERY = 1.0
CLOSE_WITHIN = 10.0
MAX_VALUES = 1000
_STATES = {
    TrialState.DONE: OptunaState.COMPLETE,
    TrialState.STOPPED: OptunaState.PRUNED,
    TrialState.FAILED: OptunaState.FAIL,
}


@dataclass(frozen=True, slots=True)
class PastTrial:
    """A trial of an earlier run that is resumed.

    Attributes:
        number: Its number.
        params: Parameters by flat name.
        values: Step and metric of its reports.
        state: The state it was left in.
        start: When it first ran, in seconds since the epoch; None if it has not.
        end: When it ended.
    """

    number: int
    params: dict[str, Any]
    values: Sequence[tuple[int, float]]
    state: TrialState
    start: float | None
    end: float | None


class Search(Proposer):
    """Asks Optuna for trials and tells it how they ended; no method for the driver waits for Optuna.

    Args:
        space: The search space.
        sampler: Suggests parameters.
        pruner: Judges reports; None lets every trial run to its end. With an `AshaPromote` trials wait instead of being
            stopped.
        direction: `minimize` or `maximize`.
        folder: The run's folder; what sampler and pruner have noted in a journal that is there is taken up.
        past: Trials of the run that is resumed, in the order of their numbers.
        wake: As for `Proposer`.
    """

    def __init__(
        self,
        space: Space,
        sampler: BaseSampler,
        pruner: BasePruner | AshaPromote | None,
        *,
        direction: Literal["minimize", "maximize"],
        folder: RunFolder,
        past: Sequence[PastTrial],
        wake: Callable[[], None],
    ) -> None:
        super().__init__(folder, wake)
        self.judges = pruner is not None
        self._rungs: Rungs | None = None
        self._completed = 0
        if isinstance(pruner, AshaPromote):
            self._rungs, pruner = Rungs(pruner, 1.0 if direction == "minimize" else -1.0), None
        self._trials: dict[int, Trial] = {}
        self._exhausted = False
        self._distributions = space.distributions()
        self._exact = space.exact
        self._attempts: dict[int, int] = {}
        self._begin(sampler, pruner, direction, past)
        self._thread = threading.Thread(target=self._serve, name="cotune-search", daemon=True)
        self._thread.start()

    def _begin(
        self,
        sampler: BaseSampler,
        pruner: BasePruner | None,
        direction: Literal["minimize", "maximize"],
        past: Sequence[PastTrial],
    ) -> None:
        """Makes the study from the trials of earlier sessions; its journal replaces theirs."""
        journal = self._folder.journal
        noted = system_attributes(journal)
        # Under another name until it is complete: only the journal it replaces holds what was noted.
        fresh = journal.with_name(f"{journal.name}.new")
        fresh.unlink(missing_ok=True)
        self._backend = WriteBehindBackend(fresh)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self._storage = RunStorage(self._backend)
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(max(verbosity, optuna.logging.WARNING))
        try:
            self.study = optuna.create_study(
                storage=self._storage,
                sampler=sampler,
                pruner=pruner,
                study_name=self._folder.path.name,
                direction=direction,
            )
            self._take_up(past, noted)
            self._backend.flush()
            self._backend.move(journal)
        except BaseException:
            self._backend.close()
            fresh.unlink(missing_ok=True)
            raise
        finally:
            optuna.logging.set_verbosity(verbosity)

    # ---- for the driver

    def report(self, trial: int, attempt: int, step: int, value: float) -> None:
        self._commands.put(lambda: self._report(trial, attempt, step, value))

    def tell(
        self,
        trial: int,
        state: TrialState,
        values: Sequence[tuple[int, float]],
        error: CotuneError | None,
    ) -> None:
        # Unless Optuna has had each report for judging. It makes no use of a failed trial's reports.
        is_judged, value = self.judges and self._rungs is None, last_value(values)
        passed = [] if is_judged or state is TrialState.FAILED else list(values)
        self._commands.put(lambda: self._tell(trial, state, value, passed))

    def question(self, question: Question) -> None:
        """Answers with nothing: trials of a run have all their parameters when they start."""
        self._answer(Reply(question.trial, question.attempt, b""))

    def settle(self) -> None:
        """Tells that nothing runs: if no trial is complete, the best waiting one goes on, else a `Settled` comes."""
        self._commands.put(self._settle)

    def close(self) -> None:
        """Serves the commands that are left, writes the journal and ends the thread.

        A sampler that computes for longer than `CLOSE_WITHIN` is abandoned: the journal can be made again.
        """
        self._dropping.set()
        self._commands.put(None)
        self._thread.join(CLOSE_WITHIN)

    # ---- on the search thread

    def _serve(self) -> None:
        # Samplers end a study by study.stop(), which insists on being called within study.optimize().
        self.study._thread_local.in_optimize_loop = True
        due = math.inf
        while (command := self._next(FLUSH_EVERY if self._backend.pending else None, self._backend.flush)) is not None:
            self._guarded(command)
            now = time.monotonic()
            # Reports may come without a pause until the first trial ends.
            if now >= due:
                self._guarded(self._backend.flush)
            due = min(due, now + FLUSH_EVERY) if self._backend.pending else math.inf
        self._guarded(self._backend.flush)
        self._guarded(self._backend.close)

    def _guarded(self, command: Callable[[], None]) -> None:
        try:
            command()
        except BaseException as error:
            self._answer(Failure(error))

    def _ask(self) -> None:
        if self._dropping.is_set():
            return
        if self._exhausted or getattr(self.study, "_stop_flag", False):
            if not self._exhausted:
                self._exhausted = True
                self._answer(Exhausted())
            return
        trial = self.study.ask(self._distributions)
        if self._dropping.is_set():
            # The trial will never run, and would stay RUNNING in the study for ever.
            self.study.tell(trial, state=OptunaState.FAIL)
            return
        self._trials[trial.number] = trial
        self._folder.trial(trial.number).renew()
        self._keep_notes()
        params = {name: _stored(self._distributions[name], value) for name, value in trial.params.items()}
        self._answer(Suggestion(trial.number, self._exact(params)))

    def _report(self, number: int, attempt: int, step: int, value: float) -> None:
        trial = self._trials[number]
        if self._attempts.get(number) != attempt:
            self._attempts[number] = attempt
            take_back(trial, step)
        if self._rungs is not None:
            waits, promoted = self._rungs.report(number, step, value)
            for other in promoted:
                self._answer(Promotion(other))
            self._answer(Verdict(number, attempt, stop=False, wait=waits))
            return
        is_number = not math.isnan(value)
        if is_number:
            self._store(trial, step, value)
        verdict = Verdict(number, attempt, is_number and bool(trial.should_prune()))
        self._keep_notes()
        self._answer(verdict)

    def _keep_notes(self) -> None:
        """Writes what sampler or pruner have noted, such as a value at a rung, before the trial goes on.

        If it were lost with this process, and the report kept, the trial's next report would stand for that rung.
        """
        if self._storage.has_noted:
            self._storage.has_noted = False
            self._backend.flush()

    def _settle(self) -> None:
        best = None if self._rungs is None or self._completed else self._rungs.best_waiting()
        self._answer(Settled() if best is None else Promotion(best))

    def _store(self, trial: Trial, step: int, value: float) -> None:
        # A trial resumed from a checkpoint reports a step again, which Optuna would ignore with a warning.
        trial._cached_frozen_trial.intermediate_values.pop(step, None)
        trial.report(value, step)

    def _tell(self, number: int, state: TrialState, value: float | None, values: list[tuple[int, float]]) -> None:
        trial, is_done = self._trials.pop(number), state is TrialState.DONE
        if self._attempts.pop(number, 0) > 0:
            overwrite_lost(self.study, trial)
        self._completed += is_done
        if self._rungs is not None:
            self._rungs.over(number)
        for step, reported in _thinned(values):
            self._store(trial, step, reported)
        self.study.tell(trial, value if is_done else None, state=_STATES[state])
        self._backend.flush()

    def _take_up(self, past: Sequence[PastTrial], noted: SystemAttributes) -> None:
        for name, value in noted.study.items():
            self.study._storage.set_study_system_attr(self.study._study_id, name, value)
        made = 0
        for trial in past:
            for _ in range(made, trial.number):
                # The sampler had added a trial of its own to the study.
                self.study.add_trial(create_trial(state=OptunaState.FAIL))
            made = trial.number + 1
            self._restore(trial, noted.trials.get(trial.number, {}))
            if self._rungs is not None:
                self._rungs.restore(trial.number, trial.values, trial.state in _STATES)
        if self._rungs is not None:
            self._rungs.settle()
            self.waiting = self._rungs.waiting

    def _restore(self, past: PastTrial, noted: Mapping[str, Any]) -> None:
        state, is_done = _STATES.get(past.state, OptunaState.RUNNING), past.state is TrialState.DONE
        has_value = is_done or past.state is TrialState.STOPPED
        try:
            frozen: FrozenTrial = create_trial(
                state=state,
                params=past.params,
                distributions={name: self._distributions[name] for name in past.params},
                value=last_value(past.values) if has_value else None,
                intermediate_values=dict(_thinned(list(past.values))),
                system_attrs=dict(noted),
            )
        except (KeyError, ValueError) as error:
            raise InputError(
                f"a trial of the run that is resumed has {past.params}, which this space does not hold: {error}",
                hint="resume with the same space, or choose another name=",
            ) from error
        self._completed += is_done
        # A trial may have failed before it ran.
        for name, moment in (("datetime_start", past.start or past.end), ("datetime_complete", past.end)):
            if moment is not None and (name == "datetime_start" or state.is_finished()):
                setattr(frozen, name, datetime.fromtimestamp(moment))
        identity = self.study._storage.create_new_trial(self.study._study_id, template_trial=frozen)
        if state is OptunaState.RUNNING:
            trial = Trial(self.study, identity)
            self._trials[trial.number] = trial


def _stored(distribution: BaseDistribution, value: Any) -> Any:
    """A parameter as Optuna's storages give it back: a sampler may return a number of NumPy's."""
    return distribution.to_external_repr(distribution.to_internal_repr(value))


def _thinned(values: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """At most about `MAX_VALUES` of a trial's reports: Optuna copies all of them at every new report."""
    values = [(step, value) for step, value in values if not math.isnan(value) and step >= 0]
    if len(values) <= MAX_VALUES:
        return values
    stride = math.ceil(len(values) / MAX_VALUES)
    return [*values[:-1:stride], values[-1]]
