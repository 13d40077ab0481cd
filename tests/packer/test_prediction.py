"""One quantity of a trial, predicted from what was measured of trials like it."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotune.packer.prediction import MAX_SAMPLES, MOST_COLUMNS, Prediction


def observed(samples: list[tuple[dict[str, float], float]]) -> Prediction:
    prediction = Prediction()
    for trial, (features, value) in enumerate(samples):
        prediction.observe(trial, features, value)
    return prediction


def test_nothing_is_expected_before_the_first_measurement() -> None:
    assert Prediction().estimate({}) is None


def test_largest_seen_is_expected_while_samples_are_few() -> None:
    prediction = observed([({"size": 1.0}, 10.0), ({"size": 2.0}, 30.0)])
    assert prediction.estimate({"size": 1.0}) == 30.0


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


def test_a_sample_that_is_forgotten_bounds_no_power_law_any_more() -> None:
    sizes = [float(1 + trial % 19) for trial in range(MAX_SAMPLES)]
    prediction = observed([({"size": 1.0}, 1e9), *(({"size": size}, size**3) for size in sizes)])
    assert prediction.estimate({"size": 1e6}) == pytest.approx(4 * 19.0**3)


def test_features_that_come_and_go_are_no_trouble() -> None:
    samples = [({"depth": 1.0}, 10.0), ({}, 5.0), ({"size": 3.0}, 7.0)] * 4
    assert observed(samples).estimate({"other": 1.0}) is not None


numbers = st.floats() | st.sampled_from([0.0, -1.0, 1e308, -1e308, 5e-324])


@settings(max_examples=60)
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
