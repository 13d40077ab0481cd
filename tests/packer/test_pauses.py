"""Trials that are held: they wait in their lanes, go on there, and make room."""

from __future__ import annotations

import pytest
from world import MIB, World

from cotune.packer import Packer, PackerOptions
from cotune.packer import events as ev
from cotune.packer import instructions as do
from cotune.packer.events import Outcome
from cotune.packer.policies import make_policy
from cotune.packer.policies.fluid import Fluid
from cotune.packer.state import MOST_PAUSED
from cotune.packer.trial import padded

GIB = 1024 * MIB


def make(width: int = 1, capacity: int = 4 * GIB, **options: object) -> World:
    world = World(PackerOptions(width=width, **options))  # type: ignore[arg-type]
    world.device("gpu 0", capacity)
    return world


def add(world: World, size: int = 100, steps: int = 20, **how: object) -> int:
    number = len(world.jobs)
    world.add(number, size * MIB, 50 * MIB, steps=steps, hint=1.0, **how)  # type: ignore[arg-type]
    world.settle()
    return number


def pause(world: World, trial: int) -> None:
    world.hold(trial)
    world.go(trial)


def runs(world: World, trial: int) -> bool:
    where = world.where[trial]
    return where is not None and trial in world.packer._ledger.lanes[where].residents


def rests(world: World, trial: int) -> bool:
    where = world.where[trial]
    return where is not None and trial in world.packer._ledger.lanes[where].paused


def test_a_trial_that_is_held_pauses_at_its_next_boundary_and_its_lane_takes_the_next() -> None:
    world = make()
    first, second = add(world), add(world)
    assert world.hold(first) == [do.PauseTrial(first)]
    assert not runs(world, second)
    world.go(first)
    assert rests(world, first)
    assert world.lane_of(second).lane == world.lane_of(first).lane


def test_what_a_paused_trial_holds_stays_in_the_books() -> None:
    world = make()
    first, second = add(world, 300), add(world, 100)
    world.go(first, 2)
    pause(world, first)
    assert world.lane_of(second).quota >= padded(300 * MIB) + padded(100 * MIB) + padded(50 * MIB)


def test_a_released_trial_goes_on_in_its_lane_before_those_in_line() -> None:
    world = make()
    first, second, third = add(world), add(world), add(world)
    pause(world, first)
    world.release(first)
    assert rests(world, first)
    world.withdraw(second)
    world.go(second)
    assert runs(world, first)
    assert not runs(world, third)
    assert world.jobs[first].done == 1
    assert world.started.count((first, 1)) == 1


def test_a_trial_that_goes_on_counts_among_all_there_is_to_do_as_before() -> None:
    policy = make_policy("fluid")
    assert isinstance(policy, Fluid)
    world = make(policy=policy)
    first = add(world, seconds=100.0)
    whole = policy.total
    pause(world, first)
    assert whole > policy.total == 0
    world.release(first)
    assert runs(world, first)
    assert policy.total == pytest.approx(whole, rel=0.1)


def test_a_released_trial_with_a_checkpoint_does_not_wait_for_a_busy_lane_beside_an_idle_device() -> None:
    world = make()
    first, second = add(world, saves=True), add(world)
    pause(world, first)
    world.device("gpu 1", 4 * GIB)
    third = add(world, steps=5)
    world.release(first)
    assert world.log[-1] != do.StopTrial(first)
    world.finish(third)
    world.run_some(2)
    assert world.lane_of(first).device == "gpu 1"
    assert runs(world, first)
    assert runs(world, second)


def test_a_trial_that_goes_on_has_its_peak_set_aside_again() -> None:
    world = make(capacity=GIB)
    world.add(0, 100 * MIB, 500 * MIB, steps=20, hint=1.0)
    world.settle()
    world.go(0, 2)
    pause(world, 0)
    other = add(world, 700, steps=5, lane_deaths=1)
    assert runs(world, other), "in the room of the first one's peak"
    world.finish(other)
    world.release(0)
    world.settle()
    world.go(0)
    assert runs(world, 0)
    assert not world.retries


