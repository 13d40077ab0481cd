"""Trials with priority: first in line, first in their lane, and not slowed down beyond a bound."""

from __future__ import annotations

import pytest
from world import MIB, World

from cotune.packer import PackerOptions
from cotune.packer import events as ev
from cotune.packer import instructions as do
from cotune.packer.interference import shared_speed
from cotune.packer.learning import PROBE_SECONDS
from cotune.packer.policies import POLICIES, make_policy

GIB = 1024 * MIB


def make(width: int = 4, capacity: int = 4 * GIB, **options: object) -> World:
    world = World(PackerOptions(width=width, **options))  # type: ignore[arg-type]
    world.device("gpu 0", capacity)
    return world


def teach(world: World, busy: float, kind: str = "") -> None:
    """A trial that ends, so that those after it need no probe."""
    number = len(world.jobs)
    world.add(number, 100 * MIB, 50 * MIB, steps=2, busy=busy, kind=kind)
    world.settle()
    world.finish(number)


def add(world: World, busy: float = 0.5, priority: float = 0.0, *, seconds: float = 1.0, size: int = 100) -> int:
    number = len(world.jobs)
    world.add(number, size * MIB, 50 * MIB, steps=10**6, busy=busy, priority=priority, seconds=seconds, hint=1.0)
    world.settle()
    return number


def runs(world: World, trial: int) -> bool:
    return world.where[trial] is not None


def come_to_nothing(world: World, trial: int) -> None:
    """A trial runs for long without an iteration."""
    lane = world.lane_of(trial).lane
    world.send(ev.LaneQuiet(world.time, lane, trial, PROBE_SECONDS + 1, 0))
    world.settle()


# ---- who goes first


@pytest.mark.parametrize("policy", POLICIES)
def test_whoever_has_priority_starts_first_whatever_the_policy(policy: str) -> None:
    world = make(1, policy=make_policy(policy))
    teach(world, 0.5)
    first, second, third = add(world), add(world), add(world, priority=1.0)
    world.withdraw(first)
    world.go(first)
    assert runs(world, third)
    assert not runs(world, second)


def test_a_device_is_kept_free_for_priority_before_others_overtake_it() -> None:
    world = make(capacity=GIB)
    teach(world, 0.1)
    large = add(world, 0.1, size=600)
    wanted = add(world, 0.1, 1.0, size=700)
    assert runs(world, large)
    small = add(world, 0.1, seconds=2.0)
    assert not runs(world, wanted)
    assert not runs(world, small)
    world.withdraw(large)
    world.go(large)
    assert runs(world, wanted)


def test_room_is_made_for_priority_at_once_where_nothing_runs_that_would_end() -> None:
    world = World(PackerOptions(width=4))
    world.device("gpu 0", GIB, context=10 * MIB)
    teach(world, 0.1)
    for one in [add(world, 0.1, size=300), add(world, 0.1, size=300)]:
        world.withdraw(one)
        world.go(one)
    # Two lanes are idle. What it does not know of itself is more than either, and one with no priority waits behind.
    world.add(10, 550 * MIB, 50 * MIB, busy=0.1, priority=1.0, hint=0.2)
    world.add(11, 100 * MIB, 50 * MIB, busy=0.1, hint=1.0)
    world.settle()
    world.go(10)
    assert world.retries[-1].trial == 10
    assert runs(world, 10)


def test_others_still_overtake_where_all_have_the_same_priority() -> None:
    world = make(capacity=GIB)
    teach(world, 0.1)
    large = add(world, 0.1, 1.0, size=600)
    world.go(large, 2)
    wanted, small = add(world, 0.1, 1.0, size=700), add(world, 0.1, 1.0)
    assert not runs(world, wanted)
    assert runs(world, small)


def lane_mates() -> tuple[World, int, int, int]:
    """A trial and one with priority in the same lane, and the lane."""
    world = make(1, residents=2)
    teach(world, 0.5)
    mate = add(world)
    world.go(mate, 2)
    wanted = add(world, priority=1.0)
    lane = world.lane_of(mate).lane
    assert world.lane_of(wanted).lane == lane
    return world, mate, wanted, lane


