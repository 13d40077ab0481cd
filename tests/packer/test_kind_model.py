"""What is known of one kind of trial."""

from __future__ import annotations

import random

import pytest
from world import MIB

from cotune.demand import Demand
from cotune.packer.kind_model import KindModel
from cotune.packer.prediction import Changes


def test_nothing_is_known_before_the_first_measurement() -> None:
    assert KindModel().demand({"size": 1.0}) is None
    assert KindModel().seconds({"size": 1.0}) is None


def test_time_is_expected_as_often_too_long_as_too_short() -> None:
    draw, model = random.Random(1), KindModel()
    model.observe_pace(0, {"size": 1.0}, 10.0)
    model.observe_pace(1, {"size": 2.0}, 30.0)
    assert model.seconds({"size": 1.0}, steps=2) == 40.0
    trials = [(float(draw.randint(1, 100)), draw.choice([0.5, 1.0, 1.0, 1.0, 4.0])) for _ in range(400)]
    for trial, (size, luck) in enumerate(trials, start=2):
        model.observe_pace(trial, {"size": size}, 3.0 * size * luck)
    assert model.seconds({"size": 50.0}, steps=1) == pytest.approx(150.0, rel=0.1)


def test_trials_that_were_stopped_teach_how_long_others_take_to_their_end() -> None:
    model = KindModel()
    for trial in range(20):
        model.observe_pace(trial, {"size": trial + 1.0}, 0.5 * (trial + 1))
    assert model.seconds({"size": 40.0}) is None, "nobody has come to the end"
    model.observe_steps(3, {"size": 4.0}, 100)
    assert model.seconds({"size": 40.0}) == pytest.approx(2000.0, rel=0.02)


def test_steps_are_sure_where_several_trials_have_made_about_as_many() -> None:
    same, other, explained = KindModel(), KindModel(), KindModel()
    for trial in range(6):
        features = {"epochs": trial + 1.0}
        for model, steps in ((same, 100), (other, 100 + 90 * (trial % 2)), (explained, 10 * (trial + 1))):
            assert not (model.is_sure_of_steps and trial < 3)
            model.observe_steps(trial, features, steps)
    assert [model.is_sure_of_steps for model in (same, other, explained)] == [True, False, True]
    assert explained.steps({"epochs": 12.0}) == pytest.approx(120.0, rel=0.02)


@pytest.mark.parametrize(("paces", "known"), [((1.0, 1.1), False), ((1.0, 1.2, 1.1), True), ((1.0, 3.0, 1.1), False)])
def test_a_pace_is_known_where_several_trials_had_about_the_same(paces: tuple[float, ...], known: bool) -> None:
    model = KindModel()
    for trial, pace in enumerate(paces):
        model.observe_pace(trial, {"x": float(trial)}, pace)
    assert (model.pace({"x": 0.5}) is not None) == known


def test_changes_to_what_is_expected_are_counted() -> None:
    changes = Changes()
    model = KindModel(changes)
    model.observe_demand(0, {}, Demand(100, 10))
    assert changes.count > 0


def test_margins_of_persistent_bytes_and_peak_do_not_add_up() -> None:
    model = KindModel()
    for trial in range(24):
        # One trial of three holds nothing between iterations, another nothing above that.
        persistent, ephemeral = [(1000, 0), (0, 1000), (500, 500)][trial % 3]
        model.observe_demand(trial, {"lr": 1.0 + trial}, Demand(persistent * MIB, ephemeral * MIB))
    expected = model.demand({"lr": 5.0})
    assert expected is not None
    assert 1000 * MIB <= expected.peak <= 1200 * MIB
    assert expected.persistent >= 500 * MIB


def test_model_splits_persistent_and_ephemeral() -> None:
    model = KindModel()
    model.observe_demand(0, {}, Demand(100 * MIB, 10 * MIB))
    assert model.demand({}) == Demand(100 * MIB, 10 * MIB)