def test_a_trial_released_before_it_has_paused_goes_on_at_once() -> None:
    world = make()
    first, second = add(world), add(world)
    world.hold(first)
    world.release(first)
    world.go(first)
    assert runs(world, first)
    assert not runs(world, second)
    assert [said for said in world.log if isinstance(said, do.PauseTrial | do.ResumeTrial)] == [
        do.PauseTrial(first),
        do.ResumeTrial(first),
    ]


def test_a_trial_that_is_held_while_it_waits_leaves_the_line() -> None:
    world = make()
    first, second, third = add(world), add(world), add(world)
    world.hold(second)
    assert world.why(second) == "it is held"
    world.withdraw(first)
    world.go(first)
    assert runs(world, third)
    world.release(second)
    world.withdraw(third)
    world.go(third)
    assert runs(world, second)


def test_a_paused_trial_that_is_withdrawn_ends_as_stopped() -> None:
    world = make()
    first = add(world)
    pause(world, first)
    world.withdraw(first)
    world.go(first)
    assert world.outcome(first) is Outcome.STOPPED


def test_a_paused_trial_that_is_withdrawn_has_time_until_the_turn_comes_to_it() -> None:
    world = make()
    first, second = add(world), add(world)
    pause(world, first)
    assert runs(world, second)
    world.withdraw(first)
    assert world.wait(10.0) == []
    assert [type(said) for said in world.wait(30.0)] == [do.CloseLane]


def test_time_in_which_nobody_ran_is_not_held_against_a_trial_that_is_to_stop() -> None:
    world = make()
    first = add(world)
    world.go(first)
    world.wait(1.0)
    world.withdraw(first)
    assert world.wait(2.0) == []
    assert world.sleep(3600.0) == []
    assert world.wait(1.0) == []
    assert [type(said) for said in world.wait(1.0)] == [do.CloseLane]


def test_a_held_trial_whose_lane_is_lost_is_not_charged_and_waits_outside() -> None:
    world = make()
    first = add(world)
    pause(world, first)
    for _ in range(4):
        second = add(world)
        world.crash(world.lane_of(second).lane, second)
        world.settle()
        world.withdraw(second)
        world.run_some(2)
    assert world.packer._trials[first].lane_deaths == 0
    assert world.packer.held == 1
    world.release(first)
    assert runs(world, first)


def test_a_trial_that_ends_before_it_pauses_is_done() -> None:
    world = make()
    first = add(world, steps=1)
    world.hold(first)
    world.go(first)
    assert world.outcome(first) is Outcome.DONE
    assert world.packer.held == 0


def test_only_trials_that_do_not_run_count_as_held() -> None:
    world = make()
    first = add(world)
    world.hold(first)
    assert world.packer.held == 0
    world.go(first)
    assert world.packer.held == world.packer.unfinished == 1


# ---- room


def test_what_can_be_moved_is_parked_when_room_is_needed_and_comes_back() -> None:
    world = make(capacity=GIB)
    first = add(world, 600, movable=0.9)
    world.go(first, 2)
    pause(world, first)
    second = add(world, 500)
    assert do.ParkTrial(first) in world.log
    assert runs(world, second)
    assert world.jobs[first].parked == int(600 * MIB * 0.9)
    world.release(first)
    world.withdraw(second)
    world.go(second)
    assert runs(world, first)
    assert world.jobs[first].parked == 0


def test_a_paused_trial_with_a_checkpoint_leaves_its_lane_when_room_is_needed_and_starts_again() -> None:
    world = make(capacity=GIB)
    first = add(world, 600, saves=True)
    world.go(first, 2)
    pause(world, first)
    second = add(world, 500)
    assert do.StopTrial(first) in world.log
    world.run_some(1)
    assert runs(world, second)
    assert not rests(world, first)
    world.release(first)
    world.withdraw(second)
    world.run_some(1)
    assert runs(world, first)
    assert len([trial for trial, _ in world.started if trial == first]) == 2


