"""The brain, behaviour by behaviour: events in, instructions out."""

from __future__ import annotations

from unittest.mock import ANY

import pytest
from world import MIB, Job, World

from cotune.demand import Demand, format_bytes
from cotune.packer import Packer, PackerOptions
from cotune.packer import events as ev
from cotune.packer import instructions as do
from cotune.packer.endings import MOST_LANE_DEATHS, MOST_LOSSES, SUSPICIOUS
from cotune.packer.events import Outcome
from cotune.packer.interference import shared_speed
from cotune.packer.learning import PROBE_SECONDS
from cotune.packer.policies import Fifo, make_policy
from cotune.packer.state import Device
from cotune.packer.trial import padded
from cotune.packer.width import WidthControl

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


def test_sets_of_devices_are_walked_through_in_one_order_in_every_process() -> None:
    found = {Device(f"gpu {number}", number, GIB, CONTEXT, WidthControl(1)) for number in reversed(range(8))}
    assert [device.number for device in found] == list(range(8))


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


def test_what_a_resumed_trial_still_had_to_do_is_not_taken_for_all_there_is() -> None:
    def left_of_a_fresh_one(attempts: int) -> float | None:
        brain = Packer(PackerOptions(width=1))
        brain.handle(ev.DeviceFound(0.0, "gpu 0", GIB))
        for trial in range(4):
            brain.handle(ev.TrialAdded(0.0, trial, attempts=attempts))
        brain.handle(ev.TrialAdded(0.0, 9))
        brain.handle(ev.LaneReady(0.0, 1, 0))
        for trial in range(4):
            for _ in range(10):
                brain.handle(ev.IterationsDone(0.0, trial, 1, 10.0, MIB, MIB))
            *_, ended = [
                one
                for one in brain.handle(ev.TrialEnded(0.0, trial, Outcome.DONE))
                if isinstance(one, do.ConcludeTrial)
            ]
            assert ended.measures.expected_seconds is None or not attempts
        return brain._learning._predictor.seconds_left(brain._trials[9])

    assert left_of_a_fresh_one(attempts=0) == pytest.approx(100.0)
    assert left_of_a_fresh_one(attempts=1) is None


def test_what_lanes_held_that_are_gone_is_not_expected_of_others() -> None:
    world = make(4)
    world.add(0, 100 * MIB, 50 * MIB)
    world.go(0, 2)
    device = world.packer._ledger.devices["gpu 0"]
    world.send(ev.LaneHolds(0.0, 1, 600 * MIB, 0))
    assert device.shared == 600 * MIB
    world.crash(1)
    world.settle()
    assert device.shared == 600 * MIB, "nothing else is known yet"
    world.go(0, 2)
    assert device.shared == 0


def test_room_for_shared_objects_stays_with_a_new_lane_until_it_has_built_them() -> None:
    world = make(4)
    world.add(0, 20 * MIB, steps=50)
    world.go(0, 1)
    world.send(ev.LaneHolds(0.0, 1, 260 * MIB, 0))
    world.go(0, 1)
    for trial in range(1, 6):
        world.add(trial, 20 * MIB, steps=50)
    world.settle()
    ledger = world.packer._ledger
    new = [lane for lane in ledger.lanes.values() if lane.id != 1]
    assert len(new) == 2, "a third has no room for the objects"
    assert all(lane.asked >= CONTEXT + 280 * MIB for lane in new)


def test_a_trial_gets_the_room_of_objects_that_earlier_trials_shared_before_it_is_too_large() -> None:
    brain = Packer(PackerOptions(width=1))
    brain.handle(ev.DeviceFound(0.0, "gpu 0", 750 * MIB, CONTEXT))
    for trial in range(2):
        brain.handle(ev.TrialAdded(0.0, trial, expected=Demand(60 * MIB, 0)))
    brain.handle(ev.LaneReady(0.0, 1, CONTEXT))
    brain.handle(ev.LaneHolds(0.0, 1, 660 * MIB, 0))
    for _ in range(3):
        brain.handle(ev.IterationsDone(0.0, 0, 1, 1.0, 60 * MIB, 0))
    brain.handle(ev.LaneResized(0.0, 1, 750 * MIB))
    assert do.CloseLane(1) in brain.handle(ev.TrialEnded(0.0, 0, Outcome.DONE))
    assert do.StartTrial(1, 2) in brain.handle(ev.LaneLost(0.0, 1))


def test_where_an_earlier_sweep_had_shared_objects_the_first_lanes_have_room_for_them() -> None:
    world = World(PackerOptions(width=4))
    world.device("gpu 0", GIB, CONTEXT, shared=260 * MIB)
    for trial in range(5):
        world.add(trial, 20 * MIB, steps=50, hint=1.0)
    world.settle()
    lanes = world.packer._ledger.lanes.values()
    assert len(lanes) == 3, "a fourth has no room for the objects"
    assert all(lane.asked >= CONTEXT + 280 * MIB for lane in lanes)
    assert world.packer.shared() is None, "no lane tells yet"
    world.send(ev.LaneHolds(0.0, 1, 200 * MIB, 0))
    world.go(0, 1)
    assert world.packer.shared() == 200 * MIB


def test_an_earlier_sweeps_shared_objects_that_leave_little_room_are_no_reason_not_to_try() -> None:
    world = World(PackerOptions(width=4))
    world.device("gpu 0", GIB, CONTEXT, shared=GIB)
    world.add(0, 20 * MIB)
    world.finish(0)
    assert world.outcome(0) is Outcome.DONE


def test_what_a_trial_lacked_is_tried_beside_others_before_it_has_to_run_alone() -> None:
    world = make(4, capacity=600 * MIB, context=10 * MIB)
    world.add(0, 30 * MIB, steps=2)
    world.finish(0)
    world.add(1, 30 * MIB, steps=100)
    world.add(2, 492 * MIB, steps=2)
    world.settle()
    world.go(2)
    assert [retry.trial for retry in world.retries] == [2]
    assert world.where[2] is not None, "a quarter more than it lacked is more than the device has"
    world.finish(2)
    assert world.outcome(2) is Outcome.DONE
    assert 1 not in world.concluded


def test_a_lane_that_was_measured_to_cost_too_much_is_forgotten_with_it() -> None:
    world = taught()
    world.add(1, 100 * MIB, 50 * MIB)
    world.settle()
    world.devices["gpu 0"].real_context = 500 * MIB
    world.add(2, 10 * MIB, 10 * MIB)
    world.settle()
    world.devices["gpu 0"].real_context = CONTEXT
    device = world.packer._ledger.devices["gpu 0"]
    assert device.context == 500 * MIB
    world.withdraw(1)
    world.crash(world.lane_of(2).lane)
    world.settle()
    assert device.context == CONTEXT


def test_trial_that_reports_once_still_teaches_the_model() -> None:
    world = make()
    world.add(0, 100 * MIB, 50 * MIB, steps=1)
    world.finish(0)
    world.add(1, 100 * MIB, 50 * MIB, steps=1)
    world.add(2, 100 * MIB, 50 * MIB, steps=1)
    world.settle()
    assert world.running() == [1, 2]


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
    assert world.packer.snapshot().devices[0].taken == GIB
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
    assert world.packer.snapshot().devices[0].taken == GIB
    world.settle()
    assert world.packer.snapshot().devices[0].taken == lane.quota <= 600 * MIB


def test_idle_lane_that_is_being_shrunk_takes_a_trial_at_the_same_time() -> None:
    world = taught()
    world.change("gpu 0", 900 * MIB)
    world.change("gpu 0", GIB)
    assert [type(i) for i in world.log[-1:]] == [do.ResizeLane]
    assert world.add(1, 100 * MIB, 50 * MIB)[-1] == do.StartTrial(1, 1)
    assert world.lanes[1].quota == need(100 * MIB, 50 * MIB), "one margin, not one on top of another"
    world.settle()
    world.finish(1)
    assert world.outcome(1) is Outcome.DONE


