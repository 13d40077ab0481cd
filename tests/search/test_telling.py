import warnings

import optuna

from cotune.search.telling import tell


def test_a_warning_shown_before_a_trial_ends_is_not_shown_again_after_it():
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        for value in (1.0, 2, True):
            warnings.warn("old", FutureWarning, stacklevel=1)
            tell(study, study.ask(), None, value, None)
    assert len(shown) == 1
