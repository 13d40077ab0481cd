"""The lower bound by the best mix of sets of trials."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from cotune.demand import GIB, MIB
from cotune.engines.simulated import Costs
from cotune.packer.interference import shared_speed
from cotune.simulation import Job, Setting, Workload, lower_bounds, make_workload, simulate
from cotune.simulation.configurations import FEW, best_bound, configuration_bound

FREE = Costs(0, 0, 0, 0)


def test_the_best_mix_of_sets_is_a_stronger_bound_than_volumes() -> None:
    pytest.importorskip("scipy")
    large = Job(100, 1.0, 0, int(0.70 * GIB), busy=0.5)
    small = Job(100, 1.0, 0, int(0.35 * GIB), busy=0.5)
    workload = Workload("test", [large, small] * 10, capacity=GIB, context=0, costs=FREE)
    # A large one runs alone, two small ones beside each other at the speed that a load of 1 leaves.
    expected = 1000 + 500 / shared_speed(1.0)
    assert lower_bounds(workload).best < 0.97 * expected
    assert configuration_bound(workload) == pytest.approx(expected, rel=0.01)
    assert configuration_bound(workload) <= simulate(workload).figures.makespan


def test_the_stronger_bound_is_taken_where_it_is_soon_found(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scipy")
    large, small = Job(100, 1.0, 0, int(0.70 * GIB)), Job(100, 1.0, 0, int(0.35 * GIB))
    few = Workload("few", [large, small] * (FEW // 2), capacity=GIB, context=0)
    many = Workload("many", [*few.jobs, small], capacity=GIB, context=0)
    assert best_bound(few) == configuration_bound(few) > lower_bounds(few).best
    assert best_bound(many) == lower_bounds(many).best
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    assert best_bound(few) == lower_bounds(few).best


def test_where_lanes_are_shared_the_bound_is_one_that_holds_there() -> None:
    """The mean load of lane-mates may be worth more than the mean of their loads."""
    pytest.importorskip("scipy")
    jobs = [Job(100, seconds, 100 * MIB, 5 * GIB, busy) for seconds, busy in ((100, 1.0), (200, 0.6), (100, 0.05))]
    workload = Workload("mates", jobs, capacity=12 * GIB, context=0, costs=FREE)
    alone = replace(workload, lanes=2, max_width=2)
    shared = replace(alone, residents=2)
    makespan = simulate(shared, Setting(policy="fifo")).figures.makespan
    assert best_bound(shared) <= makespan < best_bound(alone)


def test_no_trial_runs_beside_itself() -> None:
    pytest.importorskip("scipy")
    long, short = Job(1000, 1.0, 0, 0, busy=1.0), Job(100, 1.0, 0, 0, busy=1.0)
    workload = Workload("test", [long, *[short] * 3], capacity=GIB, context=0, devices=4)
    assert configuration_bound(workload) == pytest.approx(1000)


@pytest.mark.parametrize("devices", [1, 2])
def test_what_is_simulated_is_never_below_the_best_mix(devices: int) -> None:
    pytest.importorskip("scipy")
    workload = replace(make_workload("tiresias-60", 3, jobs=20), devices=devices)
    outcome = simulate(workload, Setting(keep=False))
    bound = configuration_bound(workload, outcome.ran)
    assert lower_bounds(workload, outcome.ran).best <= bound <= outcome.figures.makespan


def test_where_nothing_ran_there_is_no_bound() -> None:
    pytest.importorskip("scipy")
    workload = Workload("test", [Job(10, 1.0, 0, 2 * GIB)], capacity=GIB)
    assert configuration_bound(workload, [0]) == 0.0


def test_one_that_runs_is_not_slowed_down_by_those_that_start() -> None:
    pytest.importorskip("scipy")
    slow_start, busy = Job(1, 0.001, 0, 0, busy=0.1, startup=100.0), Job(100, 1.0, 0, 0, busy=1.0)
    workload = Workload("test", [slow_start, busy], capacity=GIB, context=0, costs=FREE)
    makespan = simulate(replace(workload, lanes=2)).figures.makespan
    assert configuration_bound(workload) <= makespan == pytest.approx(100.0, abs=0.01)


def test_sets_of_large_shares_are_bounded_by_what_a_device_does_most() -> None:
    """Two of them leave a device short of that; three are beyond it."""
    pytest.importorskip("scipy")
    jobs = [Job(100, 1.0, 0, 0, busy=0.875)] * 20
    workload = Workload("test", jobs, capacity=GIB, context=0, max_width=4, costs=FREE)
    three = 2000 * 0.875 / (1.875 * shared_speed(1.875))
    makespan = simulate(replace(workload, lanes=4), Setting(policy="pack")).figures.makespan
    assert configuration_bound(workload) <= makespan
    assert configuration_bound(workload) == pytest.approx(three, rel=0.01)


def test_a_set_may_have_hundreds_of_trials() -> None:
    pytest.importorskip("scipy")
    workload = Workload("test", [Job(10, 1.0, 0, 0, busy=0.0)] * 1000, capacity=GIB, context=0, max_width=200)
    assert configuration_bound(workload) == pytest.approx(50.0)
