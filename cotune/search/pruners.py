"""The Optuna pruners that `pruner="asha"` and `pruner="hyperband"` stand for.

By default, Optuna's wait for the first trial to end, to find out how many steps there are. Trials that run by then get
their values of that moment for their first rungs, and all later trials are compared with those.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from itertools import count

from optuna import Study
from optuna.pruners import BasePruner, HyperbandPruner, SuccessiveHalvingPruner
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

# Optuna's default: one in so many trials that come to a rung goes on.
REDUCTION_FACTOR = 4
# What Optuna's pruner notes a trial's value at a rung under, the rung's number behind it.
_RUNG = "completed_rung_"
_EARLY = "cotune:early"


class _Halving(SuccessiveHalvingPruner):
    """Optuna's pruner, with the same verdicts and the same notes, but it remembers the values on each rung.

    Optuna's goes through all trials at every rung: 20 ms a trial once there are 16,000. This one does so once, so no
    other process may judge trials of the study.

    Args:
        first: The step of the first rung.
        factor: One in so many trials goes on.
        skipped: Rungs that are left out at the beginning.
    """

    def __init__(self, first: int, factor: int = REDUCTION_FACTOR, skipped: int = 0) -> None:
        super().__init__(first, factor, skipped)
        self._first = first * factor**skipped
        self._factor = factor
        # For each rung, the values that trials had there, in order.
        self._rungs: defaultdict[int, list[float]] | None = None

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        if self._rungs is None:
            self._rungs = _values(study)
        step, rung = trial.last_step, _next_rung(trial)
        while step is not None and step >= self._first * self._factor**rung:
            value = trial.intermediate_values[step]
            study._storage.set_trial_system_attr(trial._trial_id, _RUNG + str(rung), value)
            values = self._rungs[rung]
            insort(values, value)
            # As long as no share of them is a whole trial, the best one goes on.
            place = max(0, len(values) // self._factor - 1)
            maximizes = study.direction is StudyDirection.MAXIMIZE
            if value < values[-1 - place] if maximizes else value > values[place]:
                return True
            rung += 1
        return False


def _values(study: Study) -> defaultdict[int, list[float]]:
    """The values that trials had on each rung, in order."""
    found: defaultdict[int, list[float]] = defaultdict(list)
    for trial in study.get_trials(deepcopy=False):
        for rung in range(_next_rung(trial)):
            found[rung].append(trial.system_attrs[_RUNG + str(rung)])
    for values in found.values():
        values.sort()
    return found


def _next_rung(trial: FrozenTrial) -> int:
    """The rung that a trial comes to next."""
    noted = trial.system_attrs
    return next(rung for rung in count() if _RUNG + str(rung) not in noted)


class Asha(BasePruner):
    """Successive halving with its first rung at the first step above 0 that is reported.

    (Li et al., "A system for massively parallel hyperparameter tuning", MLSys'20.)
    """

    def __init__(self) -> None:
        self._pruner: BasePruner | None = None

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        if self._pruner is None:
            if (first := _first_step(study, trial)) is None:
                return False
            self._pruner = _Halving(first)
        return self._pruner.prune(study, trial)


def _first_step(study: Study, trial: FrozenTrial) -> int | None:
    """The first step above 0 that trials report: with rungs before it, one report would pass several at once.

    None before this trial has reported one, too: others are not looked through at every report.
    """
    if trial.last_step is None or trial.last_step <= 0:
        return None
    steps = (step for one in study.get_trials(deepcopy=False) for step in one.intermediate_values)
    return min((step for step in steps if step > 0), default=None)


class Hyperband(HyperbandPruner):
    """Hyperband, which needs the number of steps: trials that report before it is known are never pruned.

    (Li et al., "Hyperband: a novel bandit-based approach to hyperparameter optimization", JMLR 18, 2018.) Its first
    rung is where that of `Asha` is.
    """

    def __init__(self) -> None:
        super().__init__()
        self._knows_first = self._has_complete = False

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        if _EARLY in trial.system_attrs:
            return False
        if not self._has_complete:
            self._has_complete = bool(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))
        if len(trial.intermediate_values) == 1 and not self._has_complete:
            # In the study, so that it still holds when a run is resumed.
            study._storage.set_trial_system_attr(trial._trial_id, _EARLY, True)
            return False
        if not self._knows_first and (first := _first_step(study, trial)) is not None:
            self._knows_first = True
            super().__init__(min_resource=first)
        return super().prune(study, trial)

    def _try_initialization(self, study: Study) -> None:
        super()._try_initialization(study)
        for bracket in range(len(self._pruners)):
            self._pruners[bracket] = _Halving(self._min_resource, self._reduction_factor, bracket)
