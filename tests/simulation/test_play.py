"""Workloads played by the production brain on a virtual clock."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import accumulate
from statistics import fmean
from typing import Any

import pytest

from cotune.demand import GIB, MIB
from cotune.engines.simulated import Costs
from cotune.errors import InputError
from cotune.packer import POLICIES
from cotune.packer.interference import shared_speed
from cotune.simulation import GENERATORS, AshaRule, Job, Setting, Workload, lower_bounds, make_workload, simulate

FREE = Costs(0.0, 0.0, 0.0, 0.0)
LIGHT = Job(100, 0.1, 100 * MIB, 200 * MIB, busy=0.2)


def of(*jobs: Job, **options: Any) -> Workload:
    return Workload("test", jobs, capacity=4 * GIB, context=0, **options)


def test_one_job_takes_what_it_takes() -> None:
    figures = simulate(of(LIGHT, costs=FREE)).figures
    assert figures.makespan == pytest.approx(10.0)
    assert figures.completion == pytest.approx(10.0)
    assert figures.waiting == 0.0
    assert figures.utilisation == pytest.approx(0.2)
    assert figures.fill == pytest.approx(300 / 4096, rel=0.01)
    assert figures.at_once == pytest.approx(1.0)


def test_jobs_one_after_another_wait_for_each_other() -> None:
    figures = simulate(of(LIGHT, LIGHT, LIGHT, lanes=1, costs=FREE)).figures
    assert figures.makespan == pytest.approx(30.0)
    assert figures.completion == pytest.approx(20.0)
    assert figures.waiting == pytest.approx(10.0)


def test_the_95th_percentile_of_twenty_is_the_nineteenth() -> None:
    figures = simulate(of(*[LIGHT] * 20, lanes=1, costs=FREE)).figures
    assert (figures.completion_p95, figures.waiting_p95) == pytest.approx((190.0, 180.0))


def test_light_jobs_together_are_done_sooner() -> None:
    jobs = of(*[LIGHT] * 40)
    alone = simulate(replace(jobs, lanes=1)).figures.makespan
    assert simulate(jobs, Setting(policy="pack")).figures.makespan < alone / 3
    assert simulate(jobs, Setting()).figures.makespan < alone / 2


@pytest.mark.parametrize("policy", ["makespan", "fifo", "pack"])
def test_jobs_that_are_there_from_the_beginning_are_spread_over_the_devices(policy: str) -> None:
    workload = of(*[LIGHT] * 4, devices=4, lanes=4, costs=FREE)
    played = simulate(workload, Setting(policy=policy))
    assert len({segment.device for segment in played.segments}) == 4


@pytest.mark.parametrize(("trials", "devices", "lanes", "busy"), [(6, 4, 2, 0.6), (20, 8, 4, 0.4), (12, 8, 2, 0.9)])
def test_a_job_that_would_itself_end_last_is_not_kept_waiting_for_another(
    trials: int, devices: int, lanes: int, busy: float
) -> None:
    workload = replace(of(*[replace(LIGHT, step_seconds=2.0, busy=busy)] * trials), devices=devices, lanes=lanes)
    spared, fifo = (simulate(workload, Setting(policy=policy)).figures.makespan for policy in ("makespan", "fifo"))
    assert spared <= 1.01 * fifo


def test_of_jobs_that_come_together_the_policy_chooses_which_is_first() -> None:
    long, short = (replace(LIGHT, iterations=count, arrival=50.0) for count in (1000, 10))
    figures = simulate(of(long, short, short, lanes=1, costs=FREE), Setting(policy="srtf")).figures
    assert figures.completion == pytest.approx((1.0 + 2.0 + 102.0) / 3)


def test_a_job_starts_no_sooner_than_it_comes() -> None:
    late = Job(10, 1.0, MIB, MIB, arrival=500.0)
    outcome = simulate(of(LIGHT, late, costs=FREE))
    assert [segment.start for segment in outcome.segments] == [0.0, 500.0]
    assert outcome.figures.makespan == pytest.approx(510.0)


def test_the_limit_ahead_changes_when_trials_are_proposed_not_whether() -> None:
    outcome = simulate(of(*[LIGHT] * 30), Setting(ahead=1))
    assert len(outcome.segments) == 30


def test_what_is_learnt_replaces_predictions() -> None:
    outcome = simulate(of(*[LIGHT] * 10), Setting(error=None))
    assert outcome.figures.failed == outcome.figures.out_of_memory == 0
    assert outcome.ran == [100] * 10


def test_wrong_predictions_end_in_retries_not_in_failures() -> None:
    jobs = of(*[Job(50, 0.1, 400 * MIB, 800 * MIB, busy=0.5)] * 40)
    figures = simulate(jobs, Setting(error=0.5)).figures
    assert figures.out_of_memory > 0
    assert figures.failed == 0


def test_nothing_is_said_of_predictions_of_what_is_tiny() -> None:
    outcome = simulate(of(*[Job(10, 0.05, MIB, 2 * MIB)] * 4))
    assert (outcome.set_aside, outcome.predicted_seconds) == (None, None)
    outcome = simulate(of(*[LIGHT] * 4))
    assert outcome.set_aside is not None
    assert outcome.predicted_seconds is not None


def test_trials_that_run_at_once_are_counted_however_much_they_use() -> None:
    figures = simulate(of(*[LIGHT] * 3, lanes=3, costs=FREE)).figures
    assert figures.at_once == pytest.approx(3.0)
    assert figures.utilisation == pytest.approx(3 * 0.2 * shared_speed(3 * 0.2))


def test_a_job_that_fits_no_device_fails_and_the_others_do_not() -> None:
    figures = simulate(of(LIGHT, Job(10, 1.0, 500 * GIB, GIB, startup=60.0), LIGHT)).figures
    assert (figures.failed, figures.trials) == (1, 3)
    assert figures.fill < 1.0


def test_a_stopping_rule_ends_the_worse_ones() -> None:
    values = [(number / 10,) for number in range(10)]
    jobs = [Job(100, 0.1, MIB, MIB, rungs=(10,), values=value) for value in values]
    outcome = simulate(replace(of(*jobs), lanes=1))
    assert outcome.figures.stopped >= 6
    assert outcome.ran[0] == 100
    assert outcome.ran[9] < 20


def test_what_is_predicted_of_trials_does_not_start_the_worst_first_where_a_rule_stops_them() -> None:
    dice = random.Random(1)
    jobs = []
    for _ in range(81):
        quality = dice.random()
        values = tuple(quality + 1 / rung for rung in (1, 3, 9))
        # A little longer the worse it is.
        jobs.append(Job(90, 1.0 + quality / 10, GIB, 0, 0.9, rungs=(10, 30, 90), values=values))
    made, in_order = (simulate(Workload("worse", jobs), Setting(policy=policy)).ran for policy in (None, "fifo"))
    assert sum(made) < 1.3 * sum(in_order)


def test_a_long_trial_is_heard_of_as_often_as_others_and_so_kept_from_ending_last() -> None:
    """Heard of eight times in its life only, the longest ran beside others for too long: 1.40 times the bound."""
    dice = random.Random("heavycomp0")
    jobs = []
    for _ in range(60):
        seconds, size = min(20_000, 60 * dice.paretovariate(1.1)), dice.uniform(0.3, 3) * GIB
        jobs.append(Job(100, seconds / 100, int(0.3 * size), int(0.7 * size), busy=0.9))
    workload = Workload("heavy tail", jobs, devices=4)
    makespan = simulate(workload, Setting(keep=False)).figures.makespan
    assert makespan <= 1.05 * lower_bounds(workload).best


def test_asha_keeps_the_best_third() -> None:
    rule = AshaRule()
    assert not rule.stops(1, 5.0)
    assert rule.stops(1, 6.0)
    assert not rule.stops(1, 1.0)


@pytest.mark.parametrize("policy", list(POLICIES))
def test_every_policy_plays_every_shape_of_workload(policy: str) -> None:
    for name in ("salus-100", "tiresias-60", "asha"):
        workload = replace(make_workload(name, jobs=15), devices=2)
        outcome = simulate(replace(workload, residents=2), Setting(policy=policy, error=0.3))
        figures = outcome.figures
        assert figures.failed == 0
        assert figures.makespan >= lower_bounds(workload, outcome.ran).best
        assert figures.fill < 1.0
        last = [segment for segment in outcome.segments if segment.how in ("done", "stopped")]
        assert sorted(segment.trial for segment in last) == list(range(15))


@pytest.mark.parametrize(
    "where", [{"devices": 0}, {"devices": 100_001}, {"capacity": 0}, {"capacity": -1}, {"capacity": 1024}]
)
def test_devices_that_cannot_be_imagined_are_refused(where: dict[str, int]) -> None:
    with pytest.raises(InputError):
        simulate(replace(of(LIGHT), **where))


def test_a_setting_under_which_no_trial_comes_is_refused() -> None:
    with pytest.raises(InputError, match="ahead=0"):
        simulate(of(LIGHT), Setting(ahead=0))


# ---- generators and bounds


@pytest.mark.parametrize("name", list(GENERATORS))
def test_the_same_seed_gives_the_same_jobs(name: str) -> None:
    one, two, three = (make_workload(name, seed, 20) for seed in (1, 1, 2))
    assert one == two
    assert one.jobs != three.jobs
    assert len(one.jobs) == 20
    assert all(job.peak + one.context < one.capacity for job in one.jobs)


def test_the_mix_has_the_averages_that_were_published() -> None:
    """Salus, section 5.1: minutes in all, on average in order, on average and at the 95th percentile shortest first."""
    seconds = [job.seconds for job in make_workload("salus-100", 5).jobs]
    in_order, shortest_first = (list(accumulate(order)) for order in (seconds, sorted(seconds)))
    assert in_order[-1] / 60 == pytest.approx(303.4, rel=0.002)
    assert fmean(in_order) / 60 == pytest.approx(170.6, rel=0.01)
    assert fmean(shortest_first) / 60 == pytest.approx(53.4, rel=0.04)
    assert shortest_first[94] / 60 == pytest.approx(217, rel=0.02)


@pytest.mark.parametrize(("name", "jobs"), [("nope", None), ("asha", 0)])
def test_a_workload_nobody_knows_says_so(name: str, jobs: int | None) -> None:
    with pytest.raises(InputError):
        make_workload(name, 0, jobs)
