import logging
import warnings

import optuna
import pytest

from cotune.search.telling import tell


def test_a_warning_shown_before_a_trial_ends_is_not_shown_again_after_it():
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        for value in (1.0, 2, True):
            warnings.warn("old", FutureWarning, stacklevel=1)
            tell(study, study.ask(), None, value, None)
    assert len(shown) == 1


def test_the_best_trial_is_not_copied_to_be_logged(caplog):
    class Large:
        def __deepcopy__(self, memo):
            copies.append(self)
            return self

    study, copies = optuna.create_study(), []
    best = study.ask()
    best.set_user_attr("predictions", Large())
    study.tell(best, 0.0)
    copies.clear()
    logger = logging.getLogger("optuna")
    logger.addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.INFO, logger="optuna"):
            tell(study, study.ask(), None, [1.0], None)
    finally:
        logger.removeHandler(caplog.handler)
    assert "Best is trial 0 with value: 0.0." in caplog.messages[-1]
    assert copies == []


def test_a_trial_that_was_told_what_the_study_takes_for_a_number_and_is_none_has_failed():
    study = optuna.create_study()
    for value, error in (("7", TypeError), (10**400, OverflowError)):
        with pytest.raises(error):
            tell(study, study.ask(), None, value, None)
    assert {trial.state for trial in study.trials} == {optuna.trial.TrialState.FAIL}