def test_priority_takes_the_turn_of_lane_mates_and_gives_it_back() -> None:
    world, _, wanted, lane = lane_mates()
    assert do.GiveTurn(lane, wanted) in world.log
    world.withdraw(wanted)
    world.go(wanted)
    assert world.packer._ledger.lanes[lane].turn is None


def test_who_is_to_leave_gets_the_turn_that_it_needs_for_it() -> None:
    world, mate, wanted, lane = lane_mates()
    assert do.GiveTurn(lane, mate) in world.withdraw(mate)
    world.go(mate)
    assert wanted in world.running()


def test_turns_go_back_to_all_when_one_of_the_same_priority_joins() -> None:
    world, mate, wanted, lane = lane_mates()
    world.go(wanted, 2)
    world.jobs[mate].steps = world.jobs[mate].done + 1
    world.finish(mate)
    assert do.GiveTurn(lane, None) not in world.log, "nobody else wants them"
    also = add(world, priority=1.0)
    assert world.lane_of(also).lane == lane
    assert do.GiveTurn(lane, None) in world.log


def test_nobody_joins_a_lane_where_another_has_every_turn() -> None:
    world = make(1, residents=2)
    teach(world, 0.5)
    wanted = add(world, priority=1.0)
    world.go(wanted, 2)
    other = add(world)
    assert not runs(world, other)
    assert runs(world, add(world, priority=2.0))


# ---- neighbours


def test_neighbours_are_those_that_keep_the_predicted_slowdown_under_the_bound() -> None:
    world = make(max_slowdown=1.25)
    for busy, kind in ((0.9, "heavy"), (0.3, "light"), (0.6, "wanted")):
        teach(world, busy, kind)
    world.add(10, 100 * MIB, 50 * MIB, kind="wanted", priority=1.0, steps=10**6)
    world.settle()
    world.go(10, 2)
    world.add(11, 100 * MIB, 50 * MIB, kind="heavy")
    world.add(12, 100 * MIB, 50 * MIB, kind="light")
    world.settle()
    assert 1 / shared_speed(1.5) > 1.25 > 1 / shared_speed(0.9)
    assert not runs(world, 11)
    assert runs(world, 12)
    assert (
        world.why(11)
        == f"on gpu 0 trial 10, which has priority, would be slowed {1 / shared_speed(1.8):.2f} times, 1.25 is allowed"
    )


def test_a_trial_with_priority_is_not_put_beside_those_that_would_slow_it() -> None:
    world = make()
    teach(world, 0.9)
    add(world, 0.9)
    wanted = add(world, 0.9, 1.0)
    assert not runs(world, wanted)
    assert "it would be slowed" in (world.why(wanted) or "")
    world.device("gpu 1", 4 * GIB)
    assert world.lane_of(wanted).device == "gpu 1"


def test_what_nobody_has_measured_is_no_neighbour() -> None:
    world = make()
    world.add(0, 100 * MIB, 50 * MIB, steps=2)
    world.settle()
    world.finish(0)
    wanted = add(world, priority=1.0)
    world.go(wanted, 2)
    world.add(9, 100 * MIB, 50 * MIB)
    assert not runs(world, 9)


def test_without_priority_neighbours_are_not_chosen() -> None:
    world = make()
    teach(world, 0.9)
    assert all(runs(world, add(world, 0.9)) for _ in range(4))


# ---- measured


def test_a_trial_with_priority_runs_alone_until_its_own_speed_was_measured() -> None:
    world = make()
    teach(world, 0.1)
    wanted, other = add(world, 0.1, 1.0), add(world, 0.1)
    assert not runs(world, other)
    world.go(wanted)
    assert not runs(world, other)
    world.go(wanted)
    assert runs(world, other)


def slow_down(world: World, trial: int, factor: float, events: int) -> None:
    world.jobs[trial].seconds = factor
    world.go(trial, events)


def test_where_the_measured_slowdown_exceeds_the_bound_a_lane_is_not_filled_again() -> None:
    world = make(width=3, max_slowdown=1.25)
    teach(world, 0.1)
    wanted = add(world, 0.1, 1.0)
    world.go(wanted, 2)
    first, second, third = add(world, 0.1), add(world, 0.1), add(world, 0.1)
    slow_down(world, wanted, 1.5, 4)
    assert [runs(world, trial) for trial in (first, second, third)] == [True, True, False]
    world.withdraw(first)
    world.go(first)
    assert not runs(world, third)


