"""Placement by index, hints, and the turns of a lane."""

from __future__ import annotations

import random

import pytest
from world import MIB, Job, World

from cotune.demand import Demand
from cotune.packer import Packer, PackerOptions
from cotune.packer import events as ev
from cotune.packer import instructions as do
from cotune.packer.line import Line
from cotune.packer.policies import POLICIES, Fluid, Horus, Policy, Srtf, Waiting, make_policy

GIB = 1024 * MIB
CONTEXT = 20 * MIB


def hinted(world: World, trial: int, persistent: int, ephemeral: int = 0, seconds: float = 1.0, kind: str = "") -> None:
    """Adds a trial whose owner knows what it needs."""
    world.jobs[trial] = world.jobs.get(trial) or Job(trial, persistent * MIB, ephemeral * MIB)
    world.where[trial] = None
    expected = Demand(persistent * MIB, ephemeral * MIB)
    world.send(ev.TrialAdded(world.time, trial, kind, expected=expected, seconds=seconds))


def test_a_trial_with_a_hint_needs_no_probe() -> None:
    world = World(PackerOptions(width=4))
    world.device("gpu 0", GIB, CONTEXT)
    for trial in range(3):
        hinted(world, trial, 100)
    assert len(world.running()) == 3


def test_hints_are_believed_until_several_were_too_low() -> None:
    world = World(PackerOptions(width=1))
    world.device("gpu 0", 4 * GIB, CONTEXT)
    for trial in range(6):
        world.jobs[trial] = Job(trial, 1000 * MIB, 0)
        hinted(world, trial, 100)
    world.run()
    assert 1 <= len(world.retries) <= 3


def test_hints_that_cost_several_trials_their_memory_cost_no_other_before_one_of_them_was_measured() -> None:
    world = World(PackerOptions(width=2, policy=make_policy("fifo")))
    world.device("gpu 0", 4 * GIB, CONTEXT)
    world.jobs[0] = Job(0, 2000 * MIB, 0, steps=100)
    hinted(world, 0, 2000)
    for trial in range(1, 12):
        world.jobs[trial] = Job(trial, 2500 * MIB, 0)
        hinted(world, trial, 100)
    world.run()
    assert 1 <= len(world.retries) <= 4


def test_hints_found_too_low_where_there_was_room_enough_are_not_believed_either() -> None:
    world = World(PackerOptions(width=1))
    world.device("gpu 0", 8 * GIB, CONTEXT)
    for trial, hint in enumerate([1000, 100, 100, 100, 1000]):
        world.jobs[trial] = Job(trial, 1000 * MIB, 0, steps=10)
        hinted(world, trial, hint, kind="" if trial else "measured once")
        if trial < 4:
            world.finish(trial)
    assert not world.retries, "they ran where the first had been"
    world.device("gpu 1", 500 * MIB, CONTEXT)
    for name in ("gpu 2", "gpu 3"):
        world.device(name, 2000 * MIB, CONTEXT)
    for trial, (needs, hint) in enumerate([(1000, 100), (3000, 3000)], start=5):
        world.jobs[trial] = Job(trial, needs * MIB, 0)
        hinted(world, trial, hint, kind="measured once")
    assert world.lane_of(5).device == "gpu 2", "as much as its sibling needed"
    assert world.waiting() == [6], "what its owner says is more than that"


def test_the_fullest_device_that_fits_is_taken_among_those_with_as_many_lanes() -> None:
    world = World(PackerOptions(width=4))
    for name, capacity in (("large", 8), ("small", 2), ("medium", 4)):
        world.device(name, capacity * GIB, CONTEXT)
    hinted(world, 0, 1000)
    hinted(world, 1, 3000)
    hinted(world, 2, 7000)
    assert [world.lane_of(trial).device for trial in (0, 1, 2)] == ["small", "medium", "large"]


