"""`stop=`: when a trial has come as far as it was meant to."""

import contextlib
import itertools
import os
import time

import numpy as np
import pytest

import cotune
from cotune.errors import InputError, UnknownMetric
from cotune.stopping import StopRule, checked_stop

OPTIONS = {"trials": 1, "lanes": 1}


def for_ever(config):
    step = 0
    while True:
        step += 1
        cotune.report({"loss": config["x"] / step, "accuracy": 0.1 * step})


@pytest.mark.parametrize(
    ("rule", "reports", "expected"),
    [
        (StopRule({"accuracy": 0.9}), 3, True),
        (StopRule({"accuracy": 0.91}), 3, False),
        (StopRule({"accuracy": 2.0, "training_iteration": 3}), 3, True),
        (StopRule({"training_iteration": 3}), 2, False),
        (checked_stop({"training_iteration": np.int64(3)}), 3, True),
        (checked_stop({"training_iteration": 10**400}), 3, False),
        (StopRule({"note": 1}), 2, False),
        (StopRule({"solved": True}), 2, False),
        (StopRule({"learns": True}), 2, True),
        (StopRule(func=lambda trial, metrics: metrics["accuracy"] > 0.8 and trial == 7), 1, True),
        (StopRule(func=lambda trial, metrics: metrics["training_iteration"] > 5), 5, False),
        (StopRule(), 1, False),
    ],
)
def test_a_bound_is_met_from_its_value_on(rule, reports, expected):
    assert rule.is_met(7, {"accuracy": 0.9, "note": "fine", "solved": False, "learns": True}, reports) is expected


def test_a_metric_that_becomes_true_ends_a_trial(run):
    def train(config):
        for step in range(9):
            cotune.report({"loss": 1.0, "done": step == 3})

    (trial,) = run(train, {"x": 1}, stop={"done": True, "training_iteration": 20})
    assert (trial.state, len(trial.history)) == ("done", 4)


def test_a_bound_of_what_is_not_reported_is_named_at_the_first_report():
    with pytest.raises(UnknownMetric, match=r"'acuracy', which is not in the first report: that has .*'accuracy'"):
        StopRule({"acuracy": 1}).is_met(0, {"accuracy": 0.5}, 1)


def test_a_function_that_raises_is_named_with_what_it_was_called_with():
    with pytest.raises(InputError, match=r"stop= raised KeyError for .*'accuracy': 0.5"):
        StopRule(func=lambda trial, metrics: metrics["loss"] < 1).is_met(0, {"accuracy": 0.5}, 1)


class Stopper:
    """As Ray Tune's."""

    def __call__(self, trial_id, result):
        return False

    def stop_all(self):
        return False


@pytest.mark.parametrize(
    ("stop", "says"),
    [
        (5, "no dict and no function"),
        ("loss", "no dict and no function"),
        (lambda metrics: True, "two arguments"),
        ({"loss": "low"}, "'loss': 'low'"),
        ({"loss": float("nan")}, "'loss': nan"),
        ({"loss": None}, "'loss': None"),
        ({3: 3}, "3: 3"),
        (Stopper(), "Stopper of Ray Tune"),
    ],
)
def test_what_is_no_rule_is_refused(stop, says):
    with pytest.raises(InputError, match=says) as caught:
        checked_stop(stop)
    assert caught.value.hint


def test_a_bound_from_below_of_what_is_minimized_is_refused_for_it_would_end_the_bad_trials(run):
    with pytest.raises(InputError, match=r"'loss' is 0\.01 or more, and mode='min'") as caught:
        run(for_ever, {"x": 1.0}, metric="loss", mode="min", stop={"loss": 0.01})
    assert "metrics['loss'] <= 0.01" in caught.value.hint
    assert checked_stop({"loss": 0.01}, "error")


@pytest.mark.parametrize(
    ("stop", "reports"),
    [
        ({"training_iteration": 3}, 3),
        ({"accuracy": 0.45, "training_iteration": 9}, 5),
        (lambda trial, metrics: metrics["loss"] < 0.3, 4),
    ],
)
def test_a_function_that_would_go_on_for_ever_is_done_where_the_rule_says(run, stop, reports):
    results = run(for_ever, {"x": 1.0}, trials=2, stop=stop)
    assert [(trial.state, len(trial.history)) for trial in results] == [("done", reports)] * 2


def test_the_checkpoint_that_follows_the_last_report_is_saved(run):
    def train(config):
        for epoch in range(100):
            cotune.report({"loss": float(epoch)})
            with cotune.checkpoint() as path:
                (path / "epoch").write_text(str(epoch))

    trial = run(train, {"x": 1.0}, stop={"training_iteration": 4}).best
    assert (len(trial.history), (trial.checkpoint / "epoch").read_text()) == (4, "3")


def test_a_lane_that_dies_after_the_last_report_costs_no_further_one(run, tmp_path):
    def train(config):
        start = cotune.restore()
        for epoch in range(int((start / "epoch").read_text()) if start else 0, 100):
            if epoch == 4 and not (tmp_path / "died").exists():
                (tmp_path / "died").touch()
                os._exit(3)
            time.sleep(0.05)
            with cotune.checkpoint() as path:
                (path / "epoch").write_text(str(epoch + 1))
            cotune.report({"loss": float(epoch)})

    trial = run(train, {"x": 1.0}, stop={"training_iteration": 4}).best
    assert (trial.attempts, [report["loss"] for report in trial.history]) == (2, [0.0, 1.0, 2.0, 3.0])