def test_what_was_measured_of_a_pair_of_kinds_holds_for_the_next_of_them() -> None:
    world = make(width=2, max_slowdown=1.25)
    teach(world, 0.1)
    for _ in range(2):
        wanted = add(world, 0.1, 1.0)
        world.go(wanted, 2)
        other = add(world, 0.1)
        if runs(world, other):
            slow_down(world, wanted, 2.5, 6)
        world.withdraw(wanted)
        world.withdraw(other)
        world.go(wanted)
        if runs(world, other):
            world.go(other)
    assert world.started[-1][0] == wanted


def test_within_the_bound_lanes_are_filled_again() -> None:
    world = make(width=2, max_slowdown=1.25)
    teach(world, 0.1)
    wanted = add(world, 0.1, 1.0)
    world.go(wanted, 2)
    first, second = add(world, 0.1), add(world, 0.1)
    slow_down(world, wanted, 1.2, 6)
    world.withdraw(first)
    world.go(first)
    assert runs(world, second)


def test_more_neighbours_are_tried_again_after_a_while() -> None:
    world = make(width=2, max_slowdown=1.25)
    teach(world, 0.01)
    wanted = add(world, 0.01, 1.0)
    world.go(wanted, 2)
    first, second = add(world, 0.01), add(world, 0.01)
    slow_down(world, wanted, 1.3, 4)
    world.withdraw(first)
    world.go(first)
    assert not runs(world, second)
    slow_down(world, wanted, 1.0, 40)
    assert runs(world, second)


def test_the_measured_slowdown_is_told_while_it_runs_and_at_its_end() -> None:
    world = make()
    teach(world, 0.1)
    wanted = add(world, 0.1, 1.0)
    world.go(wanted, 3)
    assert world.packer.slowdown_of(wanted) == pytest.approx(1.0)
    add(world, 0.1)
    # The first of these began before the neighbour came.
    slow_down(world, wanted, 1.2, 3)
    assert world.packer.slowdown_of(wanted) == pytest.approx((2 * 1.0 + 2 * 1.2) / 4)
    world.withdraw(wanted)
    world.go(wanted)
    assert world.concluded[wanted].measures.slowdown == pytest.approx(1.1)


def test_once_it_has_run_alone_that_is_what_its_speed_beside_others_is_compared_with() -> None:
    world = make(width=2, max_slowdown=4.0)
    teach(world, 0.5)
    first = add(world, 0.5)
    world.go(first, 2)
    wanted = add(world, 0.5, 1.0)
    slow_down(world, wanted, 2.0, 4)
    world.withdraw(first)
    world.go(first)
    slow_down(world, wanted, 1.0, 3)
    add(world, 0.5)
    slow_down(world, wanted, 2.0, 4)
    assert world.packer.slowdown_of(wanted) == pytest.approx((3 * 2.0 + 2 * 1.0 + 3 * 2.0) / 8)


def test_what_was_measured_of_a_pair_of_kinds_is_forgotten_little_by_little() -> None:
    world = make(width=2, max_slowdown=1.25)
    teach(world, 0.1)
    beside = []
    for _ in range(4):
        wanted = add(world, 0.1, 1.0)
        world.go(wanted, 2)
        other = add(world, 0.1)
        beside.append(runs(world, other))
        if runs(world, other):
            slow_down(world, wanted, 2.0, 3)
        world.withdraw(wanted)
        world.withdraw(other)
        world.go(wanted)
        if runs(world, other):
            world.go(other)
    assert beside == [True, False, False, True]


def test_a_trial_without_priority_has_no_slowdown() -> None:
    world = make()
    teach(world, 0.1)
    assert world.concluded[0].measures.slowdown is None


def test_grants_go_to_nobody_beside_a_trial_with_priority() -> None:
    world = make(width=2)
    teach(world, 0.1)
    wanted = add(world, 0.1, 1.0)
    world.go(wanted, 2)
    world.add(9, 100 * MIB, 50 * MIB, steps=10**6, busy=0.1, splits=8)
    world.settle()
    for _ in range(8):
        world.go(9)
    assert not any(isinstance(said, do.GrantTrial) for said in world.log)


