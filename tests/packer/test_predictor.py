"""What is expected of trials, as the order shows in which they start."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from world import MIB, World

from cotune.packer import PackerOptions
from cotune.packer.fitting import Fitting
from cotune.packer.policies import Makespan
from cotune.packer.predictor import Predictor
from cotune.packer.trial import Progress, Trial


def add(world: World, size: float, steps: int = 20) -> int:
    """A trial whose iterations take `size` seconds."""
    number = len(world.jobs)
    world.add(number, 100 * MIB, 50 * MIB, steps=steps, seconds=size, features={"size": size})
    world.settle()
    return number


def test_trials_that_were_stopped_teach_which_ones_are_long() -> None:
    world = World(PackerOptions(width=1, policy=Makespan()))
    world.device("gpu 0", 8192 * MIB)
    for size in range(1, 7):
        trial = add(world, float(size))
        world.go(trial, 5)
        world.withdraw(trial)
        world.go(trial)
    # How many steps there are only one has shown.
    world.finish(add(world, 3.0))
    running = add(world, 1.0)
    waiting = [add(world, size) for size in (1.0, 9.0, 2.0)]
    world.finish(running)
    assert [world.where[trial] is not None for trial in waiting] == [False, True, False]


def test_how_long_a_trial_goes_on_follows_from_its_own_pace_and_the_steps_that_others_made() -> None:
    predictor = Predictor(cast(Fitting, None))
    trial = Trial(0, 0, "", {}, 0.0, seconds_hint=1000.0)
    # Fifty seconds were its set-up.
    trial.progress = Progress(6, alone_seconds=110.0, first_iterations=1, first_seconds=60.0)
    assert predictor.seconds_left(trial) == 890.0
    for other in range(1, 4):
        predictor.model(trial).observe_steps(other, {}, 20)
    assert predictor.seconds_left(trial) == pytest.approx(140.0)
    trial.max_steps = 10
    assert predictor.seconds_left(trial) == 40.0


def test_a_trial_that_is_expected_to_be_longer_than_all_that_have_ended_is_not_taken_for_one_of_them() -> None:
    predictor = Predictor(cast(Fitting, None))
    usual, long = (Trial(number, number, "", {}, 0.0, seconds_hint=hint) for number, hint in enumerate((90.0, 1000.0)))
    for trial in (usual, long):
        trial.progress = Progress(11, alone_seconds=50.0, first_iterations=1, first_seconds=0.0)
    for other in range(2, 5):
        predictor.model(long).observe_steps(other, {}, 21)
    assert predictor.whole(long) == pytest.approx(100.0), "nobody knows yet what expectations are worth"
    predictor.model(long).observe_expected(110.0, 95.0)
    assert predictor.whole(usual) == pytest.approx(100.0)
    assert predictor.whole(long) == 1000.0
    predictor.model(long).observe_expected(2000.0, 100.0)
    assert predictor.whole(long) == pytest.approx(100.0)


@pytest.mark.parametrize("is_all", [True, False])
def test_what_a_sibling_ended_with_replaces_the_guess_after_out_of_memory(is_all: bool) -> None:
    predictor = Predictor(cast(Fitting, SimpleNamespace(largest_room=4096 * MIB)))
    trial = Trial(0, 0, "", {}, 0.0)
    trial.early, trial.lacked, trial.floor = 20 * MIB, 252 * MIB, 315 * MIB
    predictor.model(trial).growth.observe(1, 20 * MIB, 250 * MIB, is_all=is_all)
    predictor.appraise(trial)
    assert trial.floor == (252 * MIB if is_all else 315 * MIB)
