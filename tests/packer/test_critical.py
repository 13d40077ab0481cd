"""Trials that a sweep would end with get no neighbours that make them end later."""

from __future__ import annotations

import pytest
from world import MIB, World

from cotune.packer import PackerOptions
from cotune.packer import events as ev
from cotune.packer.policies import Fifo, Makespan, Policy

GIB = 1024 * MIB
STEPS = 100
LONG = 1000


def make(devices: int = 2, policy: Policy | None = None, is_open: bool = False) -> World:
    world = World(PackerOptions(width=2, policy=policy or Makespan()))
    for number in range(devices):
        world.device(f"gpu {number}", 8 * GIB)
    if not is_open:
        # It does not matter that tests add some more.
        world.send(ev.AllTrialsAdded(world.time))
    return world


def add(world: World, steps: int = STEPS, busy: float | None = 0.9) -> int:
    """A trial of a second a step, whose length its owner knows."""
    number = len(world.jobs)
    world.add(number, 100 * MIB, 50 * MIB, steps=steps, busy=busy, hint=1.0)
    world.settle()
    return number


def stop(world: World, trial: int) -> None:
    world.withdraw(trial)
    world.go(trial)


def sweep(
    devices: int = 2, policy: Policy | None = None, stopped_after: int = 5, is_open: bool = False
) -> tuple[World, list[int]]:
    """A long trial on every device, among many that end early, as those with a stopping rule do."""
    world = make(devices, policy, is_open)
    long = [add(world, LONG) for _ in range(devices)]
    for _ in range(8 * devices):
        trial = add(world)
        world.go(trial, stopped_after)
        stop(world, trial)
    for trial in long * 10:
        world.go(trial)
    return world, long


def runs(world: World, trial: int) -> bool:
    return world.where[trial] is not None


def test_as_long_as_trials_are_to_come_nobody_is_taken_for_the_last() -> None:
    world, _ = sweep(is_open=True)
    assert runs(world, add(world, 20))


def test_a_short_trial_waits_where_the_last_long_ones_would_be_slowed() -> None:
    world, long = sweep()
    short = add(world, 20)
    assert not runs(world, short)
    assert "would end last" in (world.why(short) or "")
    stop(world, long[0])
    assert runs(world, short)


def test_nobody_need_be_stopped_for_that() -> None:
    world = make()
    long = add(world, LONG)
    world.go(long, 3)
    short = [add(world, 20) for _ in range(3)]
    # One has the other device, and a neighbour there.
    assert [runs(world, trial) for trial in short] == [True, True, False]


def test_a_trial_whose_steps_are_declared_is_known_to_be_long_before_any_has_ended() -> None:
    world = make()
    world.add(0, 100 * MIB, 50 * MIB, steps=LONG, busy=0.9, max_steps=LONG)
    world.settle()
    world.go(0, 3)
    short = [add(world, 20) for _ in range(3)]
    assert [runs(world, trial) for trial in short] == [True, True, False]


def test_a_trial_that_would_end_last_itself_does_not_wait_for_a_device_of_its_own() -> None:
    world = make()
    for _ in range(2):
        world.go(add(world, 20), 2)
    assert runs(world, add(world, LONG))


def test_long_trials_have_neighbours_as_long_as_there_is_more_to_do_than_they_have_left() -> None:
    world, long = sweep()
    crowd = [add(world, LONG) for _ in range(200)]
    for trial in long:
        world.go(trial)
    assert sum(runs(world, trial) for trial in crowd) == 2


@pytest.mark.parametrize(
    ("devices", "policy", "busy"),
    [
        pytest.param(1, None, 0.9, id="one device"),
        pytest.param(2, Fifo(), 0.9, id="another policy"),
        pytest.param(2, None, None, id="nobody knows what they use"),
    ],
)
def test_otherwise_no_room_is_left_idle(devices: int, policy: Policy | None, busy: float | None) -> None:
    world = make(devices, policy)
    for _ in range(devices):
        world.go(add(world, LONG, busy), 3)
    assert runs(world, add(world, 20, busy))


def test_what_is_left_is_what_those_had_left_that_came_as_far() -> None:
    world, (first, second) = sweep(stopped_after=10)
    critical = world.packer._company.critical
    trial = world.packer._trials[first]
    # At 1% of its way: 16 went on to 10%, and one is taken to go all the way.
    assert critical.seconds_left(trial) == pytest.approx(LONG * ((16 * 0.1 + 1.0) / 17 - 0.01))
    world.go(first, 190)
    # Nobody has come as far as 20%.
    assert critical.seconds_left(trial) == pytest.approx(LONG * 0.8)
    assert critical.seconds_left(world.packer._trials[second]) < LONG * 0.2
