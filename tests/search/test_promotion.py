"""Who waits on a rung, and who goes on."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.errors import InputError
from cotune.search.promotion import AshaPromote, Rungs


def rungs(factor=3, first=1, sign=1.0):
    return Rungs(AshaPromote(first, factor), sign)


def test_a_trial_waits_at_its_rung_until_it_is_among_the_best_third():
    found = rungs()
    assert found.report(0, 1, 0.5) == (True, [])
    assert found.report(1, 1, 0.7) == (True, [])
    assert found.report(2, 1, 0.9) == (True, [0])
    assert found.report(0, 2, 0.4) == (False, [])
    assert found.report(0, 3, 0.3) == (True, [])


def test_without_a_first_rung_it_is_at_the_first_step_above_0_that_is_reported():
    found = rungs(first=None)
    assert found.report(0, 0, 0.5) == (False, [])
    assert found.report(0, 100, 0.5) == (True, [])
    assert found.report(1, 100, 0.7) == (True, [])
    assert found.report(2, 100, 0.9) == (True, [0])
    assert found.report(0, 200, 0.4) == (False, [])
    assert found.report(0, 300, 0.3) == (True, [])


def test_a_later_session_finds_the_first_rung_where_it_was():
    found = rungs(first=None)
    found.restore(0, [(0, 0.5), (100, 0.4)], is_over=False)
    found.settle()
    assert found.waiting == {0}
    assert found.report(1, 10, 0.6) == (False, [])


def test_the_trial_that_reports_goes_on_itself_if_it_is_the_best():
    found = rungs()
    found.report(0, 1, 0.5)
    found.report(1, 1, 0.7)
    assert found.report(2, 1, 0.1) == (False, [])


def test_larger_is_better_where_that_is_asked_for():
    found = rungs(sign=-1.0)
    found.report(0, 1, 0.5)
    found.report(1, 1, 0.7)
    assert found.report(2, 1, 0.1) == (True, [1])


def test_between_rungs_and_without_a_number_nobody_waits():
    found = rungs(first=2)
    assert found.report(0, 1, 0.5) == (False, [])
    assert found.report(0, 2, math.nan) == (False, [])
    assert found.report(0, 3, 0.5) == (True, [])


def test_one_that_waits_and_reports_on_waits_on():
    found = rungs()
    found.report(0, 1, 0.5)
    assert found.report(0, 2, 0.0) == (True, [])


def test_whoever_is_over_keeps_its_place_and_is_not_promoted():
    found = rungs()
    found.report(0, 1, 0.1)
    found.over(0)
    found.report(1, 1, 0.2)
    assert found.report(2, 1, 0.3) == (True, [])


def test_a_report_that_passes_several_rungs_counts_on_all_of_them_whenever_its_trial_is_promoted():
    """Rungs at 1, 2, 4; two reports would pass the first two at once."""
    found = rungs(factor=2)
    assert found.report(0, 3, 0.5) == (True, [])
    assert found.report(1, 3, 0.7) == (True, []), "of two on the first rung one goes on: to the next, where it is alone"
    assert found.report(2, 3, 0.1) == (False, []), "the better of two there"
    assert found.report(3, 3, 0.2) == (True, [])
    assert found.report(4, 3, 0.6) == (True, [])
    again = rungs(factor=2)
    for trial, value in enumerate([0.5, 0.7, 0.1, 0.2, 0.6]):
        again.restore(trial, [(3, value)], is_over=False)
    again.settle()
    assert again.waiting == found.waiting


def test_at_the_end_the_best_on_the_highest_rung_goes_on():
    found = rungs()
    for trial, value in enumerate((0.3, 0.2, 0.4)):
        found.report(trial, 1, value)
    found.report(1, 3, 0.2)
    assert found.best_waiting() == 1
    assert found.best_waiting() == 0
    assert found.best_waiting() == 2
    assert found.best_waiting() is None


def test_an_earlier_session_is_taken_up_where_it_was():
    found = rungs()
    for trial, values in enumerate(([(1, 0.5)], [(1, 0.1), (2, 0.1), (3, 0.1)], [(1, 0.9)])):
        found.restore(trial, values, is_over=False)
    found.settle()
    assert found.report(0, 2, 0.5) == (True, [])
    assert found.report(1, 4, 0.1) == (True, [])
    assert found.report(3, 1, 0.2) == (True, [])
    assert found.report(4, 1, 0.3) == (True, [])
    assert found.report(5, 1, 0.4) == (True, [3])


def test_of_an_earlier_session_those_wait_that_had_not_gone_on():
    found = rungs()
    found.restore(0, [(1, 0.5)], is_over=False)
    found.restore(1, [(1, 0.1), (2, 0.1)], is_over=False)
    found.restore(2, [], is_over=False)
    assert found.waiting == {0}
    assert found.report(1, 2, 0.1) == (False, [])
    assert found.report(1, 3, 0.1) == (True, [])


def test_one_that_reports_rarely_is_taken_up_on_the_rung_where_it_waited():
    found = rungs()
    for trial, value in enumerate((0.5, 0.7, 0.9)):
        found.restore(trial, [(10, value)], is_over=False)
    found.settle()
    assert found.report(0, 20, 0.4) == (True, [])
    assert found.report(1, 20, 0.6) == (True, [])


def test_one_that_is_over_keeps_its_place_among_the_best_and_leaves_it_to_nobody():
    found = rungs()
    found.report(0, 1, 0.1)
    found.over(0)
    assert [found.report(trial, 1, 0.1 * (trial + 1)) for trial in (1, 2, 3, 4)] == [(True, [])] * 4
    assert found.report(5, 1, 0.6) == (True, [1])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.integers(2, 4))
def test_as_many_go_on_as_the_rule_says_and_all_of_them_the_best(values, factor):
    found = rungs(factor)
    gone = set()
    for trial, value in enumerate(values):
        waits, promoted = found.report(trial, 1, value)
        gone |= set(promoted) | (set() if waits else {trial})
    # Promotions are not taken back, so a later better one may come on top of those.
    assert len(gone) >= len(values) // factor
    best = sorted(range(len(values)), key=lambda trial: (values[trial], trial))[: len(values) // factor]
    assert set(best) <= gone


@pytest.mark.parametrize("wrong", [{"min_resource": 0}, {"reduction_factor": 1}, {"min_resource": 1.5}])
def test_rungs_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InputError) as raised:
        AshaPromote(**wrong)
    assert raised.value.hint