@pytest.mark.parametrize("how", [Outcome.FAILED, Outcome.OUT_OF_MEMORY])
def test_what_a_trial_raises_on_its_way_out_of_its_lane_is_not_held_against_it(how: Outcome) -> None:
    world = make(capacity=GIB)
    first = add(world, 600, saves=True)
    world.go(first, 2)
    pause(world, first)
    add(world, 500)
    assert do.StopTrial(first) in world.log
    said = world.send(ev.TrialEnded(world.time, first, how, detail="its finally raised"))
    assert [type(one) for one in said if isinstance(one, (do.RetryTrial, do.ConcludeTrial))] == [do.RetryTrial]
    assert world.packer._trials[first].floor == 0


def test_a_trial_that_must_be_alone_does_not_go_on_beside_another() -> None:
    world = World(PackerOptions(width=2))
    world.device("gpu 0", 4 * GIB, 10 * MIB)
    first = add(world, saves=True)
    for _ in range(2):
        world.go(first, 2)
        world.crash(world.lane_of(first).lane)
        world.settle()
    world.go(first, 2)
    pause(world, first)
    second = add(world)
    assert runs(world, second)
    world.release(first)
    assert not runs(world, first)
    world.withdraw(second)
    world.run_some(2)
    assert runs(world, first)


def test_a_trial_that_paused_before_anything_was_measured_goes_on() -> None:
    brain = Packer(PackerOptions(width=1))
    for event in (
        ev.DeviceFound(0.0, "gpu 0", GIB),
        ev.TrialAdded(0.0, 1),
        ev.LaneReady(0.0, 1, 0),
        ev.TrialHeld(1.0, 1),
        ev.TrialPaused(2.0, 1, 10 * MIB, saved=True, movable=0),
    ):
        brain.handle(event)
    assert do.ResumeTrial(1) in brain.handle(ev.TrialReleased(3.0, 1))


def test_a_trial_is_told_once_to_park_however_long_that_takes() -> None:
    world = make(width=2, capacity=GIB)
    first, other = add(world, 600, movable=0.9), add(world, 100)
    world.go(first, 2)
    pause(world, first)
    world.add(2, 600 * MIB, 0, hint=1.0)
    world.step(other)
    world.deliver(world.lane_of(other).lane)
    assert world.log.count(do.ParkTrial(first)) == 1
    world.settle()
    assert runs(world, 2)


def test_a_trial_that_would_not_make_enough_room_by_being_parked_leaves_its_lane() -> None:
    world = make(capacity=GIB)
    first = add(world, 500, saves=True, movable=0.2)
    world.go(first, 2)
    pause(world, first)
    second = add(world, 700)
    assert do.StopTrial(first) in world.log
    world.run_some(1)
    assert runs(world, second)


def test_a_trial_that_wants_all_of_a_device_does_not_wait_for_what_parking_leaves_there() -> None:
    world = make(capacity=GIB)
    first = add(world, 100, movable=0.9)
    pause(world, first)
    large = add(world, 1000)
    assert world.packer._trials[large].wants_all
    world.wait(1.0)
    world.step(first)
    world.settle()
    assert runs(world, large)


def test_room_is_made_for_whom_a_device_is_kept_free_also_when_another_is_first_in_line_by_now() -> None:
    world = make(2, capacity=GIB, patience=1)
    first = add(world, 600, saves=True)
    large, small = add(world, 700), add(world, 50)
    world.go(first, 2)
    assert world.packer._ledger.devices["gpu 0"].reserved_for is world.packer._trials[large]
    larger = add(world, 850)
    assert world.packer._line.head() is world.packer._trials[larger]
    world.finish(small)
    pause(world, first)
    world.run_some(2)
    assert runs(world, large)


def test_the_device_that_is_kept_free_goes_to_one_with_priority() -> None:
    world = make(2, capacity=GIB, patience=1, policy=make_policy("fifo"))
    first = add(world, 600)
    large, small = add(world, 700), add(world, 50)
    world.go(first, 2)
    assert world.packer._ledger.devices["gpu 0"].reserved_for is world.packer._trials[large]
    first_of_all = add(world, 700, priority=1.0)
    world.finish(small)
    world.withdraw(first)
    world.run_some(2)
    assert runs(world, first_of_all)
    assert not runs(world, large)