def test_a_policy_is_told_how_many_devices_there_are_also_when_they_go() -> None:
    policy = make_policy("fluid")
    world = World(PackerOptions(policy=policy))
    counts = []
    for name in ("gpu 0", "gpu 1"):
        world.device(name, GIB, CONTEXT)
        counts.append(policy.devices)
    for name in ("gpu 0", "gpu 1"):
        world.lose(name)
        counts.append(policy.devices)
    assert counts == [1, 2, 1, 1]


def test_what_a_lane_holds_is_known_by_the_first_that_is_up_while_others_still_come_up() -> None:
    world = World(PackerOptions(width=3))
    world.device("gpu 0", GIB, 300 * MIB, real_context=CONTEXT)
    hinted(world, 0, 100)
    hinted(world, 1, 100)
    hinted(world, 2, 100)
    assert world.running() == [0, 1]
    world.deliver(1)
    assert world.running() == [0, 1, 2]


def test_the_first_in_line_that_fits_starts_however_many_large_ones_are_before_it() -> None:
    world = World(PackerOptions(width=4, policy=make_policy("fifo")), checked=False)
    world.device("gpu 0", GIB, CONTEXT)
    hinted(world, 0, 600)
    for trial in range(1, 2000):
        hinted(world, trial, 500)
    hinted(world, 2000, 100)
    assert world.running() == [0, 2000]


# ---- turns


def turns(log: list[do.Instruction]) -> list[int]:
    return [instruction.trial for instruction in log if isinstance(instruction, do.GiveTurn)]


def test_a_lane_keeps_what_the_largest_peak_takes_of_those_that_have_turns_in_it() -> None:
    world = World(PackerOptions(width=1, residents=2))
    world.device("gpu 0", GIB, CONTEXT)
    hinted(world, 0, 100, 500)
    hinted(world, 1, 100, 50)
    world.settle()
    assert world.lane_of(0) is world.lane_of(1)
    world.change("gpu 0", 500 * MIB)
    world.settle()
    assert world.lane_of(0).quota >= CONTEXT + 700 * MIB
    world.run_some(1)
    assert not world.retries


def test_srtf_gives_the_turns_to_the_shortest_and_lets_no_longer_one_in() -> None:
    world = World(PackerOptions(width=1, residents=4, policy=Srtf()))
    world.device("gpu 0", GIB, CONTEXT)
    hinted(world, 0, 100, seconds=50.0)
    world.settle()
    hinted(world, 1, 100, seconds=90.0)
    assert world.waiting() == [1]
    hinted(world, 2, 100, seconds=10.0)
    assert world.lane_of(2) is world.lane_of(0)
    assert turns(world.log) == [2]
    world.finish(2)
    assert world.waiting() == [1]
    hinted(world, 3, 100, seconds=1.0)
    assert turns(world.log) == [2, 3]
    world.run()


def test_where_the_first_in_line_would_have_no_turn_those_behind_it_are_not_looked_at() -> None:
    class Counted(Srtf):
        looks = 0

        def key(self, waiting: Waiting) -> tuple[float, ...]:
            self.looks += 1
            return super().key(waiting)

    policy = Counted()
    world = World(PackerOptions(width=1, residents=4, policy=policy), checked=False)
    world.device("gpu 0", GIB, CONTEXT)
    hinted(world, 0, 100, seconds=1.0)
    for trial in range(1, 400):
        hinted(world, trial, 100, seconds=100.0 + trial)
    policy.looks = 0
    hinted(world, 400, 100, seconds=1000.0)
    assert world.running() == [0]
    assert policy.looks < 50


def test_other_policies_leave_turns_to_the_lane() -> None:
    world = World(PackerOptions(width=1, residents=4))
    world.device("gpu 0", GIB, CONTEXT)
    for trial in range(4):
        hinted(world, trial, 100, seconds=float(trial))
    assert len(world.running()) == 4
    assert turns(world.log) == []


# ---- policies with a say in placement


