"""Successive halving that begins with the first report."""

from __future__ import annotations

from optuna import Study
from optuna.pruners import BasePruner, SuccessiveHalvingPruner
from optuna.trial import FrozenTrial


class Asha(BasePruner):
    """Optuna's `SuccessiveHalvingPruner` with its first rung at the step of the first report, or at 1.

    Left to itself it puts that at a hundredth of the steps of the first trial to end. Those that run by then get for
    their first rungs what they have at that moment, and all that come after are held against that.
    (Li et al., "A system for massively parallel hyperparameter tuning", MLSys'20.)
    """

    def __init__(self) -> None:
        self._pruner: BasePruner | None = None

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        if self._pruner is None:
            steps = [step for one in study.get_trials(deepcopy=False) for step in one.intermediate_values]
            self._pruner = SuccessiveHalvingPruner(min_resource=max(1, min(steps, default=1)))
        return self._pruner.prune(study, trial)
