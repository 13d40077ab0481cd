"""Tells a study how a trial ended, and logs it, as `study.optimize` does."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import optuna
from optuna.study._tell import _tell_with_warning
from optuna.trial import FrozenTrial, Trial, TrialState

_logger = optuna.logging.get_logger("optuna.study.cotune")


def take_back(trial: Trial, step: int) -> None:
    """Forgets reports from a step on: a restarted trial makes them again, and Optuna would keep the first ones."""
    values = trial._cached_frozen_trial.intermediate_values
    for later in [known for known in values if known >= step]:
        del values[later]


def overwrite_lost(study: optuna.Study, trial: Trial) -> None:
    """Overwrites reports of a lost attempt in the storage, before the end of the trial is told.

    Optuna takes the value of a pruned trial from its last step, and no storage can delete a step.
    """
    stands = trial._cached_frozen_trial.intermediate_values
    stored = study._storage.get_trial(trial._trial_id).intermediate_values
    if stands:
        for step in stored.keys() - stands.keys():
            study._storage.set_trial_intermediate_value(trial._trial_id, step, stands[max(stands)])


def tell(study: optuna.Study, trial: Trial, state: TrialState | None, told: Any, raised: BaseException | None) -> None:
    """Tells the study and logs, even if the sampler raises, or the study refuses the value.

    Args:
        study: The user's study.
        trial: The trial that ended.
        state: How it ended; None if the objective returned, and the study is to check the value.
        told: The value that the objective returned, or the message it was pruned with.
        raised: Why it failed, if it did.
    """
    value, complaint = told if state is None else None, None
    try:
        # Like study.tell, but an invalid value is returned as a message, to be logged below, and not warned of.
        *_, complaint = _tell_with_warning(study, trial, value, state, suppress_warning=True)
    except Exception as error:
        if study._storage.get_trial(trial._trial_id).state is TrialState.RUNNING:
            # For example a string of digits, which Optuna first takes for a number.
            complaint = repr(error)
            _tell_with_warning(study, trial, None, TrialState.FAIL, suppress_warning=True)
        raise
    finally:
        frozen = study._storage.get_trial(trial._trial_id)
        if frozen.state is TrialState.COMPLETE:
            _log_completed(study, frozen, trial.params)
        elif frozen.state is TrialState.PRUNED:
            _logger.info(f"Trial {frozen.number} pruned. {told}")
        else:
            _log_failed(trial, complaint or repr(raised), raised, value)


def _log_completed(study: optuna.Study, trial: FrozenTrial, params: Mapping[str, Any]) -> None:
    if not _logger.isEnabledFor(optuna.logging.INFO):
        return
    names, values = study.metric_names, trial.values
    shown = values if names is None else dict(zip(names, values, strict=False))
    if len(values) > 1:
        _logger.info(f"Trial {trial.number} finished with values: {shown} and parameters: {params}.")
        return
    best = ""
    # While no trial is feasible there is no best one.
    with contextlib.suppress(ValueError):
        # Without the copy that `study.best_trial` makes: user attributes may be large, and all lanes wait meanwhile.
        found = study._get_best_trial(deepcopy=False)
        best = f" Best is trial {found.number} with value: {found.value}."
    value = values[0] if names is None else shown
    _logger.info(f"Trial {trial.number} finished with value: {value} and parameters: {params}.{best}")


def _log_failed(trial: Trial, why: str, raised: BaseException | None, value: Any) -> None:
    info = None if raised is None else (type(raised), raised, raised.__traceback__)
    _logger.warning(
        f"Trial {trial.number} failed with parameters: {trial.params} because of the following error: {why}.",
        exc_info=info,
    )
    _logger.warning(f"Trial {trial.number} failed with value {value!r}.")
