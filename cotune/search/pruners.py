"""The Optuna pruners that `pruner="asha"` and `pruner="hyperband"` stand for.

By default, Optuna's wait for the first trial to end, to find out how many steps there are. Trials that run by then get
their values of that moment for their first rungs, and all later trials are compared with those.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from itertools import count

from optuna import Study
from optuna.pruners import BasePruner, HyperbandPruner
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

# One in so many trials that come to a rung goes on.
REDUCTION_FACTOR = 4
# What Optuna's pruner notes a trial's value at a rung under, the rung's number behind it.
_RUNG = "completed_rung_"


class Asha(BasePruner):
    """Successive halving with its first rung at the first step above 0 that is reported.

    (Li et al., "A system for massively parallel hyperparameter tuning", MLSys'20.) Its verdicts and its notes are those
    of Optuna's `SuccessiveHalvingPruner`, which goes through all trials at every rung: 10 ms each at ten thousand
    trials. This one remembers the values on each rung, so no other process may judge trials of the study.
    """

    def __init__(self) -> None:
        self._first: int | None = None
        # For each rung, the values that trials had there, in order.
        self._rungs: defaultdict[int, list[float]] = defaultdict(list)

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        step, rung = trial.last_step, _next_rung(trial)
        if step is None or step <= 0:
            return False
        if self._first is None:
            self._first = _first_step(study) or step
            self._take_up(study)
        while step >= self._first * REDUCTION_FACTOR**rung:
            value = trial.intermediate_values[step]
            study._storage.set_trial_system_attr(trial._trial_id, _RUNG + str(rung), value)
            values = self._rungs[rung]
            insort(values, value)
            # As long as nobody is among the best quarter, the best trial goes on.
            place = max(0, len(values) // REDUCTION_FACTOR - 1)
            maximizes = study.direction is StudyDirection.MAXIMIZE
            if value < values[-1 - place] if maximizes else value > values[place]:
                return True
            rung += 1
        return False

    def _take_up(self, study: Study) -> None:
        """Takes up the values of earlier sessions."""
        for one in study.get_trials(deepcopy=False):
            for rung in range(_next_rung(one)):
                insort(self._rungs[rung], one.system_attrs[_RUNG + str(rung)])


def _next_rung(trial: FrozenTrial) -> int:
    """The rung that a trial comes to next."""
    noted = trial.system_attrs
    return next(rung for rung in count() if _RUNG + str(rung) not in noted)


def _first_step(study: Study) -> int | None:
    """The first step above 0 that trials report: with rungs before it, one report would pass several at once."""
    steps = (step for one in study.get_trials(deepcopy=False) for step in one.intermediate_values)
    return min((step for step in steps if step > 0), default=None)


_EARLY = "cotune:early"


class Hyperband(HyperbandPruner):
    """Hyperband, which needs the number of steps: trials that report before it is known are never pruned.

    (Li et al., "Hyperband: a novel bandit-based approach to hyperparameter optimization", JMLR 18, 2018.) Its first
    rung is where that of `Asha` is.
    """

    def __init__(self) -> None:
        super().__init__()
        self._knows_first = False

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        if _EARLY in trial.system_attrs:
            return False
        is_first = len(trial.intermediate_values) == 1
        if is_first and not study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            # In the study, so that it still holds when a run is resumed.
            study._storage.set_trial_system_attr(trial._trial_id, _EARLY, True)
            return False
        if not self._knows_first and (first := _first_step(study)) is not None:
            self._knows_first = True
            super().__init__(min_resource=first)
        return super().prune(study, trial)
