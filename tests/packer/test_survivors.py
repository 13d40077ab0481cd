"""Where most trials are stopped early, those that are not get no neighbours that make them end last."""

from __future__ import annotations

import pytest
from world import MIB, World

from cotune.packer import PackerOptions
from cotune.packer import events as ev
from cotune.packer.policies import Fifo, Makespan, Policy
from cotune.packer.state import Trial
from cotune.packer.survivors import Survivors

GIB = 1024 * MIB
STEPS = 100
LONG = 1000


def make(devices: int = 2, policy: Policy | None = None) -> World:
    world = World(PackerOptions(width=2, policy=policy or Makespan()))
    for number in range(devices):
        world.device(f"gpu {number}", 8 * GIB)
    return world


def add(world: World, steps: int = STEPS) -> int:
    """A trial of a second a step, whose length its owner knows."""
    number = len(world.jobs)
    world.add(number, 100 * MIB, 50 * MIB, steps=steps, busy=0.9, hint=1.0)
    world.settle()
    return number


def stop(world: World, trial: int) -> None:
    world.withdraw(trial)
    world.go(trial)


def sweep(devices: int = 2, policy: Policy | None = None, stopped_after: int = 5) -> tuple[World, list[int]]:
    """A long trial on every device, among many that end early, as those with a stopping rule do."""
    world = make(devices, policy)
    long = [add(world, LONG) for _ in range(devices)]
    for _ in range(8 * devices):
        trial = add(world)
        world.go(trial, stopped_after)
        stop(world, trial)
    for trial in long:
        world.go(trial, 10)
    return world, long


def runs(world: World, trial: int) -> bool:
    return world.where[trial] is not None


def test_a_short_trial_waits_where_the_last_long_ones_would_be_slowed() -> None:
    world, long = sweep()
    short = add(world, 20)
    assert not runs(world, short)
    assert "outlived most" in (world.why(short) or "")
    stop(world, long[0])
    assert runs(world, short)


def test_long_trials_have_neighbours_as_long_as_there_is_more_to_do_than_they_have_left() -> None:
    world, _ = sweep()
    crowd = [add(world, LONG) for _ in range(200)]
    assert sum(runs(world, trial) for trial in crowd) == 2


@pytest.mark.parametrize(
    ("devices", "policy", "stopped_after"),
    [
        pytest.param(1, None, 5, id="one device"),
        pytest.param(2, Fifo(), 5, id="another policy"),
        pytest.param(2, None, 80, id="nobody is stopped early"),
    ],
)
def test_otherwise_no_room_is_left_idle(devices: int, policy: Policy | None, stopped_after: int) -> None:
    world, _ = sweep(devices, policy, stopped_after)
    assert runs(world, add(world, 20))


def test_what_is_left_is_what_those_had_left_that_came_as_far() -> None:
    world, (first, second) = sweep(stopped_after=10)
    survivors = world.packer._company._rules[1]
    assert isinstance(survivors, Survivors)
    trial = world.packer._trials[first]
    # At 1% of its way: 16 went on to 10%, and one is taken to go all the way.
    assert survivors.seconds_left(trial) == pytest.approx(LONG * ((16 * 0.1 + 1.0) / 17 - 0.01))
    world.go(first, 190)
    # Nobody has come as far as 20%.
    assert survivors.seconds_left(trial) == pytest.approx(LONG * 0.8)
    assert survivors.seconds_left(world.packer._trials[second]) < LONG * 0.2


def test_once_a_few_are_refused_the_rest_of_the_line_waits_for_the_next_event(monkeypatch: pytest.MonkeyPatch) -> None:
    world, long = sweep()
    for size in range(50):
        world.add(len(world.jobs), (100 + 10 * size) * MIB, MIB, steps=2, busy=0.9, hint=1.0)
    world.settle()
    asked: list[Trial] = []
    tolerates = Survivors.tolerates
    monkeypatch.setattr(Survivors, "tolerates", lambda self, *args: asked.append(args[0]) or tolerates(self, *args))
    world.packer.handle(ev.IterationsDone(world.time, long[0], 1, 1.0, 100 * MIB, 50 * MIB, 0.9))
    assert 0 < len({trial.id for trial in asked}) <= 4
