"""Arguments of the entry points."""

import numpy as np
import pytest

from cotune._arguments import (
    check_goal,
    check_run_name,
    checked_choice,
    checked_count,
    checked_max_steps,
    checked_seconds,
    checked_seed,
    checked_slowdown,
    checked_threads,
    checked_timeout,
    made_up,
    refuse_before_start,
)
from cotune.errors import InputError
from cotune.search import PRUNERS


@pytest.mark.parametrize("kind", ["a" * 300, "é" * 300, "🦜" * 3, "[exp] 1", "<lambda>", "-"])
def test_a_name_made_up_for_a_run_is_one_that_may_be_given(kind):
    name = made_up(kind)
    check_run_name(name)
    assert made_up(kind) != name


def test_a_name_longer_than_that_of_a_file_is_refused():
    check_run_name("é" * 127)
    with pytest.raises(InputError, match="cannot name a folder"):
        check_run_name("é" * 128)


def test_numbers_of_numpy_are_numbers_and_arrays_are_none():
    assert checked_slowdown(np.float32(1.5)) == 1.5
    assert checked_max_steps(np.int64(7))({}) == 7
    for check in (checked_slowdown, checked_max_steps, lambda array: check_goal("loss", array)):
        with pytest.raises(InputError):
            check(np.array([1, 2]))


def test_a_goal_that_was_not_given_is_missing_and_one_that_is_no_name_is_named():
    with pytest.raises(InputError, match="metric= is missing"):
        check_goal("", "min")
    with pytest.raises(InputError, match="metric=3 is not a name"):
        check_goal(3, "min")


def test_a_misspelt_argument_is_told_which_one_it_may_be():
    with pytest.raises(InputError, match="takes no trails=") as caught:
        refuse_before_start("run", ["trails"], {})
    assert caught.value.hint == "did you mean trials=?"


def test_a_name_of_a_choice_may_be_in_capitals():
    assert checked_choice("pruner", "MEDIAN", PRUNERS) == "median"
    with pytest.raises(InputError, match="'bayes' is not a pruner"):
        checked_choice("pruner", "bayes", PRUNERS)


def test_more_threads_than_any_machine_runs_are_refused():
    assert checked_threads(64) == 64
    with pytest.raises(InputError, match="too many"):
        checked_threads(10**9)


def test_a_number_beyond_all_floats_is_no_time_and_too_many():
    beyond = 10**400
    with pytest.raises(InputError, match="is not a time"):
        checked_seconds("time_budget", beyond)
    with pytest.raises(InputError, match="is not more than 0"):
        checked_seconds("time_budget", -beyond)
    with pytest.raises(InputError, match="too many"):
        checked_count("lanes", beyond)
    # As Optuna takes it.
    assert checked_timeout(beyond) is None
    assert checked_timeout(-beyond) == 0.0
    assert checked_slowdown(beyond) == float("inf")


@pytest.mark.parametrize(
    "check",
    [
        checked_seed,
        checked_slowdown,
        checked_timeout,
        lambda value: checked_seconds("time_budget", value),
        lambda value: checked_count("lanes", value),
    ],
)
def test_a_time_of_numpy_is_no_number(check):
    with pytest.raises(InputError):
        check(np.timedelta64(60, "s"))
