"""Lower bounds of the makespan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.demand import GIB
from cotune.engines.simulated import Costs
from cotune.simulation import Job, Setting, Workload, lower_bounds, simulate
from cotune.simulation.bounds import BEST_LOAD

LONG = Job(100, 1.0, 0, GIB, busy=0.1)


def of(*jobs: Job, **options: Any) -> Workload:
    return Workload("test", jobs, capacity=4 * GIB, context=0, **options)


def test_bounds_of_simple_workloads() -> None:
    large = Job(10, 1.0, 0, 3 * GIB, busy=0.1)
    assert lower_bounds(of(LONG, devices=4)).best == pytest.approx(100.0)
    assert lower_bounds(of(*[large] * 8, devices=2)).best == pytest.approx(40.0)
    assert lower_bounds(of(*[LONG] * 64)).lanes == pytest.approx(400.0)
    assert lower_bounds(of(LONG), [0]).best == 0.0


def test_what_has_not_come_cannot_be_done() -> None:
    jobs = [Job(100, 1.0, 0, 4 * GIB, busy=1.0), *[Job(100, 1.0, 0, 0, busy=1.0, arrival=150.0)] * 4]
    bounds = lower_bounds(of(*jobs))
    assert bounds.device_time == pytest.approx(150.0 + 400.0 / BEST_LOAD)
    assert bounds.memory == pytest.approx(250.0)


def test_when_it_begins_says_nothing_of_how_long_it_takes() -> None:
    jobs = [Job(100, 1.0, 0, GIB, busy=0.5, arrival=arrival) for arrival in (0.0, 10.0, 150.0)]
    later = [replace(job, arrival=job.arrival + 1000.0) for job in jobs]
    assert lower_bounds(of(*later)) == lower_bounds(of(*jobs))


def test_a_trial_runs_no_faster_than_alone_however_idle_the_device() -> None:
    jobs = [Job(100, 1.0, 0, 0, busy=0.5), *[Job(100, 1.0, 0, 0, busy=1.0, arrival=50.0)] * 4]
    assert lower_bounds(of(*jobs)).device_time == pytest.approx(50.0 + 425.0 / BEST_LOAD)


def test_no_bound_counts_fewer_lanes_than_were_asked_for() -> None:
    workload = replace(of(*[Job(100, 1.0, 0, 0, busy=0.01)] * 8), lanes=8, max_width=2)
    assert simulate(workload).figures.makespan >= lower_bounds(workload).best


JOBS = st.builds(
    Job,
    st.integers(1, 20),
    st.sampled_from([0.1, 1.0, 7.0]),
    st.integers(0, GIB),
    st.integers(0, 3 * GIB),
    busy=st.floats(0.05, 1.0),
    startup=st.sampled_from([0.0, 3.0, 50.0]),
    arrival=st.sampled_from([0.0, 10.0, 100.0]),
)


@given(st.lists(JOBS, min_size=1, max_size=12), st.integers(1, 3), st.sampled_from(["makespan", "fifo", "srtf"]))
def test_no_schedule_is_shorter(jobs: list[Job], devices: int, policy: str) -> None:
    workload = of(*jobs, devices=devices, costs=Costs(0.0, 0.0, 0.0, 0.0))
    outcome = simulate(workload, Setting(policy=policy, keep=False))
    assert outcome.figures.makespan >= lower_bounds(workload, outcome.ran).best * (1 - 1e-9)