def test_no_room_is_made_where_one_with_priority_tolerates_no_neighbour() -> None:
    world = World(PackerOptions(width=2))
    world.device("gpu 0", GIB)
    first = add(world, 500, saves=True, busy=1.0)
    world.go(first, 2)
    pause(world, first)
    urgent = add(world, 100, busy=1.0, knows_busy=True, priority=1.0)
    world.go(urgent, 4)
    other = add(world, 500, busy=1.0, knows_busy=True)
    world.run_some(3)
    assert not runs(world, other)
    assert rests(world, first)


def test_a_released_trial_does_not_go_on_beside_one_with_priority_that_it_would_slow() -> None:
    world = make(width=2)
    first = add(world, busy=1.0)
    world.go(first, 2)
    pause(world, first)
    urgent = add(world, busy=1.0, knows_busy=True, priority=1.0, lane_deaths=1)
    world.go(urgent, 4)
    world.release(first)
    world.run_some(2)
    assert rests(world, first)
    world.finish(urgent)
    assert runs(world, first)


def test_one_without_a_checkpoint_stays_while_anything_runs() -> None:
    world = make(2, capacity=GIB)
    other, first = add(world, 100), add(world, 600)
    world.go(first, 2)
    pause(world, first)
    second = add(world, 500)
    assert not runs(world, second)
    assert rests(world, first)
    world.withdraw(other)
    world.run_some(2)
    assert runs(world, second)
    assert not rests(world, first)


def test_room_on_a_device_that_shrinks_is_made_by_those_with_a_checkpoint() -> None:
    world = make(capacity=GIB)
    first = add(world, 400, saves=True)
    world.go(first, 2)
    pause(world, first)
    second = add(world, 400, steps=10**6)
    world.go(second, 2)
    world.change("gpu 0", 700 * MIB)
    world.run_some(2)
    assert not rests(world, first)
    assert world.held("gpu 0") <= 700 * MIB


def test_from_a_device_that_others_have_taken_all_of_a_paused_trial_goes_elsewhere() -> None:
    world = World(PackerOptions(width=1))
    world.device("gpu 0", GIB, 50 * MIB)
    first = add(world, 400, saves=True)
    world.go(first, 2)
    pause(world, first)
    world.device("gpu 1", GIB, 50 * MIB)
    world.change("gpu 0", 0)
    world.release(first)
    world.run_some(3)
    assert runs(world, first)
    assert world.lane_of(first).device == "gpu 1"


def test_a_trial_that_fills_its_device_goes_on_though_margins_do_not_fit_there() -> None:
    world = make(capacity=GIB)
    first = add(world, 950)
    world.go(first, 2)
    pause(world, first)
    world.release(first)
    assert runs(world, first)


def test_a_trial_without_a_checkpoint_leaves_a_device_that_others_have_taken_once_nothing_runs() -> None:
    world = World(PackerOptions(width=1))
    world.device("gpu 0", GIB, 50 * MIB)
    first = add(world)
    world.go(first, 2)
    world.device("gpu 1", 4 * GIB)
    second = add(world, steps=5)
    pause(world, first)
    world.change("gpu 0", 0)
    world.release(first)
    world.run_some(2)
    assert rests(world, first)
    world.finish(second)
    world.run_some(2)
    assert runs(world, first)
    assert world.lane_of(first).device == "gpu 1"


def test_a_trial_that_wants_all_of_a_device_waits_for_the_paused_to_leave() -> None:
    world = make(capacity=GIB)
    first = add(world, 100, saves=True)
    pause(world, first)
    large = add(world, 100)
    world.packer._trials[large].alone = True
    world.jobs[large].late = 800 * MIB
    world.finish(large)
    world.run(50)
    assert world.outcome(large) is Outcome.DONE


