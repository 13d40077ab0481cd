"""The brain, behaviour by behaviour: events in, instructions out."""

from __future__ import annotations

import pytest

from cotune.demand import Demand
from cotune.packer import events as ev
from cotune.packer import instructions as do
from cotune.packer.events import Outcome
from cotune.packer.packer import PackerOptions
from cotune.packer.policies import Fifo
from cotune.packer.state import padded
from world import MIB, World

GIB = 1024 * MIB
CONTEXT = 50 * MIB


def make(width: int | None = 4, *, capacity: int = GIB, context: int = CONTEXT, **options: object) -> World:
    world = World(PackerOptions(width=width, **options))  # type: ignore[arg-type]
    world.device("gpu 0", capacity, context)
    return world


def taught(width: int | None = 4, **options: object) -> World:
    """A world that has seen a trial of 100 + 50 MiB end; its lane is warm and idle."""
    world = make(width, **options)
    world.add(0, 100 * MIB, 50 * MIB, steps=2)
    world.finish(0)
    return world


def need(persistent: int, ephemeral: int) -> int:
    return CONTEXT + padded(persistent) + padded(ephemeral)


# ---- probing


def test_first_trial_of_a_kind_gets_a_whole_device() -> None:
    world = make()
    assert world.add(0) == [do.OpenLane(1, "gpu 0", GIB), do.StartTrial(0, 1)]


def test_probe_shrinks_after_its_second_iteration_when_someone_waits_and_the_second_trial_then_fits() -> None:
    world = make()
    world.add(0, 100 * MIB, 50 * MIB)
    world.add(1, 100 * MIB, 50 * MIB)
    world.go(0)
    assert world.waiting() == [1]
    world.step(0)
    world.deliver(1)
    assert world.log[-1] == do.ResizeLane(1, need(100 * MIB, 50 * MIB))
    assert world.waiting() == [1]
    world.settle()
    assert world.lane_of(1).lane == 2


def test_probe_keeps_its_room_while_nobody_waits() -> None:
    world = make()
    world.add(0, 100 * MIB, 50 * MIB)
    world.go(0, 3)
    assert world.lane_of(0).quota == GIB


def test_other_devices_probe_in_parallel() -> None:
    world = make()
    world.device("gpu 1", GIB)
    for trial in range(3):
        world.add(trial)
    assert [world.lane_of(t).device for t in (0, 1)] == ["gpu 0", "gpu 1"]
    assert world.waiting() == [2]


def test_another_kind_is_probed_for_itself() -> None:
    world = taught()
    world.add(1, kind="other")
    assert world.lane_of(1).quota == GIB


def test_no_probe_where_not_even_a_context_fits() -> None:
    world = World()
    world.device("gpu 0", 30 * MIB, CONTEXT)
    assert world.add(0) == []
    assert "others leave 30.0 MiB of gpu 0" in (world.why(0) or "")


def test_trial_that_reports_once_still_teaches_the_model() -> None:
    world = make()
    world.add(0, 100 * MIB, 50 * MIB, steps=1)
    world.finish(0)
    world.add(1, 100 * MIB, 50 * MIB)
    world.add(2, 100 * MIB, 50 * MIB)
    assert sorted(world.running()) == [1, 2]


# ---- lanes


def test_freed_lane_is_used_again_warm() -> None:
    world = taught()
    assert [type(i) for i in world.add(1, 100 * MIB, 50 * MIB)] == [do.StartTrial]
    assert world.lane_of(1).lane == 1


def test_next_trial_starts_in_the_same_call_that_ends_one() -> None:
    world = taught(1)
    world.add(1, 100 * MIB, 50 * MIB, steps=1)
    world.add(2, 100 * MIB, 50 * MIB)
    world.finish(1)
    assert world.started[-2:] == [(1, 1), (2, 1)]


def test_underestimated_context_does_not_eat_into_the_promise() -> None:
    world = World(PackerOptions(width=4))
    world.device("gpu 0", GIB, CONTEXT)
    world.add(0, 100 * MIB, 50 * MIB, steps=1)
    world.finish(0)
    world.send(ev.LaneHolds(0.0, 1, 0, 0, tainted=True))
    world.settle()
    world.devices["gpu 0"].real_context = 80 * MIB
    world.add(1, 100 * MIB, 50 * MIB)
    promised = world.lane_of(1).quota - CONTEXT
    world.settle()
    assert world.lane_of(1).quota == promised + 80 * MIB


def test_lane_grows_with_its_trial() -> None:
    world = taught()
    world.add(1, 100 * MIB, 50 * MIB)
    world.add(2, 100 * MIB, 50 * MIB, late=10 * MIB, steps=9)
    world.settle()
    world.go(2, 3)
    assert world.lane_of(2).quota == need(100 * MIB, 60 * MIB)


def test_shrink_counts_only_once_it_is_confirmed() -> None:
    world = make()
    world.add(0, 100 * MIB, 50 * MIB)
    world.add(1, 100 * MIB, 50 * MIB)
    world.step(0)
    world.step(0)
    for _ in range(3):
        world.deliver(1)
    assert world.packer.snapshot().devices[0].held == GIB
    assert "it is being freed" in (world.why(1) or "")
    world.deliver(1)
    assert world.lane_of(1)


