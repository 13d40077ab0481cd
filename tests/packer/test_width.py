"""How many lanes run at once on a device."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cotune.packer.speed import PATIENCE
from cotune.packer.width import ITERATIONS, TRIALS, UNSURE, WINDOW, WidthControl, lanes_that_learn


def run(control: WidthControl, step_seconds: Callable[[int], float], reviews: int = 400) -> set[int]:
    """Reports of trials 0, 1, ... in as many lanes as allowed; the widths that occurred."""
    seen = set()
    for _ in range(reviews):
        for trial in range(control.width):
            control.measured(trial, 1, step_seconds(control.width), control.width)
        control.review(control.width, waiting=True)
        seen.add(control.width)
    return seen


def searching(limit: int = 8, busy: float | None = None) -> WidthControl:
    control = WidthControl(limit=limit)
    control.guess(busy)
    return control


def test_first_guess_is_as_many_lanes_as_one_trial_leaves_room_for() -> None:
    assert searching(busy=0.3).width == 3
    assert searching(busy=0.9).width == 1
    assert searching(busy=2.0).width == 1
    assert searching(limit=4, busy=0.01).width == 4
    assert searching(busy=None).width == 1
    assert searching(busy=0.0).width == 1


def test_only_the_first_guess_counts() -> None:
    control = searching(busy=0.5)
    control.guess(0.1)
    assert control.width == 2


def test_a_second_lane_is_tried_unasked_only_where_nothing_was_ever_measured() -> None:
    control = searching()
    control.widen()
    control.widen()
    assert control.width == 2
    refused = searching()
    run(refused, lambda width: float(width))
    measured = searching()
    measured.measured(0, 1, 1.0, 1)
    fixed = WidthControl(limit=1)
    for control in (refused, measured, fixed):
        control.widen()
        assert control.width == 1


def test_goes_up_to_the_limit_while_lanes_do_not_slow_each_other() -> None:
    control = searching(limit=5)
    run(control, lambda width: 1.0)
    assert control.width == 5


def test_goes_on_to_a_limit_that_is_raised_and_back_to_one_that_is_lowered() -> None:
    control = searching(limit=2)
    run(control, lambda width: 1.0)
    control.limited(5)
    assert control.width == 2
    run(control, lambda width: 1.0)
    assert control.width == 5
    control.limited(3)
    assert max(run(control, lambda width: 1.0)) == 3
    control.limited(4, at_once=True)
    assert control.width == 4


def test_never_above_the_limit() -> None:
    assert max(run(searching(limit=3), lambda width: 1.0)) == 3


@pytest.mark.parametrize(("is_idle", "widest"), [(True, 8), (False, 2)])
def test_above_the_limit_only_where_the_device_is_idle(is_idle: bool, widest: int) -> None:
    control = WidthControl(limit=2, idle_limit=8)
    for _ in range(400):
        for trial in range(control.width):
            control.measured(trial, 1, 1.0, control.width)
        control.review(control.width, waiting=True, is_idle=is_idle)
    assert control.width == widest


def test_the_first_guess_goes_above_the_limit_where_one_trial_leaves_room_for_more() -> None:
    for busy, width in ((0.5, 2), (0.25, 4), (0.01, 8)):
        control = WidthControl(limit=2, idle_limit=8)
        control.guess(busy)
        assert control.width == width


@pytest.mark.parametrize(("trials", "lanes"), [(4, 0), (40, 5), (1000, 125), (None, TRIALS // 8)])
def test_a_search_that_learns_has_eight_trials_for_each_lane_of_an_idle_device(trials: int | None, lanes: int) -> None:
    assert lanes_that_learn(trials) == lanes


def test_goes_back_where_another_lane_gains_nothing() -> None:
    control = searching()
    seen = run(control, lambda width: float(width))
    assert seen == {1, 2}
    assert control.width == 1


def test_quadruples_while_lanes_hardly_slow_each_other() -> None:
    assert run(searching(limit=32), lambda width: 1.0) == {1, 2, 8, 32}


def test_doubles_while_they_do_and_it_gains_five_percent() -> None:
    control = searching(limit=32)
    seen = run(control, lambda width: width**0.7 if width <= 8 else width / 1.9)
    assert seen == {1, 2, 4, 8, 16, 12, 10}
    assert control.width == 8


def test_looks_between_a_width_that_paid_and_one_that_did_not() -> None:
    control = searching(limit=32)
    seen = run(control, lambda width: width**0.7 if width <= 6 else width / 1.5, reviews=30)
    assert seen == {1, 2, 4, 8, 6}
    assert control.width == 6


def test_what_began_before_all_lanes_had_come_to_an_iteration_does_not_count() -> None:
    control = WidthControl(limit=2)
    for _ in range(2):
        control.measured(0, 1, 1.0, 1)
    control.review(1, waiting=True)
    assert control.width == 2
    # The second lane is not up yet, and the first runs alone.
    for now in (1.0, 2.0, 3.0):
        control.measured(0, 1, 1.0, 0, now)
    control.changed(4.5)
    control.measured(0, 1, 1.0, 2, 5.0)
    control.review(2, waiting=True)
    assert control.width == 2
    for now in (7.5, 9.5):
        control.measured(0, 1, 2.0, 2, now)
        control.measured(1, 1, 2.0, 2, now)
    control.review(2, waiting=True)
    assert control.width == 1


def test_a_moment_tells_nothing() -> None:
    control = searching()
    for _ in range(50):
        control.measured(0, 1, WINDOW / 60, 1)
        control.review(1, waiting=True)
    assert control.width == 1
    for _ in range(11):
        control.measured(0, 1, WINDOW / 60, 1)
    control.review(1, waiting=True)
    assert control.width == 2


def test_as_many_as_memory_holds_are_judged_where_more_were_to_be_tried() -> None:
    control = searching(limit=16)

    def run_in(most: int) -> None:
        for _ in range(20):
            active = min(control.width, most)
            for trial in range(active):
                control.measured(trial, 1, 1.0, active)
            control.review(active, waiting=True)

    run_in(3)
    assert control.width == 12  # three were worth it, and no more came to be
    run_in(16)
    assert control.width == 16


def test_as_many_as_memory_still_holds_are_judged_where_more_have_run_for_a_moment() -> None:
    control = searching(limit=4)
    for _ in range(ITERATIONS):
        control.measured(0, 1, 1.0, 1)
    control.guess(0.25)
    control.measured(0, 1, 1.0, 4)
    for _ in range(3 * PATIENCE):
        for trial in range(2):
            control.measured(trial, 1, 2.0, 2)
        control.review(2, waiting=True)
    assert control.width == 1


def test_tries_less_and_less_often_after_refusals() -> None:
    control = searching()
    tries = 0
    for _ in range(40 * PATIENCE):
        before = control.width
        run(control, lambda width: float(width), reviews=1)
        tries += control.width > before
    assert 2 <= tries <= 6


def test_stays_while_nobody_waits() -> None:
    control = searching()
    for _ in range(50):
        control.measured(0, 1, 1.0, 1)
        control.review(1, waiting=False)
    assert control.width == 1


def test_says_nothing_of_speeds_below_full_width() -> None:
    control = searching(busy=0.5)
    for _ in range(50):
        control.measured(0, 1, 1.0, 1)
        control.review(1, waiting=True)
    assert control.width == 2


def test_fixed_never_moves() -> None:
    control = WidthControl(limit=3, width=3)
    control.guess(0.1)
    assert run(control, lambda width: 1.0) == {3}


def test_unequal_trials_are_held_against_their_own_speed() -> None:
    control = searching()
    for _ in range(100):
        for trial in range(control.width):
            control.measured(trial, 1, 0.01 if trial == 0 else 100.0, control.width)
        control.review(control.width, waiting=True)
        if control.width == 2:
            break
    for _ in range(2):
        control.measured(0, 1, 0.0101, 2)
        control.measured(1, 1, 100.0, 2)
    control.review(2, waiting=True)
    assert control.width == 2


def test_trials_of_a_single_report_raise_the_width_too() -> None:
    control = searching(limit=4)
    for trial in range(100):
        control.measured(trial, 1, 1.0, control.width)
        control.review(control.width, waiting=True)
    assert control.width == 4


def test_a_guess_that_was_too_wide_is_taken_back() -> None:
    control = WidthControl(limit=32)
    for _ in range(2):
        control.measured(0, 1, 1.0, 1)
    control.guess(0.05)
    assert control.width == 20
    run(control, lambda width: 1.0 if width <= 2 else width / 2.1, reviews=20)
    assert control.width <= 3


def test_what_it_remembers_does_not_grow_with_ended_trials() -> None:
    control = searching(limit=4)
    for trial in range(10_000):
        control.measured(trial, 1, 1.0, control.width)
    assert len(control._now) <= 16


def test_where_no_more_lanes_come_up_those_that_are_go_on_and_more_are_tried_after_a_while() -> None:
    control = WidthControl(limit=8, width=8)
    control.refused(3)
    assert control.width == 3
    held = 0
    while control.width == 3:
        for trial in range(3):
            control.measured(trial, 4, 1.0, 3)
        control.review(3, waiting=True)
        held += 1
    assert held > PATIENCE


@pytest.mark.parametrize(("usual", "widths"), [(3.0, {2, 4}), (1.0, {1})])
def test_where_none_lives_through_a_change_trials_are_held_against_what_is_usual_of_them(
    usual: float, widths: set[int]
) -> None:
    control = searching(limit=4)
    for _ in range(ITERATIONS):
        control.measured(0, 1, 1.0, 1)
    control.review(1, waiting=True)
    assert control.width == 2
    for trial in [1, 2] * ITERATIONS:
        control.measured(trial, 1, 3.0, 2, usual=lambda: usual)
    control.review(2, waiting=True)
    assert control.width in widths


@pytest.mark.parametrize(("step", "width", "proven"), [(1.5, 2, 2), (2.4, 1, 1), (3.0, 2, 0), (0.7, 2, 0)])
def test_where_nobody_knows_what_is_usual_trials_that_are_as_fast_as_each_other_are_taken_for_alike(
    step: float, width: int, proven: int
) -> None:
    control = searching(limit=2)
    for _ in range(ITERATIONS):
        control.measured(0, 1, 1.0, 1, usual=lambda: None)
    control.review(1, waiting=True)
    for trial, unlike in [(1, 0.95), (2, 1.05)] * ITERATIONS:
        control.measured(trial, 1, step * unlike, 2, usual=lambda: None)
    control.review(2, waiting=True)
    # A speed that lanes cannot account for is that of other trials.
    assert (control.width, control.proven) == (width, proven)


@pytest.mark.parametrize(("step", "busy", "width"), [(3.0, None, 1), (1.5, None, 2), (3.0, 0.9, 2)])
def test_where_nobody_knows_what_is_usual_it_is_decided_after_a_while_by_the_means_or_by_utilisation(
    step: float, busy: float | None, width: int
) -> None:
    control = searching(limit=2, busy=busy)
    for _ in range(ITERATIONS):
        control.measured(0, 1, 1.0, 1, usual=lambda: None)
    for asked in range(UNSURE + 1):
        control.review(control.width, waiting=True)
        assert (control.width, control.proven) == ((width, width) if asked == UNSURE else (2, 0))
        for trial, unlike in [(1, 0.5), (2, 2.0)] * ITERATIONS:
            control.measured(trial, 1, step * unlike, 2, usual=lambda: None)