def test_a_tall_trial_gets_a_device_to_itself_under_fluid() -> None:
    world = World(PackerOptions(width=4, policy=Fluid()))
    world.device("gpu 0", GIB, CONTEXT)
    world.device("gpu 1", GIB, CONTEXT)
    hinted(world, 0, 100, seconds=100.0)
    for trial in range(1, 4):
        hinted(world, trial, 100, seconds=10.0)
    alone = world.lane_of(0).device
    assert [world.lane_of(trial).device == alone for trial in range(1, 4)] == [False] * 3


def test_horus_spreads_by_utilisation() -> None:
    world = World(PackerOptions(width=4, policy=Horus()))
    world.device("gpu 0", GIB, CONTEXT)
    world.device("gpu 1", GIB, CONTEXT)
    for trial in range(4):
        hinted(world, trial, 100)
    devices = [world.lane_of(trial).device for trial in range(4)]
    assert devices.count("gpu 0") == 2


def test_pack_runs_as_many_as_fit_from_the_start() -> None:
    world = World(PackerOptions(policy=make_policy("pack")))
    world.device("gpu 0", GIB, CONTEXT, width=8)
    for trial in range(10):
        hinted(world, trial, 10)
    assert len(world.running()) == 8


def test_fair_shares_lanes_among_kinds() -> None:
    packer = Packer(PackerOptions(width=4, policy=make_policy("fair")))
    expected = Demand(10 * MIB, 0)
    for trial in range(8):
        packer.handle(ev.TrialAdded(0.0, trial, "a" if trial < 4 else "b", expected=expected, seconds=10.0))
    out = packer.handle(ev.DeviceFound(0.0, "gpu 0", GIB))
    started = [instruction.trial for instruction in out if isinstance(instruction, do.StartTrial)]
    assert sorted(trial // 4 for trial in started) == [0, 0, 1, 1]


@pytest.mark.parametrize("name", list(POLICIES))
@pytest.mark.parametrize("residents", [1, 3])
def test_every_policy_finishes_everything(name: str, residents: int) -> None:
    policy: Policy = make_policy(name)
    world = World(PackerOptions(policy=policy, residents=residents, patience=3))
    world.device("gpu 0", GIB, CONTEXT)
    world.device("gpu 1", GIB // 2, CONTEXT)
    for trial in range(16):
        if trial % 2:
            hinted(world, trial, 50 + trial * 35, seconds=float(trial % 7 + 1))
        else:
            world.add(trial, (50 + trial * 35) * MIB, features={"size": float(trial)}, kind="ab"[trial % 4 // 2])
    world.run(rounds=3000)
    assert len(world.concluded) == 16


def test_idle_lanes_make_room_for_a_trial_that_wants_a_device_to_itself_where_lanes_are_shared() -> None:
    world = World(PackerOptions(width=2, residents=2, policy=Fluid()))
    hinted(world, 0, 400, seconds=2.0)
    hinted(world, 1, 400, seconds=2.0)
    hinted(world, 2, 800, seconds=1.0)
    world.device("gpu 0", GIB, CONTEXT)
    assert world.waiting() == [2]
    world.run(rounds=20)
    assert world.outcome(2) is ev.Outcome.DONE


def test_a_warm_lane_returns_what_a_trial_needs_that_gets_a_new_one() -> None:
    world = World(PackerOptions(width=3))
    world.device("gpu 0", 1000 * MIB, CONTEXT)
    for trial, persistent, ephemeral in ((0, 200, 50), (1, 250, 60), (2, 100, 50)):
        world.jobs[trial] = Job(trial, persistent * MIB, ephemeral * MIB, steps=9)
        hinted(world, trial, persistent, ephemeral)
    world.settle()
    world.jobs[3] = Job(3, 220 * MIB, 50 * MIB)
    hinted(world, 3, 220, 50, seconds=999.0)
    # The longest is first in line for its room.
    world.crash(world.lane_of(0).lane)
    world.settle()
    assert world.running() == [1, 2, 3]
    warm = world.lane_of(1).lane
    world.finish(1)
    assert world.lane_of(0).lane not in (1, warm)


def test_with_one_lane_a_long_line_is_not_sorted_whenever_its_trial_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(PackerOptions(width=1))
    world.device("gpu 0", GIB, CONTEXT)
    for trial in range(100):
        world.add(trial, 10 * MIB, 10 * MIB, steps=2)
    for trial in world.running():
        world.finish(trial)
    looked, refresh = [], Line.refresh
    monkeypatch.setattr(Line, "refresh", lambda line, trial: looked.append(trial) or refresh(line, trial))
    before = len(world.started)
    for _ in range(3):
        world.finish(world.running()[0])
    assert len(world.started) == before + 3
    assert len(looked) < 60


def dies_beside_an_idle_lane(policy: Policy) -> World:
    """A trial whose lane has died wants one of its own, while an idle one holds the memory for it."""
    world = World(PackerOptions(width=2, policy=policy))
    world.device("gpu 0", 1000 * MIB, 20 * MIB)
    world.add(0, 250 * MIB, 50 * MIB, steps=3, busy=0.3)
    world.settle()
    world.go(0, 2)
    world.add(1, 250 * MIB, 50 * MIB, steps=9, late=400 * MIB, busy=0.3)
    world.settle()
    world.go(1)
    world.finish(0)
    world.crash(world.lane_of(1).lane)
    world.settle()
    return world


@pytest.mark.parametrize("name", list(POLICIES))
def test_a_trial_that_is_to_be_apart_gets_the_room_of_idle_lanes_under_every_policy(name: str) -> None:
    world = dies_beside_an_idle_lane(make_policy(name))
    world.run(rounds=100)
    assert world.outcome(1) is ev.Outcome.DONE


def test_of_two_that_are_to_be_apart_the_smaller_starts_where_lanes_are_shared_and_the_larger_does_not_fit() -> None:
    world = World(PackerOptions(width=4, residents=2, policy=make_policy("fifo")), checked=False)
    world.device("gpu 0", 1250 * MIB, 20 * MIB)
    for trial, persistent, ephemeral in ((0, 50, 500), (1, 50, 20), (9, 400, 40)):
        world.add(trial, persistent * MIB, ephemeral * MIB, steps=3000, hint=1.0)
        world.settle()
        world.go(trial, 3)
    lanes = {world.lane_of(trial).lane for trial in (0, 1)} - {world.lane_of(9).lane}
    world.change("gpu 0", 600 * MIB)
    for lane in lanes:
        world.crash(lane)
    world.settle()
    assert world.waiting() == [0]


@pytest.mark.parametrize("seed", [5, 8, 11])
def test_a_search_of_shared_lanes_ends_where_trials_want_a_device_to_themselves(seed: int) -> None:
    """In these a trial's prediction, and so its place in line, changes while no place is found for it."""
    rng = random.Random(seed)
    options = PackerOptions(residents=rng.choice([2, 3]), policy=Fluid(), width=rng.choice([None, 1, 2, 3]))
    world = World(options)
    for number in range(1 + seed % 3):
        world.device(f"gpu {number}", 1000 * MIB, 20 * MIB)
    count = rng.randrange(6, 25)
    for trial in range(count):
        x, y = rng.choice([1, 2, 4, 8]), rng.randrange(1, 5)
        steps = 3 * y + rng.randrange(3)
        seconds, busy = x * (1 + rng.random() * 0.5), rng.choice([0.2, 0.6, 1.0])
        features = {"x": float(x), "y": float(y)}
        world.add(trial, 40 * x * MIB, 20 * y * MIB, steps=steps, seconds=seconds, features=features, busy=busy)
    world.run(3000)
    assert len(world.concluded) == count