def test_a_lost_lane_forgets_what_was_measured_in_it() -> None:
    world = make()
    teach(world, 0.1)
    wanted = add(world, 0.1, 1.0)
    world.go(wanted, 3)
    world.crash(world.lane_of(wanted).lane, wanted)
    world.settle()
    assert runs(world, wanted)
    other = add(world, 0.1)
    assert not runs(world, other)
    world.go(wanted, 2)
    assert runs(world, other)
    world.send(ev.Tick(world.time))


def test_where_trials_end_before_they_can_be_measured_those_after_them_run_beside_each_other() -> None:
    world = make(4)
    world.add(0, 100 * MIB, 50 * MIB, steps=1, busy=0.0, priority=1.0)
    world.settle()
    world.finish(0)
    for trial in range(1, 5):
        world.add(trial, 100 * MIB, 50 * MIB, steps=1, busy=0.0, priority=1.0)
    world.settle()
    assert len(world.running()) == 4


def test_a_trial_with_priority_that_comes_to_nothing_for_long_keeps_nobody_waiting() -> None:
    world = make(4)
    teach(world, 0.0)
    first, second = add(world, 0.0, 1.0), add(world, 0.0, 1.0)
    assert not runs(world, second)
    come_to_nothing(world, first)
    assert runs(world, second)


def test_one_that_goes_on_after_a_pause_and_comes_to_nothing_for_long_keeps_nobody_waiting() -> None:
    world = make(2)
    teach(world, 0.1)
    first = add(world, 0.1, 1.0)
    world.go(first, 4)
    world.hold(first)
    world.go(first)
    world.release(first)
    second = add(world, 0.1)
    assert not runs(world, second)
    come_to_nothing(world, first)
    assert runs(world, second)


def test_a_neighbour_that_takes_turns_with_one_that_is_hardly_felt_is_chosen_too() -> None:
    world = make(2, residents=2)
    teach(world, 0.1)
    wanted = hinted(world, 0.8, 1.0)
    world.go(wanted, 3)
    light = hinted(world, 0.1)
    world.go(light, 3)
    assert world.lane_of(light).lane != world.lane_of(wanted).lane
    assert not runs(world, hinted(world, 1.0))
    assert runs(world, hinted(world, 0.1))


def test_one_with_priority_is_seen_though_its_lane_mate_is_busier() -> None:
    world = make(2, residents=2, policy=make_policy("fifo"))
    teach(world, 0.1)
    mate = hinted(world, 1.0)
    world.go(mate, 3)
    other = hinted(world, 0.1)
    world.go(other, 3)
    wanted = hinted(world, 0.6, 1.0)
    lane = world.lane_of(wanted).lane
    world.go(wanted, 3)
    for one in (mate, other):
        if world.lane_of(one).lane != lane:
            world.withdraw(one)
            world.go(one)
    heavy = hinted(world, 0.9)
    assert not runs(world, heavy)
    assert f"trial {wanted}, which has priority, would be slowed" in (world.why(heavy) or "")


def hinted(world: World, busy: float, priority: float = 0.0) -> int:
    """A trial of which it is known beforehand what it uses of a device."""
    number = len(world.jobs)
    world.add(number, 100 * MIB, 50 * MIB, steps=10**6, busy=busy, priority=priority, hint=1.0, knows_busy=True)
    world.settle()
    return number


@pytest.mark.parametrize("size", [50, 200])
def test_a_trial_that_lost_a_lane_does_not_wait_for_one_with_priority_that_would_be_slowed(size: int) -> None:
    world = World(PackerOptions(width=4, policy=make_policy("fifo")))
    for number in range(2):
        world.device(f"gpu {number}", 4 * GIB)
        world.add(number, 10 * MIB, 10 * MIB, steps=1000, busy=1.0, hint=1.0, knows_busy=True)
    world.run_some(3)
    for trial, needs, busy in ((2, 100, 1.0), (3, size, 0.1)):
        priority = float(trial == 2)
        world.add(
            trial,
            needs * MIB,
            10 * MIB,
            steps=50,
            busy=busy,
            priority=priority,
            hint=1.0,
            knows_busy=True,
            lane_deaths=1,
        )
    world.run_some(3)
    assert not runs(world, 2)
    assert runs(world, 3)
