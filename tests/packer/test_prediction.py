"""What is expected of a trial, from what trials like it were measured to need."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from world import MIB

from cotune.demand import Demand
from cotune.packer.prediction import MAX_SAMPLES, MOST_COLUMNS, Changes, KindModel, Prediction


def observed(samples: list[tuple[dict[str, float], float]]) -> Prediction:
    prediction = Prediction()
    for trial, (features, value) in enumerate(samples):
        prediction.observe(trial, features, value)
    return prediction


def test_nothing_is_expected_before_the_first_measurement() -> None:
    assert Prediction().estimate({}) is None
    assert KindModel().demand({"size": 1.0}) is None
    assert KindModel().seconds({"size": 1.0}) is None


def test_largest_seen_is_expected_while_samples_are_few() -> None:
    prediction = observed([({"size": 1.0}, 10.0), ({"size": 2.0}, 30.0)])
    assert prediction.estimate({"size": 1.0}) == 30.0


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


def test_product_of_features_is_learnt() -> None:
    draw = random.Random(1)
    samples = []
    for _ in range(40):
        batch, width = float(draw.choice([8, 16, 32, 64])), float(draw.randint(10, 500))
        samples.append(({"batch": batch, "width": width}, 1000.0 * batch * width))
    estimate = observed(samples).estimate({"batch": 32.0, "width": 100.0})
    assert estimate is not None
    assert 1.0 <= estimate / (1000.0 * 32.0 * 100.0) < 1.2


def test_margin_covers_what_features_do_not_explain() -> None:
    draw = random.Random(2)
    samples = [({"size": draw.uniform(1, 10)}, draw.uniform(100, 200)) for _ in range(200)]
    prediction = observed(samples)
    covered = [value <= (prediction.estimate(features) or 0.0) for features, value in samples]
    assert sum(covered) / len(covered) >= 0.95


def test_power_law_is_believed_up_to_four_times_the_largest_seen() -> None:
    prediction = observed([({"size": float(size)}, float(size) ** 3) for size in range(1, 20)])
    assert prediction.estimate({"size": 1e6}) == pytest.approx(4 * 19.0**3)


def test_later_measurement_of_a_trial_replaces_the_earlier() -> None:
    prediction = Prediction()
    prediction.observe(0, {}, 100.0)
    prediction.observe(1, {}, 10.0)
    prediction.observe(0, {}, 20.0)
    assert prediction.estimate({}) == 20.0


def test_oldest_samples_are_forgotten() -> None:
    prediction = observed([({}, 1000.0)] + [({}, 10.0)] * MAX_SAMPLES)
    prediction.observe(10_000, {}, 11.0)
    assert (prediction.estimate({}) or 0.0) < 20.0


def test_features_that_come_and_go_are_no_trouble() -> None:
    samples = [({"depth": 1.0}, 10.0), ({}, 5.0), ({"size": 3.0}, 7.0)] * 4
    assert observed(samples).estimate({"other": 1.0}) is not None


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


numbers = st.floats() | st.sampled_from([0.0, -1.0, 1e308, -1e308, 5e-324])


@settings(deadline=None, max_examples=60)
@given(
    samples=st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from("abc"), numbers, max_size=3),
            st.floats(0, 1e15) | st.integers(0, 1 << 70),
        ),
        min_size=1,
        max_size=12,
    ),
    asked=st.dictionaries(st.sampled_from("abcd"), numbers, max_size=3),
)
def test_estimate_is_a_finite_number_whatever_the_features(
    samples: list[tuple[dict[str, float], float]], asked: dict[str, float]
) -> None:
    prediction = observed(samples)
    for features in [asked, *(features for features, _ in samples)]:
        estimate = prediction.estimate(features)
        assert estimate is not None
        assert math.isfinite(estimate)
        assert 0 <= estimate <= 4.5 * max(1e-8, *(float(value) for _, value in samples))


def test_trials_that_ran_out_of_memory_do_not_outvote_those_that_came_to_more() -> None:
    model = KindModel()
    for trial in range(10):
        model.observe_growth(trial, 10 * MIB, 40 * MIB, is_all=False)
    assert model.grown(10 * MIB) == 40 * MIB
    model.observe_growth(0, 10 * MIB, 90 * MIB, is_all=False)
    assert model.grown(10 * MIB) == 90 * MIB
    model.observe_growth(0, 10 * MIB, 70 * MIB, is_all=True)
    assert model.grown(10 * MIB) == 70 * MIB


def test_what_most_came_to_need_in_the_end_is_expected_of_the_next() -> None:
    model = KindModel()
    for trial, peak in enumerate((20, 20, 30, 90)):
        model.observe_growth(trial, 10 * MIB, peak * MIB, is_all=True)
    assert model.grown(10 * MIB) == 30 * MIB


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        pytest.param(lambda early: 3 * early, 1200, id="as many times as much"),
        pytest.param(lambda early: early + 300, 700, id="as much more"),
    ],
)
def test_a_large_trial_grows_in_the_way_in_which_others_have(later: Callable[[int], int], expected: int) -> None:
    changes = Changes()
    model = KindModel(changes)
    for trial, early in enumerate((200, 40, 60, 20)):
        before, told = model.grown(400 * MIB), changes.count
        model.observe_growth(trial, early * MIB, later(early) * MIB, is_all=True)
        assert model.grown(400 * MIB) == before or changes.count > told
    assert model.grown(400 * MIB) == expected * MIB


def test_with_one_that_has_grown_the_lesser_growth_is_expected() -> None:
    model = KindModel()
    model.observe_growth(0, 20 * MIB, 60 * MIB, is_all=True)
    assert (model.grown(10 * MIB), model.grown(40 * MIB)) == (30 * MIB, 80 * MIB)


def test_one_that_has_none_of_what_all_others_had_is_taken_for_one_with_the_least() -> None:
    draw = random.Random(1)
    prediction = observed([({"decay": draw.choice([1e-5, 1e-3])}, draw.choice([1.0, 2.0, 4.0])) for _ in range(12)])
    assert prediction.is_fitted
    assert prediction.estimate({"decay": 0.0}) == prediction.estimate({}) == prediction.estimate({"decay": 1e-5})


def test_a_text_of_its_own_for_each_trial_hides_nothing_and_costs_no_more_with_each() -> None:
    samples = [({"size": 1.0 + trial % 7, f"name={trial}": 1.0}, 3.0 * (1.0 + trial % 7)) for trial in range(600)]
    prediction = observed(samples)
    assert prediction._table.shape[1] <= MOST_COLUMNS
    for size in (1.0, 5.0):
        assert prediction.estimate({"size": size, "name=x": 1.0}) == pytest.approx(3.0 * size, rel=0.05)


def test_an_option_that_several_had_tells_how_much_others_with_it_need() -> None:
    samples = [({f"name={trial % 3}": 1.0}, 10.0 ** (trial % 3)) for trial in range(30)]
    assert observed(samples).estimate({"name=1": 1.0}) == pytest.approx(10.0, rel=0.1)
