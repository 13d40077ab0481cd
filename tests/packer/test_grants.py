"""Idle room is lent to who gains most by it, as long as it gains, and is back when somebody needs it."""

import pytest
from world import MIB, World

from cotune.packer import GrantTrial, PackerOptions, ResizeLane
from cotune.packer import events as ev
from cotune.trial import Outcome


def world(capacity=1000, width=8, lanes=None, **options):
    made = World(PackerOptions(width=lanes, **options))
    made.device("gpu 0", capacity * MIB, 20 * MIB, width=width)
    return made


def told(made, trial=0):
    """What the trial was told, in order."""
    return [i.concurrency for i in made.log if isinstance(i, GrantTrial) and i.trial == trial]


def at_once(made, trial=0):
    return made.jobs[trial].concurrency


def until(made, concurrency):
    """Has the trial go on until it runs so many at once."""
    for _ in range(60):
        if at_once(made) == concurrency:
            return
        made.run_some(1)
    raise AssertionError(f"{concurrency} at once never came: {told(made)}")


def paces(made, trial, **by_concurrency):
    made.jobs[trial].paces = {int(key[1:]): seconds for key, seconds in by_concurrency.items()}


def test_concurrency_is_doubled_while_it_pays_and_taken_back_to_the_best():
    made = world()
    made.add(0, 10 * MIB, 10 * MIB, steps=1000, splits=16)
    paces(made, 0, c1=1.0, c2=0.6, c4=0.4, c8=0.39)
    made.run_some(40)
    assert told(made) == [2, 4, 8, 4]
    assert at_once(made) == 4
    made.run_some(40)
    assert told(made) == [2, 4, 8, 4, 8, 4]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({"c1": 1.0, "c2": 0.96}, [2, 1]),
        ({"c1": 1.0, "c2": 2.0}, [2, 1]),
        ({"c1": 1.0, "c2": 0.94, "c4": 0.93}, [2, 4, 2]),
        ({"c1": 1.0, "c2": 0.5, "c4": 0.25, "c8": 0.125}, [2, 4, 8]),
    ],
)
def test_what_does_not_pay_by_a_twentieth_is_not_kept(times, expected):
    made = world()
    made.add(0, 10 * MIB, 10 * MIB, steps=1000, splits=16)
    paces(made, 0, **times)
    made.run_some(30)
    assert told(made) == expected


def test_what_is_far_worse_is_taken_back_at_once_and_tried_again_later():
    made = world(width=2)
    made.add(0, 10 * MIB, 10 * MIB, steps=1000, splits=16)
    paces(made, 0, c1=1.0, c2=30.0)
    until(made, 2)
    made.run_some(4)
    assert at_once(made) == 1
    paces(made, 0, c1=1.0, c2=0.6)
    made.run_some(50)
    assert told(made) == [2, 1, 2]


def test_a_grant_that_has_become_slower_than_none_is_taken_back():
    made = world(width=2)
    made.add(0, 10 * MIB, 10 * MIB, steps=1000, splits=16)
    paces(made, 0, c1=1.0, c2=0.6)
    until(made, 2)
    made.run_some(8)
    assert at_once(made) == 2
    paces(made, 0, c1=1.0, c2=1.1)
    made.run_some(1)
    paces(made, 0, c1=1.0, c2=0.6)
    made.run_some(4)
    assert told(made) == [2], "slower once, as anything may be"
    paces(made, 0, c1=1.0, c2=1.1)
    made.run_some(7)
    assert at_once(made) == 1
    assert told(made) == [2, 1]


def test_a_trial_without_micro_batches_is_lent_nothing():
    made = world()
    made.add(0, 10 * MIB, 10 * MIB, steps=1000)
    made.run_some(30)
    assert told(made) == []


def test_nothing_is_lent_where_that_is_switched_off():
    made = world(grants=False)
    made.add(0, 10 * MIB, 10 * MIB, steps=1000, splits=8)
    made.run_some(30)
    assert told(made) == []


def test_no_more_than_there_are_micro_batches_or_places():
    made = world()
    made.add(0, 10 * MIB, 10 * MIB, steps=1000, splits=3)
    made.run_some(60)
    assert told(made) == [2, 3]
    made = world(width=4)
    for trial in range(2):
        made.add(trial, 10 * MIB, 10 * MIB, steps=1000 * (trial == 0) + 100, splits=8 * (trial == 0))
    made.run_some(60)
    assert told(made) == [2, 3]


def test_quotas_are_raised_first_and_hold_the_fastest_that_fits():
    """300 MiB hold a context of 20, 10 at rest and four of 50, with the margins; five they do not."""
    made = world(300)
    made.add(0, 10 * MIB, 50 * MIB, steps=1000, splits=16, hint=1.0)
    made.run_some(60)
    assert told(made) == [2, 4]
    first = next(n for n, i in enumerate(made.log) if isinstance(i, GrantTrial))
    assert isinstance(made.log[first - 1], ResizeLane)
    lane = made.lane_of(0)
    assert 20 * MIB + 10 * MIB + 4 * 50 * MIB <= lane.quota <= 300 * MIB