def test_no_more_wait_in_a_lane_than_it_has_seats_for() -> None:
    world = make(capacity=64 * GIB)
    for number in range(MOST_PAUSED + 3):
        trial = add(world, 10, saves=number != 0)
        pause(world, trial)
        world.run_some(1)
    lane = world.packer._ledger.lanes[1]
    assert len(lane.paused) == MOST_PAUSED
    assert 0 in lane.paused
    assert world.packer.held == MOST_PAUSED + 3


@pytest.mark.parametrize("width", [1, 2])
def test_no_more_wait_in_processes_of_their_own_than_would_in_lanes(width: int) -> None:
    world = make(width, capacity=64 * GIB, reuse=False)
    for number in range(width * MOST_PAUSED + 3):
        trial = add(world, 10, saves=number != 0)
        pause(world, trial)
        world.run_some(1)
    lanes = world.packer._ledger.lanes.values()
    assert [len(lane.paused) for lane in lanes] == [1] * width * MOST_PAUSED
    assert any(0 in lane.paused for lane in lanes)
    assert world.packer.held == width * MOST_PAUSED + 3


def test_the_turn_that_a_paused_trial_was_given_is_free() -> None:
    world = make(residents=2)
    low = add(world)
    world.go(low, 2)
    high = add(world, priority=1.0)
    lane = world.packer._ledger.lanes[1]
    assert lane.turn == high
    pause(world, high)
    assert lane.turn is None
    world.send(ev.Tick(world.time))


def test_what_was_parked_stays_on_the_host_while_others_leave_less_than_it_takes() -> None:
    world = make(capacity=GIB)
    first = add(world, 800, movable=0.9)
    world.go(first, 2)
    pause(world, first)
    world.change("gpu 0", 700 * MIB)
    world.settle()
    assert world.jobs[first].parked
    world.release(first)
    world.run_some(2)
    assert rests(world, first)
    world.change("gpu 0", GIB)
    world.run_some(2)
    assert runs(world, first)


def test_a_lane_that_takes_no_further_trial_goes_with_the_last_that_waits_in_it() -> None:
    world = World(PackerOptions(width=1))
    world.device("gpu 0", GIB, 200 * MIB)
    first = add(world, 500)
    world.go(first, 2)
    pause(world, first)
    world.leave_behind(1, 0, tainted=True)
    second = add(world, 700)
    world.run_some(3)
    assert runs(world, second)
    assert world.lane_of(second).lane != 1


def test_a_lost_device_is_not_given_up_while_a_paused_trial_makes_room_for_another() -> None:
    world = make(capacity=GIB)
    paused = add(world, 700, saves=True)
    world.go(paused, 2)
    pause(world, paused)
    world.device("gpu 1", 4 * GIB)
    large = add(world, 3000, kind="large")
    world.go(large, 2)
    second = add(world, 500, kind="second")
    world.lose("gpu 1")
    world.run_some(3)
    assert runs(world, second)
    assert world.outcome(large) is None


@pytest.mark.parametrize("saves", [True, False])
@pytest.mark.parametrize("taken", [0, 10], ids=["all there", "others take a little"])
def test_a_trial_that_others_have_left_no_room_in_its_lane_goes_on_in_another(saves: bool, taken: int) -> None:
    world = make(capacity=GIB)
    first = add(world, 750, saves=saves)
    world.go(first, 2)
    pause(world, first)
    world.device("gpu 1", GIB)
    second, third = add(world, 50, steps=2), add(world, 50, steps=100)
    assert world.lane_of(second).device == "gpu 0"
    world.leave_behind(1, 240 * MIB)
    world.finish(second)
    world.change("gpu 0", GIB - taken * MIB)
    world.release(first)
    world.run_some(4)
    assert runs(world, first)
    assert runs(world, third), "elsewhere, and no reason to wait"
    assert world.lane_of(first).lane != 1


