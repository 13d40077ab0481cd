"""Optuna's pruners as they are called by name."""

import random
from collections.abc import Sequence

import optuna
import pytest
from optuna.pruners import SuccessiveHalvingPruner

from cotune.search import pruners
from cotune.search.pruners import Asha, Hyperband

PRUNED = optuna.trial.TrialState.PRUNED


def report(trial: optuna.Trial, steps: Sequence[int], worth: float) -> int | None:
    """Reports until the trial is to stop; the step at which it is."""
    for count, step in enumerate(steps, start=1):
        trial.report(worth / count, step)
        if trial.should_prune():
            return step
    return None


@pytest.mark.parametrize("apart", [1, 1000])
def test_trials_are_judged_at_their_rungs_before_any_is_complete(apart: int) -> None:
    study = optuna.create_study(pruner=Asha())
    first, worse, better = study.ask({}), study.ask({}), study.ask({})
    steps = [apart * count for count in range(1, 9)]
    assert report(first, steps, 2.0) is None
    assert report(worse, steps, 3.0) == apart
    assert report(better, steps, 1.0) is None
    assert [trial.system_attrs["completed_rung_0"] for trial in study.trials] == [2.0, 3.0, 1.0]


def test_a_report_at_step_0_is_on_no_rung() -> None:
    study = optuna.create_study(pruner=Asha())
    for worth in (2.0, 1.0, 3.0):
        report(study.ask({}), [0, 10, 20], worth)
    rungs = [sorted(name for name in one.system_attrs if "rung" in name) for one in study.trials]
    assert rungs == [["completed_rung_0"]] * 3, "the next rung is at 40"


def test_a_run_that_is_resumed_has_the_rungs_it_had() -> None:
    study = optuna.create_study(pruner=Asha())
    trial = study.ask({})
    assert report(trial, [10, 20], 1.0) is None
    study.pruner = Asha()
    assert report(study.ask({}), [20, 30], 2.0) == 20
    assert "completed_rung_1" not in study.trials[1].system_attrs, "the next rung is at 40"


def test_hyperband_leaves_those_alone_that_ran_before_it_knew_how_many_steps_there_are() -> None:
    study = optuna.create_study(pruner=Hyperband(), study_name="fixed")
    steps = range(1, 9)
    first, early = study.ask({}), study.ask({})
    assert report(early, steps[:1], 9.0) is None
    assert report(first, steps, 2.0) is None
    study.tell(first, 0.25)
    assert report(early, steps[1:], 9.0) is None
    assert not any("completed_rung" in name for trial in study.trials for name in trial.system_attrs)
    stopped = [report(study.ask({}), steps, 3.0 + number) for number in range(12)]
    assert any(stopped)
    assert stopped[0] is None, "nobody it could be held against was judged"


def test_a_report_passes_one_rung_of_hyperband_however_far_apart_reports_are() -> None:
    study = optuna.create_study(pruner=Hyperband(), study_name="fixed")
    first = study.ask({})
    report(first, range(0, 900, 100), 2.0)
    study.tell(first, 0.25)
    passed = []
    for _ in range(12):
        trial = study.ask({})
        report(trial, [0, 100], 3.0)
        passed.append(sum("completed_rung" in name for name in study.trials[trial.number].system_attrs))
    assert set(passed) == {0, 1}, "a bracket may begin later"


def test_hyperband_leaves_those_alone_also_once_their_run_is_resumed() -> None:
    study = optuna.create_study(pruner=Hyperband(), study_name="fixed")
    first, early = study.ask({}), study.ask({})
    assert report(early, [1, 2], 9.0) is None
    assert report(first, range(1, 9), 2.0) is None
    study.tell(first, 0.25)
    study.pruner = Hyperband()
    assert report(early, range(3, 9), 9.0) is None
    assert "completed_rung_0" not in study.trials[1].system_attrs


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
@pytest.mark.parametrize("kind", [Asha, Hyperband])
def test_verdicts_and_notes_are_those_of_optunas_pruner(kind, direction, monkeypatch) -> None:
    def run() -> tuple[list[int | None], list[dict[str, object]]]:
        dice, verdicts = random.Random(1), []
        study = optuna.create_study(pruner=kind(), direction=direction, study_name="fixed")
        for number in range(300):
            # Few different values, so that some are equal, and steps that pass several rungs at once.
            trial, worth = study.ask(), dice.choice([1.0, 2.0, 3.0, 4.0, dice.random()])
            verdicts.append(report(trial, [0, 2, 3, 5, 40, 200][: dice.randint(2, 6)], worth))
            study.tell(trial, worth if verdicts[-1] is None else None, state=None if verdicts[-1] is None else PRUNED)
            if number == 150:
                study.pruner = kind()
        return verdicts, [one.system_attrs for one in study.trials]

    ours = run()
    monkeypatch.setattr(pruners, "_Halving", SuccessiveHalvingPruner)
    assert ours == run()
    assert any("completed_rung_3" in attrs for attrs in ours[1])
    assert {2, 40} <= set(ours[0])


@pytest.mark.parametrize("kind", [Asha, Hyperband])
def test_others_are_not_looked_through_at_every_report(kind, monkeypatch) -> None:
    study, looks = optuna.create_study(pruner=kind(), study_name="fixed"), []
    get_trials = study._storage.get_all_trials
    first = study.ask()
    report(first, range(9), 1.0)
    study.tell(first, 1.0)
    monkeypatch.setattr(
        study._storage, "get_all_trials", lambda *args, **kwargs: looks.append(1) or get_trials(*args, **kwargs)
    )
    for _ in range(100):
        trial = study.ask()
        # It looks for trials that are enqueued.
        report(trial, range(9), 1.0)
    assert len(looks) < 120
