"""How well predictions did, in one line."""

import pytest

from cotune.accuracy import Accuracy, accuracy_lines


def test_the_median_the_spread_and_what_was_too_low() -> None:
    found = Accuracy.of([(2.0, 1.0), (1.0, 2.0), (3.0, 2.0), (None, 1.0), (1.0, None), (1.0, 0.0)], 1.0)
    assert found == Accuracy(3, 1.5, 0.5, 2.0, pytest.approx(1 / 3))
    assert str(found) == "1.50 times what was measured (0.50 to 2.00; too low for 33% of 3 trials)"


def test_what_is_off_by_less_than_is_shown_is_not_too_low() -> None:
    assert "too low for 0% of" in str(Accuracy.of([(0.999, 1.0), (1.0, 1.0)], 1.0))


def test_one_trial_has_no_spread() -> None:
    assert str(Accuracy.of([(1.5, 1.0)], 1.0)) == "1.50 times what was measured (1 trial)"


def test_nothing_is_said_where_nothing_is_known() -> None:
    assert Accuracy.of([(None, 1.0)], 1.0) is None
    assert accuracy_lines(None, None) == []
    assert [name for name, _ in accuracy_lines(None, Accuracy.of([(1.0, 1.0)], 1.0))] == ["predicted time"]


def test_what_is_too_little_to_say_anything_is_left_out() -> None:
    assert Accuracy.of([(22.0, 0.9), (1.0, 1.0)], 1.0) == Accuracy(1, 1.0, 1.0, 1.0, 0.0)
    assert Accuracy.of([(22.0, 0.9)], 1.0) is None
