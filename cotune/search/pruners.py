"""Optuna's pruners as they are called by name.

Two of them wait by default for the first trial to end to find out how many steps there are. Those that run by then get
for their first rungs what they have at that moment, and all that come after are held against that.
"""

from __future__ import annotations

from optuna import Study
from optuna.pruners import BasePruner, HyperbandPruner, SuccessiveHalvingPruner
from optuna.trial import FrozenTrial, TrialState


class Asha(BasePruner):
    """Successive halving with its first rung at the step of the first report, or at 1.

    (Li et al., "A system for massively parallel hyperparameter tuning", MLSys'20.)
    """

    def __init__(self) -> None:
        self._pruner: BasePruner | None = None

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        if self._pruner is None:
            steps = [step for one in study.get_trials(deepcopy=False) for step in one.intermediate_values]
            self._pruner = SuccessiveHalvingPruner(min_resource=max(1, min(steps, default=1)))
        return self._pruner.prune(study, trial)


class Hyperband(HyperbandPruner):
    """Hyperband, which cannot do without the number of steps: whoever has reported before that is known runs on.

    (Li et al., "Hyperband: a novel bandit-based approach to hyperparameter optimization", JMLR 18, 2018.)
    """

    def __init__(self) -> None:
        super().__init__()
        self._early: set[int] = set()

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        is_first = len(trial.intermediate_values) == 1
        if is_first and not study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            self._early.add(trial.number)
        return trial.number not in self._early and super().prune(study, trial)