@pytest.mark.parametrize("saves", [True, False])
def test_a_released_trial_whose_device_has_become_too_small_goes_on_where_there_is_enough(saves: bool) -> None:
    world = World(PackerOptions(width=1))
    world.device("gpu 0", 600 * MIB, 20 * MIB)
    world.add(0, 100 * MIB, 200 * MIB, steps=20, hint=1.0, saves=saves)
    world.settle()
    world.go(0, 2)
    pause(world, 0)
    world.device("gpu 1", 600 * MIB, 20 * MIB)
    world.change("gpu 0", 200 * MIB)
    world.release(0)
    world.run_some(2)
    assert runs(world, 0)
    assert world.lane_of(0).device == "gpu 1"


def test_with_a_checkpoint_a_trial_leaves_a_device_too_small_for_it_though_others_run_elsewhere() -> None:
    world = World(PackerOptions(width=2))
    world.device("gpu 0", 600 * MIB, 20 * MIB)
    world.add(0, 100 * MIB, 200 * MIB, steps=20, hint=1.0, saves=True)
    world.settle()
    world.go(0, 2)
    pause(world, 0)
    world.device("gpu 1", 600 * MIB, 20 * MIB)
    world.change("gpu 0", 200 * MIB)
    other = add(world, 100)
    assert world.lane_of(other).device == "gpu 1"
    world.release(0)
    world.run_some(2)
    assert runs(world, 0)
    assert world.lane_of(0).device == "gpu 1"


def test_a_trial_keeps_what_it_has_in_its_lane_until_those_that_run_there_leave_it_room() -> None:
    world = make(width=2, capacity=GIB)
    world.add(0, 100 * MIB, 500 * MIB, steps=20, hint=1.0, saves=True)
    world.settle()
    world.go(0, 2)
    pause(world, 0)
    other = add(world, 650, lane_deaths=1)
    world.release(0)
    world.run_some(3)
    assert rests(world, 0)
    world.finish(other)
    world.settle()
    assert runs(world, 0)
    assert not world.retries


def test_room_is_made_for_the_next_in_line_while_no_device_can_hold_the_first() -> None:
    world = make(policy=make_policy("fifo"), capacity=GIB)
    for _ in range(2):
        trial = add(world, saves=True)
        world.go(trial, 2)
        pause(world, trial)
    world.change("gpu 0", 300 * MIB)
    large, small = add(world, 700), add(world, 100)
    world.run_some(3)
    assert runs(world, small)
    assert not runs(world, large)


def test_a_lane_whose_last_trials_leave_it_makes_room_with_all_it_holds() -> None:
    world = World(PackerOptions(width=2))
    world.device("gpu 0", GIB, 200 * MIB)
    first, second = add(world, 100), add(world, 100)
    world.go(first, 2)
    world.go(second, 2)
    pause(world, first)
    pause(world, second)
    large = add(world, 700)
    world.run_some(3)
    assert runs(world, large)


def test_room_is_made_for_a_trial_that_gets_a_lane_of_its_own() -> None:
    world = World(PackerOptions(width=2))
    world.device("gpu 0", GIB, 200 * MIB)
    first = add(world, 100)
    world.go(first, 2)
    pause(world, first)
    apart = add(world, 700, lane_deaths=1)
    world.run_some(3)
    assert runs(world, apart)


def test_a_trial_that_fills_its_device_goes_on_once_those_beside_it_in_its_lane_have_left() -> None:
    world = make(capacity=GIB)
    first = add(world, 950, movable=0.9)
    world.go(first, 2)
    pause(world, first)
    second = add(world, 100)
    world.go(second, 2)
    pause(world, second)
    assert world.lane_of(second).lane == world.lane_of(first).lane
    world.release(first)
    world.run_some(3)
    assert runs(world, first)
    assert not rests(world, second)


def test_a_released_trial_gets_what_idle_lanes_and_others_that_wait_can_only_give_together() -> None:
    world = World(PackerOptions(width=2))
    world.device("gpu 0", 1120 * MIB, 10 * MIB)
    world.add(0, 100 * MIB, 850 * MIB, steps=20, hint=1.0)
    world.settle()
    world.go(0, 2)
    pause(world, 0)
    small, other = add(world, 100), add(world, 450, steps=5)
    world.go(small, 2)
    pause(world, small)
    world.finish(other)
    world.release(0)
    world.run_some(3)
    assert runs(world, 0)
