"""The simulated body: the contract of every body, and its model of time and memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cotune.demand import GIB, MIB
from cotune.engines.simulated import Costs, LastAct, SimulatedEngine, Work
from cotune.engines.simulated.engine import devices
from cotune.packer import (
    CloseLane,
    GiveTurn,
    GrantChanged,
    GrantTrial,
    IterationsDone,
    LaneLost,
    LaneQuiet,
    LaneReady,
    OpenLane,
    StartTrial,
    StopTrial,
    TrialEnded,
)
from cotune.packer.interference import shared_speed
from cotune.testing import EngineConformance, EngineUnderTest
from cotune.trial import Outcome, TrialSpec


def imagine(spec: TrialSpec) -> Work:
    """The trainable of the conformance suite, imitated."""
    config: dict[str, Any] = dict(spec.config)
    count = config.get("reports", 1)
    ending = LastAct.RETURNS
    for name, how in (("raises", LastAct.RAISES), ("dies", LastAct.DIES), ("hangs", LastAct.HANGS)):
        ending = how if name in config else ending
    return Work(
        count,
        0.01,
        persistent=config.get("hold", 0),
        ephemeral=config.get("peak", 0),
        report_at=range(1, count + 1),
        checkpoints=config.get("checkpoints", False),
        splits=config.get("splits", 0),
        bursts=config.get("bursts", 0),
        ending=ending,
        message=config.get("raises", ""),
    )


class TestSimulatedEngine(EngineConformance):
    @pytest.fixture
    def engine(self, tmp_path):
        engine = SimulatedEngine(devices(1, 4 * GIB, 20 * MIB), imagine)
        with EngineUnderTest(engine, tmp_path) as under_test:
            yield under_test


def busy(work: dict[int, Work], lanes: int = 1, quota: int = GIB, **costs: float) -> SimulatedEngine:
    """An engine with warm lanes 1, 2, ... and the work that its trials are."""
    cost = Costs(**{"open": 0.0, "start": 0.0, "close": 0.0, **costs})  # type: ignore[arg-type]
    engine = SimulatedEngine(devices(1, 16 * GIB), lambda spec: work[spec.trial], cost)
    for lane in range(1, lanes + 1):
        engine.execute(OpenLane(lane, "gpu 0", quota))
        assert engine.poll(1.0) == [LaneReady(0.0, lane, 0)]
    return engine


def begin(engine: SimulatedEngine, trial: int, lane: int, tmp_path: Any) -> None:
    engine.execute(StartTrial(trial, lane), TrialSpec(trial, 0, {}, 0, tmp_path))


def ends(engine: SimulatedEngine) -> dict[int, float]:
    found = {}
    while happened := engine.poll(float("inf")):
        found |= {event.trial: event.time for event in happened if isinstance(event, TrialEnded)}
    return found


def test_alone_a_trial_takes_its_own_time(tmp_path):
    engine = busy({0: Work(10, 2.0, startup=5.0)})
    begin(engine, 0, 1, tmp_path)
    assert ends(engine) == {0: pytest.approx(25.0)}


def test_lanes_slow_each_other_down_by_what_they_use_together(tmp_path):
    engine = busy({0: Work(10, 1.0, busy=1.0), 1: Work(10, 1.0, busy=0.875)}, lanes=2)
    begin(engine, 0, 1, tmp_path)
    begin(engine, 1, 2, tmp_path)
    assert ends(engine) == {0: pytest.approx(10 / 0.63), 1: pytest.approx(10 / 0.63)}


def test_the_rest_is_faster_once_a_neighbour_has_gone(tmp_path):
    engine = busy({0: Work(10, 1.0, busy=1.0), 1: Work(5, 1.0, busy=0.875)}, lanes=2)
    begin(engine, 0, 1, tmp_path)
    begin(engine, 1, 2, tmp_path)
    assert ends(engine) == {1: pytest.approx(5 / 0.63), 0: pytest.approx(5 / 0.63 + 5)}


def test_residents_take_turns_and_others_turns_are_not_their_time(tmp_path):
    engine = busy({0: Work(10, 1.0), 1: Work(10, 1.0)})
    begin(engine, 0, 1, tmp_path)
    begin(engine, 1, 1, tmp_path)
    seconds, last = 0.0, {}
    while happened := engine.poll(float("inf")):
        seconds += sum(e.seconds for e in happened if isinstance(e, IterationsDone) and e.trial == 0)
        last |= {event.trial: event.time for event in happened if isinstance(event, TrialEnded)}
    assert last == {0: pytest.approx(20.0), 1: pytest.approx(20.0)}
    assert seconds == pytest.approx(10.0)


def test_who_is_given_the_turn_runs_and_the_others_wait(tmp_path):
    engine = busy({0: Work(10, 1.0), 1: Work(2, 1.0)})
    begin(engine, 0, 1, tmp_path)
    begin(engine, 1, 1, tmp_path)
    engine.execute(GiveTurn(1, 1))
    assert ends(engine) == {1: pytest.approx(2.0), 0: pytest.approx(12.0)}


def test_a_trial_is_out_of_memory_when_it_grows_beyond_the_quota(tmp_path):
    engine = busy({0: Work(10, 1.0, persistent=500 * MIB, ephemeral=100 * MIB, late=500 * MIB)})
    begin(engine, 0, 1, tmp_path)
    found = []
    while happened := engine.poll(float("inf")):
        found += [event for event in happened if isinstance(event, TrialEnded)]
    assert [(event.outcome, event.needed, event.time) for event in found] == [
        (Outcome.OUT_OF_MEMORY, 1100 * MIB, pytest.approx(3.0))
    ]


def test_a_stop_takes_effect_at_the_next_iteration(tmp_path):
    engine = busy({0: Work(1000, 1.0)})
    begin(engine, 0, 1, tmp_path)
    engine.poll(0.5)
    while engine.now() < 10.4:
        engine.poll(10.4 - engine.now())
    engine.execute(StopTrial(0))
    assert ends(engine) == {0: pytest.approx(11.0)}


def test_a_closed_lane_takes_its_trials_along(tmp_path):
    engine = busy({0: Work(10, 1.0)}, close=0.5)
    begin(engine, 0, 1, tmp_path)
    engine.execute(CloseLane(1, kill=True))
    assert engine.poll(10.0) == [LaneLost(0.5, 1, 0, "killed")]
    assert ends(engine) == {}


def test_a_trial_that_starts_up_for_long_is_quiet_until_its_first_iteration():
    engine = busy({0: Work(10, 1.0, startup=3.5)})
    engine.execute(StartTrial(0, 1), TrialSpec(0, 0, {}, 0, Path()))
    heard = [event for _ in range(8) for event in engine.poll(100.0)]
    quiet = [event.seconds for event in heard if isinstance(event, LaneQuiet)]
    assert quiet == pytest.approx([1.0, 2.0, 3.0])
    assert any(isinstance(event, IterationsDone) for event in heard)


def test_a_start_up_of_years_is_simulated_at_once():
    engine = busy({0: Work(10, 1.0, startup=1e9)})
    engine.execute(StartTrial(0, 1), TrialSpec(0, 0, {}, 0, Path()))
    heard = []
    while not any(isinstance(event, IterationsDone) for event in heard):
        heard += engine.poll(1e9)
    assert len(heard) < 1000


def test_speed_falls_with_load_and_a_full_device_does_no_less_in_all():
    loads = [number / 16 for number in range(1, 200)]
    speeds = [shared_speed(load) for load in loads]
    assert speeds == sorted(speeds, reverse=True)
    assert shared_speed(0.6) == pytest.approx(0.95)
    done = [load * speed for load, speed in zip(loads, speeds, strict=True)]
    assert done == pytest.approx(sorted(done))


def test_a_grant_speeds_a_trial_up_by_its_gain_and_is_given_back_where_memory_is_short():
    work = {0: Work(1000, 1.0, ephemeral=100 * MIB, splits=8, gain=float)}
    engine = busy(work, quota=450 * MIB)
    engine.execute(StartTrial(0, 1), TrialSpec(0, 0, {}, 0, Path()))

    def until(kind: type[Any]) -> Any:
        while True:
            for event in engine.poll(100.0):
                if isinstance(event, kind):
                    return event

    def pace() -> tuple[float, int]:
        done = until(IterationsDone)
        return done.seconds / done.count, done.concurrency

    assert pace() == (1.0, 1)
    engine.execute(GrantTrial(0, 4))
    assert until(GrantChanged).concurrency == 4
    assert pace() == (0.25, 4)
    engine.execute(GrantTrial(0, 8))
    assert until(GrantChanged).concurrency == 8
    back = until(GrantChanged)
    assert (back.concurrency, back.ran_out) == (1, 8)
    assert pace() == (1.0, 1)
