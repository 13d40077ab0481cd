"""The Optuna pruners that `pruner="asha"` and `pruner="hyperband"` stand for.

By default, Optuna's wait for the first trial to end, to find out how many steps there are. Trials that run by then get
their values of that moment for their first rungs, and all later trials are compared with those.
"""

from __future__ import annotations

from optuna import Study
from optuna.pruners import BasePruner, HyperbandPruner, SuccessiveHalvingPruner
from optuna.trial import FrozenTrial, TrialState


class Asha(BasePruner):
    """Successive halving with its first rung at the first step above 0 that is reported.

    (Li et al., "A system for massively parallel hyperparameter tuning", MLSys'20.)
    """

    def __init__(self) -> None:
        self._pruner: BasePruner | None = None

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        if self._pruner is None:
            if (first := _first_step(study)) is None:
                return False
            self._pruner = SuccessiveHalvingPruner(min_resource=first)
        return self._pruner.prune(study, trial)


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
