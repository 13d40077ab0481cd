"""What starts on the device that is kept free, and which device that is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from world import MIB, Job, World

from cotune.demand import Demand
from cotune.packer import PackerOptions
from cotune.packer import events as ev
from cotune.packer.policies import Fifo, Waiting, make_policy
from cotune.simulation import Job as SimulatedJob
from cotune.simulation import Setting, Workload, simulate

CONTEXT = 20 * MIB


def hinted(
    world: World, size: int, seconds: float | None = None, priority: float = 0.0, really: int | None = None
) -> int:
    """Adds a trial of so many MiB that takes so long, as its owner knows; perhaps it takes less of them."""
    trial = len(world.jobs)
    world.jobs[trial] = Job(trial, (really or size) * MIB, 0, steps=20)
    world.where[trial] = None
    expected = Demand(size * MIB, 0)
    world.send(ev.TrialAdded(world.time, trial, "", priority=priority, expected=expected, seconds=seconds))
    world.settle()
    return trial


def kept_free(seconds: float | None = 100.0, priority: float = 0.0) -> World:
    """Trial 0 of 600 MiB runs on a device of 1000; for trial 1, of 800, it is kept free. 2 and 3 overtook it."""
    world = World(PackerOptions(width=8, patience=2, policy=make_policy("fifo")))
    world.device("gpu 0", 1000 * MIB, CONTEXT)
    for size, share, wanted in ((600, 1.0, 0.0), (800, 1.0, priority), (50, 0.4, 0.0), (50, 0.4, 0.0)):
        hinted(world, size, seconds and seconds * share, wanted)
    return world


def test_what_will_be_over_when_there_is_room_goes_first_and_what_will_not_waits() -> None:
    world = kept_free()
    short, long = hinted(world, 145, 50.0), hinted(world, 140, 500.0)
    world.go(0)
    assert world.running() == [0, 2, 3, short]
    world.finish(short)
    assert world.waiting() == [1, long]


def test_what_leaves_room_goes_first_however_long_it_takes() -> None:
    world = kept_free()
    small = hinted(world, 90, 5000.0)
    world.go(0)
    assert small in world.running()
    for trial in (2, 3, 0):
        world.finish(trial)
    assert world.running() == [1, small]


def test_by_when_there_must_be_room_is_not_put_off_by_those_that_go_on_longer_than_expected() -> None:
    world = kept_free()
    short = hinted(world, 145, 50.0)
    world.go(0)
    world.wait(150.0)
    world.finish(short)
    late = hinted(world, 145, 50.0)
    world.go(0)
    assert world.waiting() == [1, late]


def test_one_that_whoever_runs_there_does_not_tolerate_does_not_start_there() -> None:
    world = World(PackerOptions(width=2, patience=0))
    world.device("gpu 0", 1000 * MIB, CONTEXT)
    world.add(0, 600 * MIB, 0, steps=50, busy=1.0, knows_busy=True, hint=1.0, priority=1.0)
    world.settle()
    world.go(0, 3)
    for trial, size in ((1, 800), (2, 50)):
        world.add(trial, size * MIB, 0, busy=1.0, knows_busy=True, hint=1.0)
    world.go(0)
    assert world.running() == [0]


def test_nothing_starts_there_as_long_as_nobody_knows_when_there_will_be_room() -> None:
    world = kept_free(None)
    hinted(world, 90, 1.0)
    world.go(0)
    assert world.running() == [0, 2, 3]


def test_who_has_priority_is_left_no_neighbour_there() -> None:
    world = kept_free(priority=1.0)
    short, small = hinted(world, 90, 50.0), hinted(world, 90, 5000.0)
    world.go(0)
    assert short in world.running()
    assert small not in world.running()


def test_room_that_others_do_not_need_is_asked_back_for_what_goes_first() -> None:
    world = World(PackerOptions(width=8, patience=1, policy=make_policy("fifo")))
    world.device("gpu 0", 1000 * MIB, CONTEXT)
    hinted(world, 850, 100.0, really=600)
    hinted(world, 900, 100.0)
    hinted(world, 20, 100.0)
    hinted(world, 20, 100.0)
    short = hinted(world, 200, 50.0)
    world.go(0, 3)
    assert short in world.running()


@pytest.mark.parametrize("soon", ["gpu 0", "gpu 1"])
def test_of_several_devices_that_is_kept_free_which_will_soonest_have_room(soon: str) -> None:
    world = World(PackerOptions(width=8, patience=2, policy=make_policy("fifo")))
    for name in ("gpu 0", "gpu 1"):
        world.device(name, 1000 * MIB, CONTEXT)
    for name, size in (("gpu 0", 600), ("gpu 1", 700)):
        # The fewest lanes run there.
        assert world.lane_of(hinted(world, size, 10.0 if name == soon else 1000.0)).device == name
    large = hinted(world, 800, 100.0)
    hinted(world, 50, 5.0)
    hinted(world, 50, 5.0)
    kept = [device.name for device in world.packer._ledger.devices.values() if device.reserved_for]
    assert world.waiting() == [large]
    assert kept == [soon]


def test_whom_it_is_kept_for_does_not_wait_for_a_stream_of_others_that_say_nothing_before_their_end() -> None:
    # One ends every few seconds, and all are of one length: each next one would be over by the time of another's end.
    sizes = [(200, 0.0), (200, 15.0), (800, 30.0), *[(200, 30.0)] * 60]
    jobs = [SimulatedJob(1, 50.0, size * MIB, 0, 0.0, arrival=arrival) for size, arrival in sizes]
    workload = Workload("stream", jobs, capacity=1000 * MIB, context=CONTEXT)
    outcome = simulate(replace(workload, lanes=8), Setting(policy="fifo"))
    (began,) = (segment.start for segment in outcome.segments if segment.trial == 2)
    assert sum(1 for segment in outcome.segments if segment.start < began) < 30


class Apart(Fifo):
    """The second trial wants a device without others."""

    def exclusive(self, waiting: Waiting) -> bool:
        return waiting.trial == 1


def test_one_that_wants_a_device_without_others_is_left_none() -> None:
    world = World(PackerOptions(width=8, patience=2, policy=Apart()))
    world.device("gpu 0", 1000 * MIB, CONTEXT)
    for size, seconds in ((100, 100.0), (100, 100.0), (50, 40.0), (50, 40.0)):
        hinted(world, size, seconds)
    short, long = hinted(world, 50, 30.0), hinted(world, 50, 5000.0)
    world.go(0)
    assert short in world.running()
    assert long not in world.running()
    for trial in (0, 2, 3, short):
        world.finish(trial)
    assert world.running() == [1]


def test_one_that_wants_a_device_without_others_takes_no_turns_there_either() -> None:
    world = World(PackerOptions(width=2, residents=2, patience=1, policy=Apart()))
    world.device("gpu 0", 1000 * MIB, CONTEXT)
    for _ in range(4):
        hinted(world, 50, 100.0)
    world.go(0)
    assert world.packer._reservation.trial is world.packer._trials[1]
    assert world.running() == [0, 2]
    for trial in (0, 2, 3):
        world.finish(trial)
    assert world.running() == [1]


def test_what_one_that_wants_a_device_without_others_waits_for_is_no_device_too_small_for_it() -> None:
    world = World(PackerOptions(width=8, policy=Apart()))
    world.device("gpu 0", 1000 * MIB, CONTEXT)
    hinted(world, 100, 100.0)
    world.device("gpu 1", 200 * MIB, CONTEXT)
    apart = hinted(world, 400, 100.0)
    assert world.running() == [0]
    assert "wants a device without other lanes" in (world.why(apart) or "")


def test_memory_that_those_who_run_do_not_need_counts_as_room_to_come() -> None:
    world = World(PackerOptions(width=8, patience=2, policy=make_policy("fifo")))
    world.device("gpu 0", 1000 * MIB, CONTEXT)
    generous, other = hinted(world, 400, 1000.0, really=200), hinted(world, 280, 10.0)
    large = hinted(world, 600, 100.0)
    few = [hinted(world, 20, 5.0), hinted(world, 20, 5.0)]
    world.go(generous, 3)
    for trial in few:
        world.finish(trial)
    assert world.packer._reservation.trial is world.packer._trials[large]
    long = hinted(world, 90, 900.0)
    world.go(generous)
    assert long not in world.running()
    world.finish(other)
    world.go(generous)
    assert large in world.running()
