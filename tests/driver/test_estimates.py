"""Which trials wait for an estimate, and for how long."""

from __future__ import annotations

import pytest

from cotune.demand import Estimate
from cotune.driver.estimates import FAILURES, FIRST, Estimates
from cotune.trial import Estimated

SOME = Estimate(1, 1, 1)


class Engine:
    """Notes what it is asked for."""

    def __init__(self, can_estimate=True):
        self.can_estimate = can_estimate
        self.asked = []

    def estimate(self, trial, config):
        self.asked.append(trial)


def came(trial, seconds=1.0):
    return Estimated(trial, SOME, "", seconds)


def failed(trial):
    return Estimated(trial, None, "it raised", 1.0)


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def estimates(engine):
    return Estimates(engine)


def test_where_nothing_can_be_estimated_nobody_waits():
    assert not Estimates(Engine(can_estimate=False)).ask(0, {})


def test_estimates_are_made_one_at_a_time_in_order(engine, estimates):
    assert all(estimates.ask(trial, {}) for trial in range(3))
    assert engine.asked == [0]
    assert estimates.heard(came(0)) == [0]
    assert engine.asked == [0, 1]
    assert len(estimates) == 2


def test_nobody_waits_behind_a_failure(engine, estimates):
    for trial in range(3):
        estimates.ask(trial, {})
    assert estimates.heard(failed(0)) == [0, 1, 2]
    assert estimates.ask(3, {})
    assert engine.asked == [0, 3]


def test_after_three_failures_in_a_row_there_are_no_more(engine, estimates):
    for trial in range(FAILURES):
        assert estimates.ask(trial, {})
        estimates.heard(failed(trial))
    assert not estimates.ask(9, {})


def test_a_failure_among_successes_is_forgiven(engine, estimates):
    for trial in range(4 * FAILURES):
        assert estimates.ask(trial, {})
        estimates.heard(failed(trial) if trial % FAILURES else came(trial))


def test_who_was_released_is_not_released_again_when_the_estimate_comes(engine, estimates):
    estimates.ask(0, {})
    assert estimates.release() == [0]
    estimates.ask(1, {})
    assert engine.asked == [0], "the first is still under way"
    assert estimates.heard(came(0)) == []
    assert engine.asked == [0, 1]


def test_where_estimates_take_a_good_part_of_a_trial_they_end_after_the_first_ones(estimates):
    estimates.ask(0, {})
    estimates.heard(came(0, seconds=1.0))
    estimates.ask(1, {})
    for number in range(FIRST):
        assert estimates.are_wanted, number
        released = estimates.ran(5.0)
    assert released == [1]
    assert not estimates.ask(2, {})


def test_where_trials_are_long_estimates_go_on(estimates):
    estimates.ask(0, {})
    estimates.heard(came(0, seconds=1.0))
    for _ in range(10 * FIRST):
        assert estimates.ran(60.0) == []
    assert estimates.ask(1, {})