def test_idle_lanes_make_room_for_a_grant():
    made = world(400, lanes=2)
    made.add(0, 10 * MIB, 40 * MIB, steps=1000, splits=4)
    made.add(1, 150 * MIB, 40 * MIB, steps=6)
    made.run_some(60)
    assert told(made)[-1] == 4
    assert at_once(made) == 4
    assert made.held("gpu 0") <= 400 * MIB


def test_an_idle_lane_returns_nothing_for_a_grant_that_even_so_has_no_room():
    made = world(400, lanes=2)
    made.add(0, 10 * MIB, 200 * MIB, steps=1000, splits=2, hint=1.0)
    made.add(1, 50 * MIB, 30 * MIB, steps=6, hint=1.0)
    made.run_some(20)
    assert told(made) == []
    assert len(made.lanes) == 2
    assert made.outcome(1) is Outcome.DONE


def test_the_longest_is_first():
    made = world(lanes=2, width=3)
    made.add(0, 10 * MIB, 10 * MIB, steps=50, splits=2, hint=1.0)
    made.add(1, 10 * MIB, 10 * MIB, steps=900, splits=2, hint=1.0)
    made.run_some(20)
    assert told(made, 0) == []
    assert told(made, 1) == [2]


def test_whoever_waits_gets_the_room_at_the_next_boundary():
    made = world(300)
    made.add(0, 10 * MIB, 50 * MIB, steps=1000, splits=4)
    made.run_some(40)
    assert at_once(made) == 4
    made.add(1, 100 * MIB, 20 * MIB, steps=1000, hint=1.0)
    assert made.where[1] is None
    assert told(made)[-1] == 1
    made.go(0)
    made.settle()
    assert at_once(made) == 1
    assert made.where[1] is not None
    made.finish(1)
    made.run_some(60)
    assert at_once(made) == 4


def test_a_trial_that_starts_without_waiting_ends_the_grant_too():
    made = world(lanes=2)
    made.add(0, 10 * MIB, 10 * MIB, steps=1000, splits=8, hint=1.0)
    made.run_some(40)
    assert at_once(made) > 1
    made.add(1, 10 * MIB, 10 * MIB, steps=1000, hint=1.0)
    assert made.where[1] is not None
    made.go(0)
    assert at_once(made) == 1


def test_when_others_leave_the_search_goes_on():
    made = world(width=4, lanes=3)
    made.add(0, 10 * MIB, 10 * MIB, steps=1000, splits=8)
    for trial in (1, 2):
        made.add(trial, 10 * MIB, 10 * MIB, steps=25 * trial)
    made.run_some(20)
    assert told(made) == [2]
    made.run_some(80)
    assert told(made)[-1] == 4


def test_a_grant_that_memory_did_not_hold_is_not_given_again():
    made = world()
    made.add(0, 10 * MIB, 10 * MIB, steps=1000, splits=16)
    until(made, 2)
    lane = made.lane_of(0).lane
    made.jobs[0].concurrency = 1
    made.send(ev.GrantChanged(made.time, 0, 1, 2))
    made.run_some(60)
    assert told(made) == [2]
    assert made.lane_of(0).lane == lane


def test_memory_that_runs_out_for_good_under_a_grant_says_nothing_of_the_trial():
    made = world()
    made.add(0, 10 * MIB, 10 * MIB, steps=1000, splits=16)
    until(made, 2)
    demand = made.packer.demand_of(0)
    made._end(made.lane_of(0), made.jobs[0], Outcome.OUT_OF_MEMORY, needed=900 * MIB)
    made.settle()
    assert "2 micro-batches at once" in made.retries[0].reason
    assert made.where[0] is not None
    assert made.packer.demand_of(0) == demand
    assert not made.packer._trials[0].floor
    made.run_some(60)
    assert told(made) == [2]


def test_what_a_grant_takes_is_no_demand():
    made = world()
    made.add(0, 10 * MIB, 10 * MIB, steps=60, splits=4)
    made.run_some(40)
    assert at_once(made) == 4
    demand = made.packer.demand_of(0)
    assert (demand.persistent, demand.ephemeral) == (10 * MIB, 10 * MIB)


def test_workspaces_that_a_grant_leaves_between_iterations_are_no_demand():
    made = world()
    made.add(0, 10 * MIB, 10 * MIB, steps=1000, splits=4)
    until(made, 2)
    made.run_some(2)
    made.jobs[0].persistent = 74 * MIB
    made.run_some(4)
    assert made.packer.demand_of(0).persistent == 10 * MIB


def test_a_resident_does_not_join_before_the_grant_is_back():
    made = world(300, width=4, lanes=1, residents=2)
    made.add(0, 10 * MIB, 50 * MIB, steps=1000, splits=4)
    made.run_some(40)
    assert at_once(made) == 4
    made.add(1, 40 * MIB, 50 * MIB, steps=5, hint=1.0)
    assert made.where[1] is None
    made.go(0)
    made.settle()
    assert made.where[1] == made.where[0]
    assert at_once(made) == 1


def test_a_device_that_shrinks_takes_its_grants_back():
    made = world(300)
    made.add(0, 10 * MIB, 50 * MIB, steps=1000, splits=4)
    made.run_some(40)
    assert at_once(made) == 4
    made.change("gpu 0", 150 * MIB)
    made.run_some(3)
    assert at_once(made) == 1
    assert made.held("gpu 0") <= 150 * MIB