def test_lane_that_cannot_shrink_is_not_asked_for_ever() -> None:
    world = make()
    world.add(0, 100 * MIB, 50 * MIB)
    world.add(1, 100 * MIB, 50 * MIB)
    world.lanes[1].stuck = 950 * MIB
    world.go(0, 3)
    assert sum(isinstance(i, do.ResizeLane) for i in world.log) == 1
    assert world.packer.snapshot().devices[0].taken == 950 * MIB


def test_leaky_lane_is_recycled() -> None:
    world = taught(1)
    world.add(1, 100 * MIB, 50 * MIB)
    world.leave_behind(1, 10 * MIB)
    world.finish(1)
    world.add(2, 100 * MIB, 50 * MIB)
    world.leave_behind(1, 75 * MIB)
    world.finish(2)
    assert do.CloseLane(1) in world.log
    world.add(3, 100 * MIB, 50 * MIB)
    world.settle()
    assert world.lane_of(3).lane == 2


def test_imports_of_the_first_two_trials_are_no_leak() -> None:
    world = make(1)
    for trial, residue in enumerate([0, 200, 200, 250]):
        world.add(trial, 10 * MIB)
        world.settle()
        world.leave_behind(1, residue * MIB)
        world.finish(trial)
    assert not any(isinstance(i, do.CloseLane) for i in world.log)


