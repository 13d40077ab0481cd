"""The trials of a run and the events file: what is noted is what is read back, whatever happens to a trial."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cotune.demand import Demand, Estimate
from cotune.errors import TrialFailed
from cotune.packer import ConcludeTrial, DeviceFound, Measures
from cotune.paths import RunFolder, TrialFolder
from cotune.record import VERSION, EventLog, Record, Records, read_run
from cotune.record import records as module
from cotune.record.record import error_of
from cotune.record.records import seed_of
from cotune.trial import Estimated, Outcome, Report, TrialState

WAITING, RUNNING, PAUSED = TrialState.WAITING, TrialState.RUNNING, TrialState.PAUSED
# What may happen to a trial, by its state.
STEPS = {
    WAITING: ["estimate", "start", "put off"],
    RUNNING: ["lane up", "report", "pause", "retry", "fail", "die", "stop", "done", "stopped", "failed", "interrupted"],
    PAUSED: ["resume", "retry", "start", "stopped"],
}
# All that a later session goes by.
KEPT = ["params", "seed", "lines", "values", "attempts", "device", "lane", "start", "rested", "measures", "estimate"]
KEPT += ["failures", "lane_deaths", "withdrawn"]


class Driver:
    """Notes things in a run folder, by a clock of its own."""

    def __init__(self, path, monkeypatch):
        self.folder = RunFolder(path)
        self.folder.create()
        self.log = EventLog(self.folder.events)
        self.log.write("run", 0.0, version=VERSION, metric="loss", mode="min", seed=5)
        self.clock = SimpleNamespace(value=1.0)
        told = SimpleNamespace(time=lambda: self.clock.value, monotonic=lambda: self.clock.value)
        monkeypatch.setattr(module, "time", told)
        self.records = Records(self.folder, self.log, "min", 5)
        self.steps = 0

    def tick(self):
        self.clock.value += 1.0
        self.records.now = self.clock.value

    def propose(self, trial=0):
        return self.records.proposed(trial, {"x": trial / 2}, {"x": trial / 2})

    def report(self, trial, value=0.5):
        self.steps += 1
        fields = {"event": "report", "time": self.clock.value, "trial": trial, "step": self.steps}
        line = json.dumps({**fields, "metrics": {"loss": value}}).encode() + b"\n"
        self.records.reported(Report(trial, 0, self.steps, value, line))

    def happens(self, step, trial):
        records, record = self.records, self.records[trial]
        self.tick()
        if step == "estimate":
            records.estimated(Estimated(trial, Estimate(1, 2, 3), "", 0.5))
        elif step == "start":
            records.starts(trial, "cpu:0", trial + 10)
        elif step == "lane up":
            records.lane_up(record.lane, 0)
        elif step == "report":
            self.report(trial)
        elif step == "pause":
            records.pauses(record)
        elif step == "resume":
            records.goes_on(record)
        elif step == "retry":
            records.retried(record, "its lane was lost")
        elif step == "fail":
            records.retried(record, "it raised", failed=True)
        elif step == "die":
            records.retried(record, "killed by signal 11", lane_died=True)
        elif step == "stop":
            records.withdrawn(record, TrialState.STOPPED)
        elif step == "put off":
            records.put_off(record)
        else:
            record.measures = Measures(Demand(100, 10))
            record.error = TrialFailed("it raised", hint="") if step == "failed" else None
            records.ends(record, TrialState(step))

    def read(self):
        self.records.flush()
        return {record.trial: record for record in read_run(self.folder).records}


@pytest.fixture
def driver(tmp_path, monkeypatch):
    return Driver(tmp_path / "run", monkeypatch)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_was_noted_is_what_is_read_back(data, tmp_path_factory, monkeypatch):
    driver = Driver(tmp_path_factory.mktemp("history") / "run", monkeypatch)
    for trial in range(2):
        driver.propose(trial)
    for _ in range(data.draw(st.integers(0, 25))):
        open_ones = list(driver.records.unfinished())
        if not open_ones:
            break
        record = data.draw(st.sampled_from(open_ones), label="trial")
        driver.happens(data.draw(st.sampled_from(STEPS[record.state]), label="step"), record.trial)
    read = driver.read()
    driver.log.close()
    assert sum(driver.records.counts.values()) == len(driver.records) == len(read)
    for trial, record in driver.records.items():
        # What is not told to have ended is not over for a later session.
        is_over = record.state.is_final and record.state is not TrialState.INTERRUPTED
        kept = KEPT if is_over else [name for name in KEPT if name not in ("measures", "rested")]
        assert [getattr(read[trial], name) for name in kept] == [getattr(record, name) for name in kept]
        assert read[trial].state == (record.state if is_over else WAITING)
        assert (read[trial].end == record.end) or not is_over
        assert driver.records.counts[record.standing] > 0


def test_a_trial_starts_when_the_process_it_waited_for_is_there(driver):
    driver.propose()
    driver.happens("start", 0)
    driver.happens("lane up", 0)
    assert driver.records[0].start == driver.records.first_start == driver.clock.value


def test_devices_are_noted_for_those_who_would_imagine_them(driver):
    driver.records.device(DeviceFound(0.0, "cpu:0", 100, 10, 4, idle_width=8), lanes=2)
    driver.records.flush()
    noted = json.loads(driver.folder.events.read_text().splitlines()[-1])
    kept = {"device": "cpu:0", "capacity": 100, "context": 10, "max_width": 4, "idle_width": 8, "lanes": 2}
    assert noted == {"event": "device", "time": driver.records.now, **kept}


def test_a_trial_ends_when_the_next_one_starts_in_its_lane(driver):
    driver.propose()
    driver.happens("start", 0)
    driver.clock.value += 1.0  # what follows from the event takes a moment
    driver.records.ends(driver.records[0], TrialState.DONE)
    assert driver.read()[0].end == driver.records.now == driver.records[0].end


def test_the_makespan_is_from_the_first_start_to_the_last_end(driver):
    assert driver.records.makespan == 0.0
    for trial in range(2):
        driver.propose(trial)
        driver.happens("start", trial)
        driver.happens("lane up", trial)
        driver.happens("done", trial)
    assert driver.records.makespan == 4.0


def test_of_equally_good_ones_the_lowest_number_is_best_whichever_ends_first(driver):
    for trial in range(3):
        driver.propose(trial)
        driver.happens("start", trial)
        driver.report(trial)
    for trial in (1, 2, 0):
        driver.happens("done", trial)
        assert driver.records.best is driver.records[min(trial, 1)]


def test_the_best_is_the_best_that_is_done(driver):
    for trial, (value, end) in enumerate([(0.5, "done"), (0.1, "stopped"), (0.3, "done"), (0.4, "done")]):
        driver.propose(trial)
        driver.happens("start", trial)
        driver.report(trial, value)
        driver.happens(end, trial)
    assert driver.records.best is driver.records[2]


@pytest.mark.parametrize(("steps", "state"), [(["start", "pause", "retry"], PAUSED), (["start", "retry"], WAITING)])
def test_one_that_is_to_start_again_waits_unless_it_was_paused_and_has_made_room(driver, steps, state):
    driver.propose()
    for step in steps:
        driver.happens(step, 0)
    assert driver.records[0].state is state
    assert not list(driver.records.running())


def test_one_that_is_stopped_is_not_put_off_when_the_run_is_interrupted(driver):
    for trial, steps in enumerate((["start", "stop"], ["start"])):
        driver.propose(trial)
        for step in steps:
            driver.happens(step, trial)
        driver.records.withdrawn(driver.records[trial], TrialState.INTERRUPTED)
    assert [record.withdrawn for record in driver.records.values()] == [TrialState.STOPPED, TrialState.INTERRUPTED]


def test_reports_of_an_earlier_session_count_too(driver):
    driver.propose()
    driver.happens("start", 0)
    driver.happens("report", 0)
    driver.log.close()
    later = [Records(driver.folder, driver.log, "min", 5, earlier) for earlier in ([], read_run(driver.folder).records)]
    assert [records.have_reports for records in later] == [False, True]


def test_every_attempt_at_a_trial_has_its_seed(driver):
    driver.propose()
    first, second = (driver.records.starts(0, "cpu:0", 1) for _ in range(2))
    assert (first.attempt, second.attempt, second.seed) == (0, 1, first.seed)


def test_an_attempt_begins_with_the_reports_of_earlier_ones_that_are_stored(driver):
    driver.propose()
    found = [driver.records.starts(0, "cpu:0", 1)]
    for _ in range(3):
        driver.report(0)
    folder = driver.folder.trial(0)
    folder.publish_checkpoint(folder.begin_checkpoint(), reports=2)
    found.append(driver.records.starts(0, "cpu:0", 1))
    # One that was saved ahead of a report that was never made.
    folder.publish_checkpoint(folder.begin_checkpoint(), reports=4)
    found.append(driver.records.starts(0, "cpu:0", 1))
    assert [(spec.reports, spec.step) for spec in found] == [(0, 0), (3, 2), (3, 3)]


def test_one_that_was_interrupted_and_is_judged_then_stays_stopped(driver):
    record = driver.propose()
    driver.records.starts(0, "cpu:0", 1)
    driver.records.withdrawn(record, TrialState.INTERRUPTED)
    assert driver.read()[0].withdrawn is None
    driver.records.ends(record, TrialState.INTERRUPTED)
    driver.records.withdrawn(record, TrialState.STOPPED)
    assert driver.read()[0].withdrawn is TrialState.STOPPED


def test_every_trial_has_a_seed_of_its_own_and_always_the_same():
    assert len({seed_of(5, trial) for trial in range(100)} | {seed_of(6, trial) for trial in range(100)}) == 200
    assert seed_of(0, 0) == 2968811710


@pytest.fixture
def records(tmp_path):
    """Those of a run without trials."""
    folder = RunFolder(tmp_path / "run")
    folder.create()
    log = EventLog(folder.events)
    yield Records(folder, log, "min", 0)
    log.close()


def test_how_long_a_trial_took_is_measured_by_a_clock_that_nobody_sets(records):
    record = records.proposed(0, {}, {})
    records.starts(0, "cpu:0", 1)
    records.lane_up(1, 0)
    records.now += 3600
    records.ends(record, TrialState.DONE)
    assert record.end - record.start == pytest.approx(3600, abs=60)
    assert 0 <= record.seconds < 60


@pytest.mark.parametrize("state", [TrialState.STOPPED, TrialState.INTERRUPTED])
def test_a_trial_that_is_over_leaves_no_half_written_checkpoint(records, state):
    record = records.proposed(0, {}, {})
    trial = TrialFolder(record.folder)
    published = trial.publish_checkpoint(trial.begin_checkpoint(), 1)
    (trial.begin_checkpoint() / "state.txt").write_text("x")
    records.starts(0, "cpu:0", 1)
    records.ends(record, state)
    assert list(trial.checkpoints.iterdir()) == [published]


def test_how_long_a_trial_would_have_run_alone_is_without_the_turns_of_its_lane_mates(tmp_path):
    record = Record(0, {}, {}, 0, tmp_path, TrialState.DONE, attempts=1, start=0.0, end=12.0, lasted=12.0)
    record.measures = Measures(speed=0.5)
    assert record.seconds == 6.0
    record.measures = Measures(seconds=3.0, speed=0.5)
    assert record.seconds == 1.5


@pytest.mark.parametrize("said", ["TrialPruned", "TrialPruned: at step 3"])
def test_a_trial_that_raises_optunas_exception_for_pruning_is_told_how_trials_are_stopped(said):
    raised = ConcludeTrial(3, Outcome.FAILED, reason=said, error="TrialFailed")
    assert "pruner=" in error_of(raised).hint
    assert "cotune.optimize" in error_of(raised).hint