def test_a_step_class_takes_no_step_after_its_last_report(run, tmp_path):
    class Steps:
        def setup(self, config):
            self.count = 0

        def step(self):
            self.count += 1
            (tmp_path / "steps").write_text(str(self.count))
            return {"loss": 1.0}

        def cleanup(self):
            (tmp_path / "cleaned").touch()

    (trial,) = run(Steps, {"x": 1.0}, stop={"training_iteration": 3})
    assert (trial.state, len(trial.history)) == ("done", 3)
    assert (tmp_path / "steps").read_text() == "3"
    assert (tmp_path / "cleaned").exists()


def test_what_returns_right_after_its_last_report_is_done_and_reports_no_more(run):
    def train(config):
        cotune.report({"loss": 1.0})
        return 2.0

    (trial,) = run(train, {"x": 1.0}, stop={"training_iteration": 1})
    assert (trial.state, trial.metrics["loss"]) == ("done", 1.0)


@pytest.mark.parametrize("refused", [{"loss": float("nan")}, {"loss": "none"}, {"other": object()}])
def test_a_report_after_the_last_one_does_not_fail_the_trial_whatever_is_in_it(run, refused):
    def train(config):
        cotune.report({"loss": 1.0})
        cotune.report(refused)

    (trial,) = run(train, {"x": 1.0}, stop={"training_iteration": 1})
    assert (trial.state, len(trial.history), trial.error) == ("done", 1, None)


def test_one_that_catches_whatever_is_to_end_it_is_done_all_the_same(run):
    def train(config):
        from cotune.sharing.inside import leaving

        # Its lane gives it less time to leave than usual.
        leaving.LEAVE_WITHIN = 0.2
        for step in itertools.count():
            with contextlib.suppress(BaseException):
                cotune.report({"loss": 1.0 / (1 + step)})

    results = run(train, {"x": 1.0}, trials=3, lanes=2, stop={"training_iteration": 3})
    assert [(trial.state, len(trial.history)) for trial in results] == [("done", 3)] * 3


def test_what_a_library_raises_for_what_is_to_end_the_trial_ends_it(run):
    """As CatBoost does, whose native code calls callbacks."""

    def train(config):
        for step in itertools.count():
            try:
                cotune.report({"loss": 1.0 / (1 + step)})
            except BaseException as error:
                raise RuntimeError(f"callback raised {type(error).__name__}") from None

    (trial,) = run(train, {"x": 1.0}, stop={"training_iteration": 3})
    assert (trial.state, len(trial.history)) == ("done", 3)
    assert "callback raised TrialStopped" in (trial.folder / "log.txt").read_text()


@pytest.mark.parametrize("how", ["group", "exit"])
def test_one_that_leaves_by_way_of_another_exception_is_done_all_the_same(run, how):
    def train(config):
        import asyncio
        import sys

        async def epochs():
            for step in itertools.count():
                cotune.report({"loss": 1.0 / (1 + step)})

        async def in_group():
            async with asyncio.TaskGroup() as group:
                group.create_task(epochs())

        if how == "group":
            asyncio.run(in_group())
        try:
            asyncio.run(epochs())
        except BaseException:
            sys.exit(1)

    (trial,) = run(train, {"x": 1.0}, stop={"training_iteration": 3})
    assert (trial.state, len(trial.history)) == ("done", 3)


def test_a_trainable_that_fails_after_its_last_report_has_failed(run):
    def train(config):
        cotune.report({"loss": 1.0})
        raise RuntimeError("its own")

    (trial,) = run(train, {"x": 1.0}, stop={"training_iteration": 1})
    assert (trial.state, "its own" in str(trial.error)) == ("failed", True)


def test_a_pruner_still_stops_trials_before(run):
    def train(config):
        step = 0
        while True:
            step += 1
            cotune.report({"loss": config["x"]}, step=step)

    results = run(
        train, {"x": cotune.choice([1, 2, 3])}, sampler="grid", pruner="asha", stop={"training_iteration": 30}
    )
    assert sorted(trial.state for trial in results) != ["done"] * 3
    assert {len(trial.history) for trial in results if trial.state == "done"} == {30}


def test_a_bound_that_no_trial_reports_ends_the_run(run):
    with pytest.raises(UnknownMetric, match="acuracy"):
        run(for_ever, {"x": 1.0}, trials=4, stop={"acuracy": 0.9})


@pytest.mark.ray
def test_a_function_of_ray_tunes_ends_with_its_report(run, tmp_path):
    def train(config):
        from ray import tune

        iteration = 0
        while True:
            iteration += 1
            (tmp_path / "iteration").write_text(str(iteration))
            tune.report({"loss": 1.0 / iteration})

    (trial,) = run(train, {"x": 1.0}, stop={"training_iteration": 5})
    assert (trial.state, len(trial.history), (tmp_path / "iteration").read_text()) == ("done", 5, "5")