def test_a_lane_in_which_the_first_trial_leaves_more_than_a_quarter_of_the_device_is_recycled() -> None:
    world = make(1)
    world.add(0, 10 * MIB)
    world.settle()
    world.leave_behind(1, GIB // 4 + MIB)
    world.finish(0)
    assert do.CloseLane(1) in world.log


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
    world.settle()
    assert world.running() == [1, 2]
    assert world.packer.seats == 0
    assert world.packer.breadth == 2


@pytest.mark.parametrize(("chosen", "running"), [(None, [0, 1, 2]), (1, [0])])
def test_a_device_to_which_others_leave_more_takes_more_lanes_unless_their_number_was_chosen(
    chosen: int | None, running: list[int]
) -> None:
    world = World(PackerOptions(policy=make_policy("pack"), width=chosen))
    world.device("gpu 0", 8 * GIB, width=1)
    for trial in range(3):
        world.add(trial, 10 * MIB, 10 * MIB)
    world.settle()
    assert world.running() == [0]
    world.send(ev.DeviceChanged(world.time, "gpu 0", 8 * GIB, max_width=3))
    for _ in range(3):
        world.go(0)
    assert world.running() == running


def test_a_lane_that_loads_for_long_is_left_out_of_the_search_for_a_width() -> None:
    world = taught(None)
    for trial in range(1, 20):
        world.add(trial, MIB, MIB, steps=1000)

    def go_on(times: int, loads: int | None) -> int:
        for _ in range(times):
            world.wait(1.0)
            for trial in world.running():
                if trial != loads:
                    world.go(trial)
        return len(world.running())

    while go_on(1, None) < 3:
        pass
    loads = next(trial for trial in world.running() if not world.jobs[trial].done)
    assert go_on(12, loads) == go_on(12, loads) == 8, "it may yet be as fast as the others"
    world.send(ev.LaneQuiet(world.time, world.lane_of(loads).lane, loads, PROBE_SECONDS, 0))
    assert go_on(12, loads) > 8


def test_a_trial_whose_lane_has_died_gets_one_of_its_own_and_others_the_warm_ones() -> None:
    world = taught(3)
    for trial in range(1, 4):
        world.add(trial, 10 * MIB, 10 * MIB)
    world.settle()
    died = world.lane_of(1).lane
    world.finish(3)
    world.crash(died)
    world.settle()
    own = world.lane_of(1).lane
    assert [i for i in world.log if isinstance(i, do.OpenLane) and i.apart] == [do.OpenLane(own, "gpu 0", ANY, True)]
    world.add(4, 10 * MIB, 10 * MIB)
    world.finish(1)
    assert do.CloseLane(own) in world.log
    assert world.lane_of(4).lane not in (own, died)


def test_a_trial_that_is_to_run_alone_after_two_deaths_gets_a_new_lane_too() -> None:
    world = taught(2)
    for trial in (1, 2):
        world.add(trial, 10 * MIB, 10 * MIB)
    world.settle()
    for _ in range(2):
        world.crash(world.lane_of(1).lane)
        world.settle()
    world.finish(2)
    assert world.running() == [1]
    assert [retry.lane_died for retry in world.retries if retry.trial == 1] == [True, True], (
        "as later sessions must know"
    )
    assert do.OpenLane(world.lane_of(1).lane, "gpu 0", ANY, True) in world.log


@pytest.mark.parametrize("residents", [1, 2])
def test_a_trial_whose_lane_has_died_shares_none(residents: int) -> None:
    world = taught(1, residents=residents)
    for trial in (1, 2, 3):
        world.add(trial, 10 * MIB, 10 * MIB)
    world.settle()
    world.crash(world.lane_of(1).lane)
    world.settle()
    while world.waiting():
        for trial in world.running():
            assert trial in (2, 3) or len(world.lane_of(trial).residents) == 1
            world.go(trial)
    assert len(world.concluded) + len(world.running()) == 4


def most_at_once(world: World) -> int:
    """How many run at once at most until there are none."""
    widest = 0
    while running := world.running():
        widest = max(widest, len(running))
        for trial in running:
            world.go(trial)
    return widest


@pytest.mark.parametrize(("busy", "most"), [(1.0, 1), (0.5, 2), (0.35, 3), (0.15, 6), (0.01, 16)])
def test_more_lanes_than_cores_run_where_trials_leave_these_idle(busy: float, most: int) -> None:
    world = World(PackerOptions())
    world.device("cpu", 100 * GIB, CONTEXT, width=2, idle_width=16)
    for trial in range(60):
        world.add(trial, MIB, MIB, steps=10, busy=busy)
    assert most_at_once(world) == most
    assert len(world.concluded) == 60


@pytest.mark.parametrize(("busy", "most"), [(0.01, 16), (0.5, 2), (None, 2)])
def test_a_policy_that_packs_fills_an_idle_device_and_no_more_lanes_than_cores_of_one_that_is_not(
    busy: float | None, most: int
) -> None:
    world = World(PackerOptions(policy=make_policy("pack")))
    world.device("cpu", 100 * GIB, CONTEXT, width=2, idle_width=16)
    for trial in range(40):
        world.add(trial, MIB, MIB, steps=4, busy=busy)
    assert most_at_once(world) == most
    assert len(world.concluded) == 40


def test_lanes_of_trials_that_wait_are_not_filled_with_others_that_compute() -> None:
    world = World(PackerOptions())
    world.device("cpu", 100 * GIB, CONTEXT, width=2, idle_width=16)
    for trial in range(40):
        waits = trial < 20
        world.add(trial, MIB, MIB, steps=4, busy=0.01 if waits else 0.5, kind="waits" if waits else "computes")
    computing: set[int] = set()
    reasons: set[str] = set()
    while running := world.running():
        computing.add(sum(trial >= 20 for trial in running))
        if 39 in world.waiting():
            reasons.add(world.why(39))
        for trial in running:
            world.go(trial)
    assert len(world.concluded) == 40
    assert max(computing) == 2
    assert "those that run leave cpu no time for another" in reasons


@pytest.mark.parametrize(("opening", "is_wide"), [(0.1, True), (10.0, True), (60.0, False)])
def test_no_wider_where_all_is_over_before_another_lane_is_up(opening: float, is_wide: bool) -> None:
    policy = make_policy("makespan")
    policy.guesses = False
    world = make(None, context=0, policy=policy)
    world.opening = opening
    for trial in range(20):
        # Each alone takes 4 seconds, however little of the device it uses.
        world.add(trial, MIB, MIB, busy=0.1)
    world.send(ev.AllTrialsAdded(world.time))
    world.run()
    assert (len(world.lanes) > 2) == is_wide


# ---- order


def test_small_trial_passes_one_that_does_not_fit() -> None:
    world = packed_beside_a_big_one()
    assert world.waiting() == [10]
    world.add(11, 100 * MIB, 50 * MIB, kind="small")
    world.settle()
    assert world.running() == [1, 11]


def packed_beside_a_big_one(**options: object) -> World:
    """Trial 1, small and endless, runs; trial 10 needs nearly all of the device."""
    world = make(4, **{"policy": Fifo(), **options})
    for trial, (kind, persistent) in enumerate([("big", 700), ("small", 100)], start=-2):
        world.add(trial, persistent * MIB, 50 * MIB, steps=2, kind=kind)
        world.finish(trial)
    world.add(1, 100 * MIB, 50 * MIB, steps=200, kind="small")
    world.add(10, 700 * MIB, 50 * MIB, kind="big")
    world.settle()
    return world


def test_big_trial_is_not_starved_by_an_endless_stream_of_small_ones() -> None:
    world = packed_beside_a_big_one(patience=4)
    small, ends = [1], 0
    for trial in range(11, 60):
        world.add(trial, 100 * MIB, 50 * MIB, steps=2, kind="small")
        world.settle()
        small = [t for t in world.running() if t != 10]
        if 10 in world.running():
            break
        if len(small) > 1:
            world.finish(small[1])
            ends += 1
        elif not ends or small:
            world.finish(small[0]) if trial > 30 else None
    assert world.where[10] is not None


def test_nobody_is_starved_behind_a_trial_for_which_no_device_will_do_at_present() -> None:
    world = packed_beside_a_big_one(patience=2)
    world.change("gpu 0", 600 * MIB)
    world.add(20, 300 * MIB, 50 * MIB, kind="never seen")
    for trial in range(21, 60):
        world.add(trial, 100 * MIB, 50 * MIB, steps=2, kind="small")
        world.settle()
        if world.where[20] is not None:
            break
        world.finish(world.running()[0])
        world.settle()
    assert world.where[20] is not None
    assert world.waiting()[0] == 10


def test_why_waiting_gives_figures() -> None:
    world = packed_beside_a_big_one()
    assert world.why(10) == "needs 849 MiB, largest hole 0 B on gpu 0" or "largest hole" in (world.why(10) or "")
    assert world.why(1) is None
    assert world.why(999) is None


def test_trial_kept_out_by_a_reservation_says_so() -> None:
    world = packed_beside_a_big_one(patience=1)
    for trial in (11, 12, 13):
        world.add(trial, 100 * MIB, 50 * MIB, kind="small")
        world.settle()
    assert world.waiting() == [10, 12, 13] or world.waiting() == [10, 13]
    assert world.why(13) == "a device is kept free for a trial that has waited longer"


def test_reservation_is_given_up_when_its_device_no_longer_does() -> None:
    world = packed_beside_a_big_one(patience=1)
    world.device("gpu 1", GIB, CONTEXT)
    assert world.lane_of(10).device == "gpu 1"
    world.add(20, 700 * MIB, 50 * MIB, kind="big")
    for trial in (11, 12, 13):
        world.add(trial, 100 * MIB, 50 * MIB, kind="small")
        world.settle()
    reserved = [device.name for device in world.packer._ledger.devices.values() if device.reserved_for]
    assert len(reserved) == 1
    world.change(reserved[0], 500 * MIB)
    world.add(30, 10 * MIB, 10 * MIB, kind="small")
    assert reserved != [d.name for d in world.packer._ledger.devices.values() if d.reserved_for]


def test_withdrawing_a_trial_gives_up_its_reservation() -> None:
    world = packed_beside_a_big_one(patience=1)
    for trial in (11, 12, 13):
        world.add(trial, 100 * MIB, 50 * MIB, kind="small")
        world.settle()
    world.withdraw(10)
    world.settle()
    assert world.where[13] is not None


def test_room_is_asked_of_the_device_that_can_give_it() -> None:
    """A device whose lanes are all busy misses fewer bytes, but has none to give."""
    world = World(PackerOptions(width=2))
    world.device("gpu 0", GIB, CONTEXT)
    world.add(0, 400 * MIB, 50 * MIB, kind="a", steps=2)
    world.finish(0)
    world.add(1, 400 * MIB, 50 * MIB, kind="a", steps=99)
    world.settle()
    world.go(1, 2)
    world.device("gpu 1", GIB, CONTEXT)
    world.add(2, 100 * MIB, 50 * MIB, kind="b", steps=2)
    world.add(3, 100 * MIB, 50 * MIB, kind="b", steps=2)
    world.run_some(12)
    world.add(4, 600 * MIB, 100 * MIB, kind="c", steps=2)
    world.run_some(12)
    assert world.outcome(4) is Outcome.DONE


def test_higher_priority_goes_first() -> None:
    world = taught(1)
    world.add(1, steps=1)
    world.add(2)
    world.add(3, priority=1.0)
    world.finish(1)
    assert world.started[-1][0] == 3


def test_longest_goes_first() -> None:
    world = make(1)
    for trial, hours in enumerate((1.0, 2.0, 4.0, 8.0)):
        world.add(trial, 10 * MIB, seconds=hours, features={"hours": hours})
        world.finish(trial)
    world.add(10, features={"hours": 1.0})
    for trial, hours in ((11, 2.0), (12, 6.0), (13, 3.0)):
        world.add(trial, seconds=hours, features={"hours": hours})
    for trial in (10, 12, 13):
        world.finish(trial)
    assert [trial for trial, _ in world.started[-4:]] == [10, 12, 13, 11]


def test_fifo_goes_by_arrival() -> None:
    world = make(1, policy=Fifo())
    for trial, hours in enumerate((1.0, 2.0, 4.0, 8.0)):
        world.add(trial, 10 * MIB, seconds=hours, features={"hours": hours})
    for trial in range(4):
        world.finish(trial)
    assert [trial for trial, _ in world.started] == [0, 1, 2, 3]


# ---- out of memory


def test_out_of_memory_is_tried_again_with_more_and_is_no_failure() -> None:
    world = taught(max_failures=0)
    world.add(1, 250 * MIB, 50 * MIB, steps=1)
    world.add(2, 10 * MIB, 10 * MIB)
    world.settle()
    first = world.lane_of(1).quota
    world.go(1)
    assert world.retries[-1].trial == 1
    assert "out of memory" in world.retries[-1].reason
    assert world.lane_of(1).quota >= first + (first - CONTEXT) // 2
    world.finish(1)
    assert world.outcome(1) is Outcome.DONE


@pytest.mark.parametrize("refused", [0, 400 * MIB])
def test_a_lane_that_aborts_for_want_of_memory_costs_the_trial_at_work_no_life_and_lane_mates_none(
    refused: int,
) -> None:
    world = make(1, residents=2)
    for trial in (1, 2):
        world.add(trial, 50 * MIB, hint=1.0)
    world.settle()
    first = world.lane_of(1).quota
    assert world.lane_of(2) is world.lane_of(1)
    world.crash(world.lane_of(1).lane, 1, refused)
    world.settle()
    assert {retry.trial: retry.lane_died for retry in world.retries} == {1: False, 2: False}
    assert all("out of memory" in retry.reason for retry in world.retries if retry.trial == 1)
    assert [world.packer._trials[trial].lane_deaths for trial in (1, 2)] == [0, 0]
    assert world.packer._trials[1].floor >= max(refused, first)
    world.run()
    assert {world.outcome(trial) for trial in (1, 2)} == {Outcome.DONE}


def run_six(world: World, hint: float | None = None) -> None:
    """Trials that come to need 250 MiB more than they show at first."""
    for trial in range(1, 7):
        world.add(trial, 50 * MIB, 50 * MIB, steps=8, late=250 * MIB, hint=hint)
    world.run()
    assert {world.outcome(trial) for trial in range(1, 7)} == {Outcome.DONE}


def test_what_a_trial_comes_to_need_later_is_kept_for_it_once_another_has_shown_that() -> None:
    world = make()
    world.add(0, 50 * MIB, 50 * MIB, steps=8, late=250 * MIB)
    world.finish(0)
    run_six(world)
    assert not world.retries


def test_trials_stopped_before_they_come_to_need_more_do_not_tell_that_others_will_not() -> None:
    world = make()
    world.add(0, 50 * MIB, 50 * MIB, steps=8, late=250 * MIB)
    world.finish(0)
    for trial in range(10, 16):
        world.add(trial, 50 * MIB, 50 * MIB, steps=8, late=250 * MIB)
        world.go(trial, 2)
        world.withdraw(trial)
        world.go(trial)
    run_six(world)
    assert not world.retries


def test_what_an_earlier_run_has_seen_is_kept_though_first_iterations_show_little() -> None:
    world = make()
    run_six(world, hint=3.5)
    assert not world.retries


def test_second_out_of_memory_brings_a_device_for_itself() -> None:
    world = taught()
    world.add(1, 700 * MIB, 50 * MIB, steps=2)
    world.add(2, 10 * MIB, 10 * MIB, steps=99)
    world.settle()
    world.go(2, 2)
    world.jobs[1].persistent = 900 * MIB
    world.go(1)
    world.settle()
    while world.where[1] is not None:
        world.go(1)
    assert "must run alone" in (world.why(1) or "") or "needs" in (world.why(1) or "")
    world.withdraw(2)
    world.finish(2)
    world.settle()
    assert world.lane_of(1).quota == GIB
    world.finish(1)
    assert world.outcome(1) is Outcome.DONE


def test_one_that_cannot_say_what_it_was_refused_is_tried_beside_others_once_more() -> None:
    world = make(4, capacity=4 * GIB)
    world.add(0, 10 * MIB, 10 * MIB, steps=2)
    world.finish(0)
    world.add(1, 10 * MIB, 10 * MIB, steps=6, late=300 * MIB)
    world.jobs[1].knows = False
    world.add(2, 10 * MIB, 10 * MIB, steps=100)
    while 1 not in world.concluded:
        world.settle()
        assert world.running() == [1, 2]
        world.go(1)
    assert world.outcome(1) is Outcome.DONE
    assert len(world.retries) == 2


def test_one_that_waits_after_out_of_memory_believes_what_others_came_to_need_meanwhile() -> None:
    world = make(2)
    world.add(0, 10 * MIB, 10 * MIB, steps=2)
    world.finish(0)
    for trial in (1, 2, 3):
        late = 0 if trial == 2 else 300 * MIB
        world.add(trial, 10 * MIB, 10 * MIB, steps=6, late=late)
        world.jobs[trial].knows = False
        if trial == 2:
            world.hold(2)
    world.settle()
    world.release(2)
    world.go(3, 3)
    assert world.running() == [1, 2]
    while 1 not in world.concluded:
        world.go(1)
    world.finish(3)
    assert [retry.trial for retry in world.retries].count(3) == 1
    expected = world.concluded[3].measures.expected
    assert expected
    assert 320 * MIB < expected < 360 * MIB


def test_predictions_do_not_grow_by_their_own_margins_when_many_run_out_of_memory() -> None:
    world = make(9, capacity=16 * GIB)
    world.add(0, 100 * MIB, 50 * MIB, steps=2)
    world.finish(0)
    for trial in range(1, 9):
        world.add(trial, 400 * MIB, 50 * MIB)
    world.settle()
    for trial in range(1, 9):
        world.step(trial)
    world.settle()
    assert len(world.retries) == 8
    expected = world.packer._learning._predictor.model(world.packer._trials[8]).demand({})
    assert expected
    assert 450 * MIB < expected.peak < 1.1 * 1.25 * 450 * MIB


def test_memory_that_was_asked_for_when_an_iteration_had_begun_is_not_what_it_had() -> None:
    world = taught(2)
    world.add(1, 100 * MIB, 50 * MIB, steps=6, late=300 * MIB)
    world.add(2, 100 * MIB, 50 * MIB, steps=6)
    world.settle()
    world.go(2, 2)
    world.go(1, 3)
    lane = world.lane_of(2)
    had = lane.quota
    world.step(2)
    world.jobs[2].late, world.jobs[2].knows = 800 * MIB, False
    world.step(2)
    world.settle()
    assert world.retries[-1].trial == 2
    assert f"it had {format_bytes(had - CONTEXT)}" in world.retries[-1].reason


def test_given_up_at_once_if_it_asks_for_more_than_the_largest_device_has() -> None:
    world = World()
    world.device("small", 500 * MIB, CONTEXT)
    world.device("large", GIB, CONTEXT)
    world.add(0, 2 * GIB)
    world.go(0)
    assert world.error(0) == "TrialTooLarge"
    assert "it needs 2.0 GiB or more" in world.concluded[0].reason


def test_given_up_with_figures_only_after_the_largest_device_was_its_own() -> None:
    world = World()
    world.device("small", 500 * MIB, CONTEXT)
    world.add(0, 2 * GIB)
    world.jobs[0].knows = False
    world.device("large", GIB, CONTEXT)
    world.go(0)
    assert world.lane_of(0).device == "large"
    world.go(0)
    assert world.error(0) == "TrialTooLarge"
    reason = world.concluded[0].reason
    assert reason == (
        "out of memory: it had 974 MiB in a lane of 1.0 GiB; the largest device leaves 974 MiB to one trial"
    )


def test_devices_found_together_share_the_trials_that_wait() -> None:
    brain = Packer()
    for trial in range(2):
        brain.handle(ev.TrialAdded(0.0, trial, expected=Demand(60 * MIB, 0)))
    brain.handle(ev.DeviceFound(0.0, "gpu 0", GIB), ev.DeviceFound(0.0, "gpu 1", GIB))
    assert [brain.device_of(trial) for trial in range(2)] == ["gpu 0", "gpu 1"]


def test_trial_that_only_the_largest_device_holds_waits_for_it_once_one_a_little_smaller_was_too_small() -> None:
    world = World()
    world.device("large", GIB, CONTEXT)
    world.add(0, 10 * MIB, steps=6)
    world.settle()
    world.device("little smaller", GIB - 60 * MIB, CONTEXT)
    world.add(1, GIB - CONTEXT - 20 * MIB, kind="other")
    world.go(1)
    assert world.lane_of(0).device == "large"
    assert [retry.trial for retry in world.retries] == [1], "it ran once on the device that is a little smaller"
    assert world.where[1] is None
    assert world.packer.why_waiting(1).endswith("every device that is large enough is in use")
    world.finish(0)
    world.settle()
    assert world.lane_of(1).device == "large"
    world.finish(1)
    assert world.outcome(1) is Outcome.DONE


def test_trial_that_fits_the_large_device_is_not_tried_on_the_small_one_for_ever() -> None:
    world = World()
    world.device("large", 4 * GIB, CONTEXT)
    world.add(0, 100 * MIB, kind="long", steps=1000)
    world.device("small", GIB, CONTEXT)
    world.add(1, 3 * GIB, kind="big", steps=2)
    world.go(1)
    assert world.where[1] is None
    assert [lane for trial, lane in world.started if trial == 1] == [2]
    world.withdraw(0)
    world.finish(0)
    world.settle()
    world.finish(1)
    assert world.outcome(1) is Outcome.DONE


def test_a_trial_whose_memory_others_have_taken_waits_for_it_and_is_not_too_large() -> None:
    world = make(1)
    world.add(0, 300 * MIB, 0)
    world.settle()
    lane = world.lane_of(0)
    world.change("gpu 0", 200 * MIB)
    world._end(lane, lane.residents[0], Outcome.OUT_OF_MEMORY, 300 * MIB)
    world.settle()
    assert world.waiting() == [0]
    world.change("gpu 0", 600 * MIB)
    world.settle()
    assert world.running() == [0]


def test_out_of_memory_beside_others_in_a_full_lane_is_no_reason_to_give_up() -> None:
    world = make(1, residents=2)
    world.add(0, 300 * MIB, 150 * MIB, steps=99)
    world.settle()
    world.go(0, 2)
    world.add(1, 300 * MIB, 150 * MIB, late=300 * MIB, steps=5)
    world.settle()
    assert world.lane_of(1) is world.lane_of(0)
    world.go(1, 3)
    assert world.retries[-1].trial == 1
    assert world.outcome(1) is None
    world.run()
    assert world.outcome(1) is Outcome.DONE


def test_trial_whose_device_others_shrank_waits_instead_of_being_given_up() -> None:
    world = taught(1)
    world.add(1, 500 * MIB, 50 * MIB, steps=3)
    world.finish(1)
    world.change("gpu 0", 300 * MIB)
    world.settle()
    world.add(2, 500 * MIB, 50 * MIB, steps=3)
    world.settle()
    assert world.waiting() == [2]
    world.change("gpu 0", GIB)
    world.settle()
    world.finish(2)
    assert world.outcome(2) is Outcome.DONE


# ---- failures


def test_failure_is_final_by_default() -> None:
    world = make()
    world.add(0)
    world.fail(0)
    world.settle()
    assert (world.outcome(0), world.error(0)) == (Outcome.FAILED, "TrialFailed")
    assert "ValueError" in world.concluded[0].reason


def test_max_failures_counts_retries() -> None:
    world = make(max_failures=2)
    world.add(0)
    for _ in range(3):
        world.fail(0)
        world.settle()
    assert [r.reason for r in world.retries] == ["ValueError: no"] * 2
    assert world.outcome(0) is Outcome.FAILED


def test_final_failure_is_not_tried_again() -> None:
    world = make(max_failures=5)
    world.add(0)
    world.fail(0, final=True)
    world.settle()
    assert world.outcome(0) is Outcome.FAILED


def test_one_that_is_added_after_lanes_have_died_under_it_runs_alone_and_fails_with_the_next() -> None:
    world = make()
    world.add(0, 10 * MIB, steps=2)
    world.finish(0)
    world.jobs[1] = Job(1, 10 * MIB, 0)
    world.where[1] = None
    world.send(ev.TrialAdded(0.0, 1, lane_deaths=MOST_LANE_DEATHS - 1))
    world.settle()
    assert world.lane_of(1).quota == GIB
    world.crash(world.lane_of(1).lane)
    world.settle()
    assert world.concluded[1].error == "LaneDied"


def test_dead_lane_costs_its_trials_no_failure() -> None:
    world = make(max_failures=0)
    world.add(0)
    world.settle()
    world.crash(1)
    world.settle()
    assert world.retries[-1].reason == "killed by signal 11"
    assert world.lane_of(0).lane == 2


def together(count: int = 2, **options: object) -> World:
    """Trials 1, 2, ... measured and in one lane; one lane only."""
    world = taught(1, residents=3, **options)
    for trial in range(1, count + 1):
        world.add(trial, 100 * MIB, 50 * MIB, steps=99)
        world.settle()
    assert len({world.lane_of(t).lane for t in range(1, count + 1)}) == 1
    for trial in range(1, count + 1):
        world.go(trial, 2)
    return world


def test_siblings_in_a_dying_lane_are_counted_and_have_a_device_each_after_two_deaths() -> None:
    world = together()
    for _ in range(2):
        world.crash(world.lane_of(1).lane)
        world.settle()
    assert world.running() == [1]
    assert world.why(2) == "every lane is taken"
    world.withdraw(1)
    world.finish(1)
    world.settle()
    assert world.running() == [2]


def test_third_lane_death_names_the_trial() -> None:
    world = together()
    for _ in range(3):
        world.crash(world.lane_of(1).lane)
        world.settle()
    assert world.error(1) == "LaneDied"
    assert "three lane processes died under it; last: killed by signal 11" in world.concluded[1].reason
    assert world.running() == [2]
    assert world.outcome(2) is None


def test_overdue_is_charged_to_the_holder_only() -> None:
    world = together(iteration_timeout=60.0)
    lane = world.lane_of(1).lane
    assert world.send(ev.LaneQuiet(0.0, lane, 1, 59.0)) == []
    assert world.send(ev.LaneQuiet(0.0, lane, 1, 61.0)) == [do.CloseLane(lane, kill=True)]
    assert world.send(ev.LaneQuiet(0.0, lane, 2, 62.0)) == []
    world.settle()
    assert (world.outcome(1), world.error(1)) == (Outcome.FAILED, "TrialOverdue")
    assert world.lane_of(2)
    for _ in range(2):
        world.crash(world.lane_of(2).lane)
        world.settle()
    assert world.outcome(2) is None


def test_overdue_trial_is_tried_again_if_failures_are_allowed() -> None:
    world = make(iteration_timeout=60.0, max_failures=1)
    world.add(0)
    world.settle()
    world.send(ev.LaneQuiet(0.0, 1, 0, 61.0))
    world.settle()
    assert world.lane_of(0).lane == 2


def test_without_a_timeout_a_trial_is_overdue_after_twenty_of_its_longest_iterations() -> None:
    world = make()
    world.add(0, seconds=120.0, steps=99)
    world.settle()
    world.send(ev.LaneQuiet(0.0, 1, 0, 1e6))
    world.go(0, 3)
    world.send(ev.LaneQuiet(0.0, 1, 0, 2399.0))
    assert world.lane_of(0).alive
    world.send(ev.LaneQuiet(0.0, 1, 0, 2401.0))
    assert not world.lane_of(0).alive


def stalled(width: int | None = None, held: int = CONTEXT, **first: int) -> World:
    """Two trials, of which the first has not come to an iteration for longer than the second waits for it."""
    world = make(width)
    world.add(0, 100 * MIB, 50 * MIB, **first)
    world.settle()
    world.add(1, 100 * MIB, 50 * MIB)
    assert world.send(ev.LaneQuiet(0.0, 1, 0, 19.0, held)) == []
    world.send(ev.LaneQuiet(0.0, 1, 0, 21.0, held))
    world.settle()
    return world


@pytest.mark.parametrize("width", [None, 2])
def test_another_begins_beside_a_probe_that_comes_to_no_iteration_with_as_much_of_the_device(width: int | None) -> None:
    world = stalled(width)
    assert world.running() == [0, 1]
    assert [lane.quota for lane in world.lanes.values()] == [GIB // 2, GIB // 2]


def test_a_device_with_less_than_a_lane_for_each_is_not_shared_out() -> None:
    assert stalled(32, held=CONTEXT // 2).running() == [0]


def test_others_go_on_waiting_for_a_probe_that_holds_much_already() -> None:
    assert stalled(held=CONTEXT + GIB // 8).running() == [0]


def test_others_begin_beside_a_trial_with_a_hint_that_comes_to_no_iteration() -> None:
    world = make(None)
    for trial in range(2):
        world.add(trial, 100 * MIB, 50 * MIB, hint=1.0)
        world.settle()
    assert world.running() == [0]
    world.send(ev.LaneQuiet(0.0, 1, 0, 21.0))
    world.settle()
    assert world.running() == [0, 1]


@pytest.mark.parametrize("iterations", [0, 1])
def test_two_begin_at_once_where_the_first_has_failed_before_it_was_measured(iterations: int) -> None:
    world = make(None)
    for trial in range(5):
        world.add(trial, 10 * MIB, 5 * MIB)
    world.go(0, iterations)
    world.fail(0)
    world.settle()
    assert world.running() == [1, 2]
    assert sum(world.lane_of(trial).quota for trial in (1, 2)) <= GIB
    for trial in (1, 2):
        world.fail(trial)
        world.settle()
    assert world.running() == [3, 4]


def test_the_next_has_the_device_for_itself_where_one_has_failed_that_held_much_of_it() -> None:
    world = make(None)
    for trial in range(3):
        world.add(trial, 300 * MIB, 5 * MIB)
    world.go(0)
    world.fail(0)
    world.settle()
    assert world.running() == [1]


def test_one_that_needs_more_than_it_was_given_in_place_of_a_probe_is_probed_and_no_attempt_is_counted() -> None:
    world = stalled(late=600 * MIB)
    world.jobs[1].ephemeral = 600 * MIB
    world.go(1)
    assert world.running() == [0]
    world.send(ev.LaneQuiet(0.0, 1, 0, 30.0))
    world.settle()
    assert world.running() == [0]
    world.finish(0)
    # By what the other was measured to need; one that counts as out of memory for the second time is alone.
    assert world.running() == [1]
    assert world.lane_of(1).quota < GIB


def test_quiet_lane_without_a_holder_is_nobodys_fault() -> None:
    world = make(iteration_timeout=1.0)
    world.add(0)
    assert world.send(ev.LaneQuiet(0.0, 1, None, 100.0)) == []


# ---- withdrawals


def test_withdrawn_before_it_ran() -> None:
    world = make(1)
    world.add(0)
    world.add(1)
    assert world.withdraw(1) == [do.ConcludeTrial(1, Outcome.STOPPED, reason="withdrawn before it ran")]


def test_withdrawn_while_it_runs_is_stopped_at_its_next_boundary() -> None:
    world = make()
    world.add(0)
    assert world.withdraw(0) == [do.StopTrial(0)]
    assert world.withdraw(0) == []
    world.go(0)
    assert world.outcome(0) is Outcome.STOPPED


def test_withdrawn_trial_that_ends_first_is_done() -> None:
    world = make()
    world.add(0, steps=1)
    world.step(0)
    world.withdraw(0)
    world.settle()
    assert world.outcome(0) is Outcome.DONE


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.OUT_OF_MEMORY, Outcome.STOPPED])
def test_withdrawn_trial_is_never_tried_again(outcome: Outcome) -> None:
    world = make(max_failures=3)
    world.add(0)
    world.withdraw(0)
    world.send(ev.TrialEnded(0.0, 0, outcome))
    assert world.outcome(0) is Outcome.STOPPED


def test_withdrawn_in_a_dying_lane_is_stopped() -> None:
    world = together()
    world.crash(world.lane_of(1).lane)
    world.withdraw(1)
    world.settle()
    assert world.outcome(1) is Outcome.STOPPED
    assert world.lane_of(2)


def test_trial_that_does_not_stop_is_killed_after_a_grace() -> None:
    world = make()
    world.add(0)
    world.settle()
    world.withdraw(0)
    assert world.wait(5.0) == []
    assert world.wait(0.1) == [do.CloseLane(1, kill=True)]
    world.settle()
    assert world.outcome(0) is Outcome.STOPPED


def test_grace_is_longer_where_others_share_the_lane_and_they_are_not_charged() -> None:
    world = together()
    world.withdraw(1)
    assert world.wait(29.0) == []
    assert len(world.wait(2.0)) == 1
    world.settle()
    assert world.outcome(1) is Outcome.STOPPED
    assert world.retries[-1] == do.RetryTrial(2, "its lane was closed")


def test_a_trial_whose_lane_died_before_it_was_up_says_why() -> None:
    brain = Packer()
    brain.handle(ev.DeviceFound(0.0, "gpu 0", 1000 * MIB))
    assert do.StartTrial(0, 1) in brain.handle(ev.TrialAdded(0.0, 0))
    said = brain.handle(ev.LaneLost(1.0, 1, detail="no process could be started for it"))
    assert do.RetryTrial(0, "its lane is gone: no process could be started for it") in said


def test_lanes_that_die_after_they_have_come_up_leave_their_device_as_many() -> None:
    world = make(4)
    for trial in range(4):
        world.add(trial, 50 * MIB, 50 * MIB, steps=99, hint=1.0)
    world.settle()
    for trial in (0, 1):
        world.crash(world.lane_of(trial).lane, trial)
    world.settle()
    assert world.running() == [0, 1, 2, 3]


def test_grace_grows_with_the_longest_iteration() -> None:
    world = make()
    world.add(0, seconds=10.0, steps=9)
    world.go(0)
    world.withdraw(0)
    assert world.wait(30.0) == []
    assert len(world.wait(1.0)) == 1


def test_trial_that_may_take_its_time_to_stop_is_killed_a_grace_after_its_owner_has_lost_patience() -> None:
    world = make()
    world.add(0)
    world.settle()
    assert world.send(ev.TrialWithdrawn(world.time, 0, patient=True)) == [do.StopTrial(0)]
    assert world.wait(600.0) == []
    assert world.withdraw(0) == []
    assert world.wait(5.0) == []
    assert world.wait(0.1) == [do.CloseLane(1, kill=True)]
    world.settle()
    assert world.outcome(0) is Outcome.STOPPED


# ---- devices


def test_trials_of_a_lost_device_run_on_another() -> None:
    world = taught(1)
    world.device("gpu 1", GIB, CONTEXT)
    world.add(1, 10 * MIB)
    lost = world.lane_of(1).device
    world.lose(lost)
    assert world.retries[-1] == do.RetryTrial(1, f"{lost} is gone")
    assert world.lane_of(1).device != lost


def test_a_trial_that_takes_one_device_after_another_with_it_is_given_up() -> None:
    world = taught(1)
    for number in range(1, MOST_LOSSES + 2):
        world.device(f"gpu {number}", GIB, CONTEXT)
    world.add(1, 10 * MIB)
    for _ in range(MOST_LOSSES):
        assert 1 not in world.concluded
        world.lose(world.lane_of(1).device)
    assert world.outcome(1) is Outcome.FAILED
    assert world.concluded[1].error == "LaneDied"
    assert world.devices


def test_neighbours_of_a_trial_that_takes_all_lanes_with_it_again_and_again_are_not_given_up_with_it() -> None:
    world = make(4, context=0)
    for trial in range(4):
        world.add(trial, 10 * MIB, hint=1.0)
    for _ in range(MOST_LOSSES):
        # It goes on killing as soon as it runs.
        world.settle()
        assert 0 in world.running()
        for lane in list(world.lanes):
            del world.lanes[lane]
            world.send(ev.LaneLost(world.time, lane, None, "killed", with_others=True))
    world.run()
    assert world.outcome(0) is Outcome.FAILED
    assert {world.outcome(trial) for trial in (1, 2, 3)} == {Outcome.DONE}


def test_a_trial_is_not_charged_with_the_loss_of_all_lanes_as_with_that_of_its_own() -> None:
    brain = Packer(PackerOptions(width=1))
    brain.handle(ev.DeviceFound(0.0, "gpu 0", GIB))
    brain.handle(ev.TrialAdded(0.0, 1))
    for lane in range(1, MOST_LOSSES + 1):
        brain.handle(ev.LaneReady(0.0, lane, 0))
        assert brain._trials[1].alone == (lane > SUSPICIOUS)
        said = brain.handle(ev.LaneLost(0.0, lane, 1, "the process that forks lanes was killed", with_others=True))
        assert isinstance(said[0], do.RetryTrial if lane < MOST_LOSSES else do.ConcludeTrial)


def test_trials_wait_while_there_is_no_device() -> None:
    world = make(1)
    world.add(0)
    world.add(1)
    world.lose("gpu 0")
    assert [world.why(t) for t in (0, 1)] == ["there is no device now"] * 2
    world.withdraw(1)
    assert world.outcome(1) is Outcome.STOPPED
    world.device("gpu 1", GIB)
    assert world.running() == [0]


def test_a_trial_that_only_a_lost_device_could_hold_waits_for_it_while_others_run() -> None:
    world = taught(4)
    world.device("gpu 1", 4 * GIB)
    for trial, size in ((1, 3000), (2, 3000), (3, 100)):
        world.add(trial, size * MIB, 50 * MIB, kind=str(size), hint=1.0, steps=20)
    world.go(1, 2)
    world.go(3, 2)
    world.lose("gpu 1")
    assert world.running() == [3]
    assert "gone; it may come back" in str(world.why(1))
    world.device("gpu 1", 4 * GIB)
    assert world.running() == [1, 3]
    world.lose("gpu 1")
    world.finish(3)
    world.run()
    assert [world.error(trial) for trial in (1, 2)] == ["TrialTooLarge"] * 2, "nothing else was left to run"


def test_a_trial_that_others_leave_a_little_too_little_for_is_tried_on_the_whole_device() -> None:
    world = World()
    world.device("gpu 0", 1000 * MIB, CONTEXT)
    world.change("gpu 0", 970 * MIB)
    world.add(0, 800 * MIB, 50 * MIB, hint=1.05)
    assert world.packer._trials[0].expected.peak + CONTEXT > 970 * MIB  # type: ignore[union-attr]
    assert world.running() == [0]


def test_device_nobody_knows_cannot_be_lost() -> None:
    world = World()
    world.add(0)
    assert world.send(ev.DeviceLost(0.0, "gpu 7")) == []
    assert world.waiting() == [0]


def test_device_that_comes_back_is_used_again() -> None:
    world = make(1)
    world.device("gpu 1", GIB, CONTEXT)
    world.add(0)
    world.add(1)
    world.lose("gpu 1")
    assert world.waiting() == [1]
    world.device("gpu 1", GIB, CONTEXT)
    assert world.lane_of(1).device == "gpu 1"


def test_idle_lanes_shrink_when_others_take_memory() -> None:
    world = taught()
    world.change("gpu 0", 700 * MIB)
    world.settle()
    assert world.held("gpu 0") <= 700 * MIB


def test_what_can_be_returned_is_returned_though_it_is_not_enough() -> None:
    world = make(2)
    world.add(0, 300 * MIB, 100 * MIB, steps=99, kind="a")
    world.settle()
    world.go(0, 2)
    world.add(1, 300 * MIB, 100 * MIB, steps=2, kind="a")
    world.settle()
    world.finish(1)
    world.change("gpu 0", 100 * MIB)
    world.settle()
    assert list(world.lanes) == [1]
    assert world.lanes[1].quota == need(300 * MIB, 100 * MIB)


def test_probe_returns_what_others_took_as_soon_as_it_was_measured() -> None:
    world = make(1)
    world.add(0, 100 * MIB, 50 * MIB, steps=9)
    world.settle()
    world.change("gpu 0", 500 * MIB)
    assert world.lane_of(0).quota == GIB
    world.go(0, 2)
    assert world.lane_of(0).quota == need(100 * MIB, 50 * MIB)


def test_nothing_starts_beyond_what_others_left() -> None:
    world = taught()
    world.add(1, 100 * MIB, 50 * MIB, steps=99)
    world.settle()
    world.change("gpu 0", 250 * MIB)
    world.settle()
    world.add(2, 100 * MIB, 50 * MIB)
    world.settle()
    assert world.waiting() == [2]
    assert "largest hole" in (world.why(2) or "")
    world.change("gpu 0", GIB)
    assert world.lane_of(2)


# ---- residents


def test_residents_share_a_lane_by_the_sum_of_persistent_and_the_largest_ephemeral() -> None:
    world = together(3)
    lane = world.packer._ledger.lanes[world.lane_of(1).lane]
    persistent, ephemeral = padded(100 * MIB), padded(50 * MIB)
    assert list(lane.residents) == [1, 2, 3]
    assert lane.need([Demand(persistent, ephemeral)] * 3) == CONTEXT + 3 * persistent + ephemeral
    assert lane.quota >= CONTEXT + 3 * persistent + ephemeral
    world.add(4, 100 * MIB, 50 * MIB)
    assert world.why(4) == "every lane is taken"


def test_lanes_come_before_sharing_one() -> None:
    world = taught(2, residents=2)
    for trial in (1, 2, 3):
        world.add(trial, 100 * MIB, 50 * MIB, steps=9)
        world.settle()
    assert world.lane_of(1) is not world.lane_of(2)
    assert world.lane_of(3) in (world.lane_of(1), world.lane_of(2))


def test_lane_is_shared_where_a_new_one_has_no_room() -> None:
    world = taught(2, residents=2)
    world.add(1, 100 * MIB, 50 * MIB, steps=99)
    world.settle()
    world.change("gpu 0", 400 * MIB)
    world.settle()
    world.add(2, 100 * MIB, 50 * MIB)
    world.settle()
    assert world.lane_of(2) is world.lane_of(1)


def test_probe_shares_its_lane_with_nobody() -> None:
    world = make(1, residents=3)
    world.add(0, 100 * MIB, 50 * MIB)
    world.add(1, 100 * MIB, 50 * MIB)
    assert world.waiting() == [1]


# ---- late events


def test_late_events_of_lanes_and_trials_that_are_gone_are_ignored() -> None:
    world = make()
    world.add(0, 10 * MIB, steps=1)
    world.finish(0)
    world.crash(1)
    world.settle()
    for late in (
        ev.LaneReady(0.0, 1, CONTEXT),
        ev.LaneResized(0.0, 1, 1),
        ev.LaneHolds(0.0, 1, 0, 0, True),
        ev.LaneQuiet(0.0, 1, 0, 1e9),
        ev.LaneLost(0.0, 1),
        ev.IterationsDone(0.0, 0, 1, 1.0, 1, 1),
        ev.TrialEnded(0.0, 0, Outcome.FAILED),
        ev.TrialWithdrawn(0.0, 0),
        ev.DeviceChanged(0.0, "gpu 9", 1),
        ev.DeviceLost(0.0, "gpu 9"),
        ev.Tick(0.0),
    ):
        assert world.send(late) == []


def test_answer_to_a_shrink_that_was_taken_back_frees_nothing() -> None:
    world = taught()
    world.change("gpu 0", 900 * MIB)
    world.change("gpu 0", GIB)
    world.add(1, kind="other")
    world.deliver(1)
    assert world.packer.snapshot().devices[0].taken == GIB
    world.settle()
    assert world.packer.snapshot().devices[0].taken == GIB


def test_trial_is_added_once() -> None:
    world = make()
    world.add(0)
    assert world.send(ev.TrialAdded(0.0, 0)) == []
    assert world.packer.unfinished == 1


def test_set_up_time_of_a_trial_is_not_its_speed() -> None:
    packer = Packer(PackerOptions())
    packer.handle(ev.DeviceFound(0.0, "gpu", 100_000 * MIB, 500 * MIB, max_width=32))
    for number in range(200):
        packer.handle(ev.TrialAdded(0.0, number))
    started: dict[int, int] = {}
    now, widest = 0.0, 0
    out = packer.handle(ev.Tick(0.0))
    for _ in range(3000):
        now += 1.0
        running = [trial for lane in packer.snapshot().devices[0].lanes for trial in lane.residents]
        widest = max(widest, len(running))
        for trial in running:
            count = started[trial] = started.get(trial, 0) + 1
            # Lanes share the device without any gain; building the model takes 50 times a step.
            seconds = 0.1 * len(running) * (50 if count == 1 else 1)
            out += packer.handle(ev.IterationsDone(now, trial, 1, seconds, 1 << 20, 1 << 20))
            if count == 6:
                out += packer.handle(ev.TrialEnded(now, trial, ev.Outcome.DONE))
        for resize in [i for i in out if isinstance(i, do.ResizeLane)]:
            out += packer.handle(ev.LaneResized(now, resize.lane, resize.quota))
        out = []
    assert widest <= 2


@pytest.mark.parametrize(
    ("told", "busy"),
    [
        # An objective that asks on its way, and is one iteration: its last milliseconds do not count for all of it.
        ([(0, 1.0, 0.0), (1, 0.25, 1.0)], 0.2),
        # Set-up, and what is asked within iterations; then their end.
        ([(1, 5.0, 1.0), (0, 1.0, 0.0), (1, 1.0, 0.5), (0, 0.5, 0.5)], 0.3),
        ([(1, 5.0, 1.0), (0, 0.25, 0.0), (1, 1.0, None)], 0.0),
        ([(1, 1.0, 0.5), (1, 1.0, None)], 0.5),
        ([(1, 1.0, None)], None),
    ],
)
def test_the_share_of_the_device_is_that_of_all_iterations_but_for_set_up(
    told: list[tuple[int, float, float | None]], busy: float | None
) -> None:
    brain = Packer(PackerOptions())
    brain.handle(ev.DeviceFound(0.0, "gpu 0", GIB))
    brain.handle(ev.TrialAdded(0.0, 0))
    brain.handle(ev.LaneReady(0.0, 1, 0))
    for count, seconds, share in told:
        brain.handle(ev.IterationsDone(1.0, 0, count, seconds, MIB, MIB, share))
    (end,) = [it for it in brain.handle(ev.TrialEnded(9.0, 0, Outcome.DONE)) if isinstance(it, do.ConcludeTrial)]
    assert end.measures.demand is not None
    assert end.measures.demand.busy == pytest.approx(busy)


def test_what_was_expected_and_what_was_measured_are_told_at_the_end() -> None:
    world = make()
    world.add(0, 100 * MIB, 50 * MIB, steps=4, seconds=2.0, hint=1.5)
    world.settle()
    world.finish(0)
    end = world.concluded[0].measures
    assert (end.seconds, end.expected_seconds) == (8.0, 12.0)
    assert end.expected == padded(150 * MIB) + padded(75 * MIB)
    assert end.demand == Demand(100 * MIB, 50 * MIB)


def test_a_trial_is_expected_to_take_as_much_longer_as_those_beside_it_slow_it_down() -> None:
    world = make(width=2)
    for trial in (0, 1):
        world.add(trial, 100 * MIB, 50 * MIB, steps=6, busy=0.95, seconds=10.0, hint=1.0)
        world.settle()
        world.go(trial, 2)
    world.add(2, 100 * MIB, 50 * MIB, steps=6, busy=0.95, seconds=10.0, hint=1.0)
    world.finish(0)
    world.finish(2)
    alone = [world.concluded[trial].measures.expected_seconds for trial in (0, 2)]
    assert alone == pytest.approx([60.0, 60.0 / shared_speed(1.9)])


def test_what_a_trial_takes_beside_others_is_learnt_as_what_it_takes_alone() -> None:
    world = make(width=2)
    for trial in (0, 1):
        world.add(trial, 100 * MIB, 50 * MIB, steps=100, busy=0.95, seconds=10.0)
        world.settle()
        world.go(trial, 3)
    world.finish(1)
    world.finish(0)
    world.add(2, 100 * MIB, 50 * MIB, steps=100, busy=0.95, seconds=10.0)
    world.finish(2)
    # The longer of the two had a neighbour for nearly all of its time, the other for nearly none.
    fast, slow = 1000.0 * shared_speed(1.9), 1000.0
    assert world.concluded[2].measures.expected_seconds == pytest.approx((fast + slow) / 2, rel=0.02)


def test_the_time_of_a_trial_that_had_to_start_again_is_not_compared() -> None:
    world = make(max_failures=1)
    world.add(0, 100 * MIB, 50 * MIB, steps=4, hint=1.0)
    world.settle()
    world.fail(0)
    world.settle()
    world.finish(0)
    assert world.concluded[0].measures.expected_seconds is None


def test_where_lanes_come_up_one_after_the_other_few_do_at_once_and_the_first_that_is_free_takes_who_waits() -> None:
    world = World(PackerOptions(width=8, policy=Fifo()))
    world.device("gpu 0", 8 * GIB, CONTEXT, opens=2)
    world.add(0, 100 * MIB, 50 * MIB, steps=2)
    world.finish(0)
    for trial in range(1, 7):
        world.add(trial, 100 * MIB, 50 * MIB, steps=1)
    while world.lanes[1].mail:
        # It returns what the first trial did not need.
        world.deliver(1)
    assert [world.lane_of(trial).lane for trial in (1, 2, 3)] == [1, 2, 3]
    assert world.waiting() == [4, 5, 6]
    assert world.why(4) == "lanes come up a few at a time, and no other is free"
    world.step(1)
    while world.lanes[1].mail:
        world.deliver(1)
    assert world.lane_of(4).lane == 1
    world.deliver(2)
    assert world.lane_of(5).lane == 4
    assert world.waiting() == [6]
    world.crash(4)
    world.deliver(4)
    world.deliver(4)
    world.run()
    assert {world.outcome(trial) for trial in range(7)} == {Outcome.DONE}


def test_lanes_that_die_before_they_are_up_cost_their_trials_nothing_and_the_device_some_width() -> None:
    world = taught(4)
    world.add(1, 100 * MIB, 50 * MIB, steps=40)
    world.settle()
    for trial in (2, 3, 4, 5):
        world.add(trial, 100 * MIB, 50 * MIB, steps=2)
    ledger = world.packer._ledger
    died = 0
    for _ in range(20):
        for lane in list(ledger.lanes.values()):
            if not lane.ready:
                world.lanes[lane.id].mail.clear()
                world.crash(lane.id)
                world.deliver(lane.id)
                died += 1
            elif world.lanes[lane.id].mail:
                world.deliver(lane.id)
    assert 2 <= died <= 4
    assert world.packer._ledger.devices["gpu 0"].width.width == 1
    assert world.running() == [1]
    world.run(rounds=400)
    assert {world.outcome(trial) for trial in range(1, 6)} == {Outcome.DONE}


def test_lanes_that_a_device_may_have_from_now_on_are_opened_at_once() -> None:
    world = World(PackerOptions(policy=make_policy("pack")))
    world.device("gpu 0", GIB, CONTEXT, width=1)
    for trial in range(3):
        world.add(trial, 10 * MIB, hint=1.0)
    assert world.running() == [0]
    world.send(ev.DeviceChanged(0.0, "gpu 0", GIB, max_width=3))
    assert world.running() == [0, 1, 2]


def test_room_that_a_trial_is_no_longer_expected_to_grow_into_is_free() -> None:
    world = World(PackerOptions(width=2, policy=Fifo(), patience=50))
    world.device("gpu 0", 1000 * MIB, CONTEXT)
    world.add(0, 100 * MIB, late=200 * MIB, kind="a")
    world.finish(0)
    world.add(1, 300 * MIB, steps=1000, kind="a")
    world.go(1, 3)
    for trial in range(2, 6):
        world.add(trial, 100 * MIB, kind="a", hint=1.0)
    world.settle()
    world.add(9, 530 * MIB, kind="b", hint=1.0)
    for trial in range(2, 6):
        world.finish(trial)
    assert world.running() == [1], "as far as it is known, trial 1 will grow by 200 MiB"
    world.go(1)
    world.settle()
    assert world.running() == [1, 9]


def test_one_of_which_nothing_is_known_tries_a_device_that_shared_objects_fill() -> None:
    world = World(PackerOptions(width=1), checked=False)
    world.device("cpu:0", 100 * MIB, 10 * MIB)
    world.add(0, 10 * MIB)
    world.settle()
    world.send(ev.LaneHolds(world.time, world.lane_of(0).lane, 100 * MIB, 0, tainted=False))
    world.fail(0)
    world.settle()
    world.add(1, 10 * MIB)
    assert world.lane_of(1).device == "cpu:0"


def test_devices_are_looked_at_in_the_order_in_which_they_changed() -> None:
    """By their place in memory, as a set has them, the same events would lead to other instructions each time."""
    world = make()
    for number in range(1, 30):
        world.device(f"gpu {number}", GIB, CONTEXT)
    ledger = world.packer._ledger
    changed = sorted(ledger.devices.values(), key=lambda device: device.name, reverse=True)
    ledger.stirred.clear()
    for device in changed:
        ledger.touch(device)
    assert list(ledger.stirred) == changed