def test_answer_to_an_earlier_resize_does_not_confirm_a_later_one() -> None:
    world = make()
    world.add(0, 100 * MIB, 50 * MIB, steps=2)
    world.finish(0)
    world.add(1, 700 * MIB, 100 * MIB, steps=2)
    world.finish(1)
    lane = world.lanes[1]
    world.change("gpu 0", 500 * MIB)
    world.change("gpu 0", GIB)
    world.add(2, 700 * MIB, 100 * MIB, kind="other")
    world.withdraw(2)
    world.step(2)
    ended = lane.mail.pop()
    lane.mail.appendleft(ended)
    world.deliver(1)
    world.change("gpu 0", 600 * MIB)
    assert len(lane.unanswered) == 3
    world.deliver(1)
    assert world.packer.snapshot().devices[0].held == GIB
    world.settle()
    assert world.packer.snapshot().devices[0].held == lane.quota <= 600 * MIB


def test_idle_lane_that_is_being_shrunk_takes_a_trial_at_the_same_time() -> None:
    world = taught()
    world.change("gpu 0", 900 * MIB)
    world.change("gpu 0", GIB)
    assert [type(i) for i in world.log[-1:]] == [do.ResizeLane]
    assert world.add(1, 100 * MIB, 50 * MIB)[-1] == do.StartTrial(1, 1)
    assert world.lanes[1].quota == need(105 * MIB, 52 * MIB + MIB // 2)
    world.settle()
    world.finish(1)
    assert world.outcome(1) is Outcome.DONE


def test_lane_that_cannot_shrink_is_not_asked_for_ever() -> None:
    world = make()
    world.add(0, 100 * MIB, 50 * MIB)
    world.add(1, 100 * MIB, 50 * MIB)
    world.step(0)
    world.step(0)
    for _ in range(3):
        world.deliver(1)
    assert world.send(ev.LaneResized(0.0, 1, 900 * MIB)) == []
    assert world.send(ev.Tick(1.0)) == []


def test_leaky_lane_is_recycled() -> None:
    world = taught(1)
    for trial in (1, 2):
        world.leave_behind(1, trial * 65 * MIB)
        world.add(trial, 100 * MIB, 50 * MIB)
    assert do.CloseLane(1) in world.log
    world.settle()
    assert world.lane_of(2).lane == 2


def test_imports_of_the_first_trial_are_no_leak() -> None:
    world = make()
    world.add(0, 10 * MIB)
    world.settle()
    world.leave_behind(1, 0)
    world.finish(0)
    world.leave_behind(1, 200 * MIB)
    world.leave_behind(1, 200 * MIB)
    assert not any(isinstance(i, do.CloseLane) for i in world.log)


def test_residue_is_part_of_what_the_next_trial_needs() -> None:
    world = taught()
    world.change("gpu 0", 300 * MIB)
    world.settle()
    world.change("gpu 0", GIB)
    world.leave_behind(1, 30 * MIB)
    world.add(1, 100 * MIB, 50 * MIB)
    assert world.lane_of(1).quota >= need(100 * MIB, 50 * MIB) + 30 * MIB


def test_tainted_lane_ends_with_its_last_resident() -> None:
    world = make(1)
    world.add(0, 100 * MIB, 50 * MIB, steps=2)
    world.add(1, 100 * MIB, 50 * MIB)
    world.settle()
    world.leave_behind(1, 0, tainted=True)
    world.go(0)
    assert do.CloseLane(1) not in world.log
    world.go(0)
    assert do.CloseLane(1) in world.log
    assert world.lane_of(1).lane == 2


def test_width_is_the_most_lanes_that_run() -> None:
    world = taught(2)
    for trial in range(1, 5):
        world.add(trial, 10 * MIB, 10 * MIB)
    assert world.running() == [1, 2]
    assert world.packer.seats == 0
    assert world.packer.breadth == 2


# ---- order


def test_small_trial_passes_one_that_does_not_fit() -> None:
    world = packed_beside_a_big_one()
    assert world.waiting() == [10]
    world.add(11, 100 * MIB, 50 * MIB, kind="small")
    assert world.running() == [1, 11]


def packed_beside_a_big_one(**options: object) -> World:
    """Trial 1, small and endless, runs; trial 10 needs nearly all of the device."""
    world = make(4, policy=Fifo(), **options)
    for trial, (kind, persistent) in enumerate([("big", 700), ("small", 100)], start=-2):
        world.add(trial, persistent * MIB, 50 * MIB, steps=2, kind=kind)
        world.finish(trial)
    world.add(1, 100 * MIB, 50 * MIB, steps=10_000, kind="small")
    world.add(10, 700 * MIB, 50 * MIB, kind="big")
    world.add(9, 700 * MIB, 50 * MIB, kind="big")
    world.withdraw(9)
    world.settle()
    return world
