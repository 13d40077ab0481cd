"""Reading a run back from its events file."""

import json
import math

import pytest

from cotune.demand import Demand
from cotune.errors import LaneDied, StorageError, TrialFailed, TrialTooLarge
from cotune.packer import Measures
from cotune.paths import RunFolder
from cotune.record import VERSION, EventLog, Record, has_started, read_run
from cotune.record.record import best_of, end_event, json_safe
from cotune.trial import Report, TrialState


class Written:
    """A run folder with an events file, written as a driver writes it."""

    def __init__(self, path):
        self.folder = RunFolder(path)
        self.folder.create()
        self.log = EventLog(self.folder.events)
        self.clock = 0.0

    def add(self, event, **fields):
        self.clock += 1.0
        self.log.write(event, self.clock, **fields)
        return self

    def run(self, **fields):
        return self.add("run", **{"version": VERSION, "metric": "loss", "mode": "min", "seed": 5, **fields})

    def trial(self, trial=0, **params):
        return self.add("trial", trial=trial, params=params, seed=trial + 100)

    def start(self, trial=0, lane=0, device="cpu:0"):
        return self.add("start", trial=trial, lane=lane, device=device)

    def report(self, step, trial=0, **metrics):
        return self.add("report", trial=trial, step=step, metrics=metrics)

    def retry(self, trial=0):
        return self.add("retry", trial=trial, reason="its lane was lost")

    def end(self, trial=0, state="done", persistent=None, ephemeral=None, error=None):
        return self.add("end", trial=trial, state=state, persistent=persistent, ephemeral=ephemeral, error=error)

    def read(self):
        self.log.close()
        return read_run(self.folder)

    def record(self):
        (record,) = self.read().records
        return record


@pytest.fixture
def written(tmp_path):
    return Written(tmp_path / "run")


def new_record(tmp_path, **fields):
    return Record(0, {}, {}, 1, tmp_path, **fields)


def made(step, value=0.0):
    return Report(0, 0, step, value, b"%d\n" % step)


def test_the_settings_come_back(written):
    settings = written.run(trials=7).read().settings
    assert (settings["metric"], settings["mode"], settings["trials"]) == ("loss", "min", 7)


def test_the_settings_are_those_of_the_first_session(written):
    assert written.run(seed=5).run(seed=6).read().settings["seed"] == 5


def test_the_time_in_which_a_trial_was_paused_is_not_its_own(written):
    written.run().trial().start().add("pause", trial=0).report(0, loss=1.0).add("resume", trial=0).end()
    record = written.record()
    assert record.rested == 2.0
    assert record.seconds == record.end - record.start - 2.0


@pytest.mark.parametrize(("sessions", "makespan"), [(1, 2.0), (2, 1.0)])
def test_a_run_takes_from_the_first_trial_that_is_ready_to_the_last_event_of_its_last_session(
    written, sessions, makespan
):
    written.run().trial().start().add("ready", trial=0, context=0).report(0, loss=1.0).end()
    if sessions == 2:
        written.run().trial(1).start(1).add("ready", trial=1, context=0).end(1)
    assert written.read().makespan == makespan


def test_how_long_a_trial_that_was_stopped_would_have_run_is_not_known(written):
    assert written.run().trial().start().report(0, loss=1.0).end(state="stopped").record().seconds is None


def test_what_a_driver_notes_for_others_to_read_is_passed_over(written):
    written.run().trial().add("priority", trial=0, priority=1.0).start().add("seen by a later cotune", trial=0).end()
    assert written.record().state is TrialState.DONE


def test_a_pause_ends_where_a_trial_that_has_made_room_starts_again(written):
    record = written.run().trial().start().add("pause", trial=0).retry().start().end().record()
    assert (record.rested, record.paused_at) == (2.0, None)


def test_a_trial_that_never_started_waits(written):
    record = written.run().trial(3, x=1).record()
    assert (record.trial, record.params, record.seed, record.state) == (3, {"x": 1}, 103, TrialState.WAITING)
    assert record.folder == written.folder.trial(3).path
    assert record.attempts == 0


def test_a_trial_without_an_end_is_not_final(written):
    record = written.run().trial().start().report(1, loss=0.5).record()
    assert not record.state.is_final


def test_a_finished_trial_comes_back_with_its_measurements(written):
    record = written.run().trial().start(lane=2, device="cpu:1").report(1, loss=0.5).end(0, "done", 100, 50).record()
    assert record.state is TrialState.DONE
    assert record.measures.demand == Demand(100, 50)
    assert (record.device, record.lane, record.attempts) == ("cpu:1", 2, 1)
    assert (record.start, record.end) == (3.0, 5.0)
    assert record.values == [(1, 0.5)]


def test_reports_come_back_as_they_were_written(written):
    record = written.run().trial().start().report(4, loss=0.5, note="é").record()
    (line,) = record.lines
    assert json.loads(line)["metrics"] == {"loss": 0.5, "note": "é"}
    assert record.last_step == 4


def test_a_report_without_the_metric_has_no_value(written):
    record = written.run().trial().start().report(1, loss=0.5).report(2, other=1).record()
    assert math.isnan(record.values[1][1])
    assert record.last_value == 0.5
    assert record.last_step == 2


def test_a_trial_that_never_reported_has_neither_value_nor_step(written):
    record = written.run().trial().start().record()
    assert record.last_value is None
    assert record.last_step is None


def test_a_restart_counts_as_an_attempt_and_keeps_the_first_start(written):
    record = written.run().trial().start(lane=0).retry().start(lane=4, device="cpu:1").record()
    assert record.attempts == 2
    assert (record.lane, record.device) == (4, "cpu:1")
    assert record.start == 3.0


def test_a_trial_starts_when_the_process_it_waited_for_is_there(written):
    assert written.run().trial().start().add("ready", trial=0).record().start == 4.0


def test_a_restart_that_waits_for_a_process_keeps_the_first_start(written):
    assert written.run().trial().start().retry().start().add("ready", trial=0).record().start == 3.0


def test_reports_that_a_restart_makes_again_stand_once(written):
    written.run().trial().start()
    for step in (0, 1, 2):
        written.report(step, loss=float(step))
    written.retry().start()
    for step in (1, 2, 3):
        written.report(step, loss=step + 10.0)
    assert written.record().values == [(0, 0.0), (1, 11.0), (2, 12.0), (3, 13.0)]


def test_reports_after_a_checkpoint_that_come_no_more_stand(written):
    written.run().trial().start()
    for step in (0, 1, 2):
        written.report(step, loss=float(step))
    written.retry().start().report(3, loss=3.0)
    assert [step for step, _ in written.record().values] == [0, 1, 2, 3]


def test_a_restart_from_nothing_takes_back_every_report(written):
    written.run().trial().start().report(0, loss=9.0).report(1, loss=8.0).retry().start().report(0, loss=5.0)
    assert written.record().values == [(0, 5.0)]


def test_without_a_restart_a_step_may_come_twice(tmp_path):
    record = new_record(tmp_path)
    record.starts("cpu:0", 0, 1.0)
    for step in (3, 3, 1):
        record.add(made(step))
    assert [step for step, _ in record.values] == [3, 3, 1]


def test_only_the_first_report_after_a_restart_takes_others_back(tmp_path):
    record = new_record(tmp_path)
    for attempt_steps in ((0, 1, 2), (2, 0)):
        record.starts("cpu:0", 0, 1.0)
        for step in attempt_steps:
            record.add(made(step))
    assert [step for step, _ in record.values] == [0, 1, 2, 0]


def test_lines_and_values_stay_together_over_restarts(tmp_path):
    record = new_record(tmp_path)
    for attempt_steps in ((0, 1, 2), (1, 2), (0,)):
        record.starts("cpu:0", 0, 1.0)
        for step in attempt_steps:
            record.add(made(step))
        assert record.lines == [b"%d\n" % step for step, _ in record.values]


def test_a_failed_trial_comes_back_with_its_error(written):
    record = (
        written.run().trial().start().end(0, "failed", error=["TrialTooLarge", "needs 9 GiB", "shrink it"]).record()
    )
    assert type(record.error) is TrialTooLarge
    assert (record.error.message, record.error.hint) == ("needs 9 GiB", "shrink it")


def test_an_error_of_a_class_unknown_here_is_a_failed_trial(written):
    record = written.run().trial().start().end(0, "failed", error=["Unheard", "it broke", ""]).record()
    assert type(record.error) is TrialFailed
    assert record.error.message == "it broke"


def test_an_error_named_like_something_else_in_the_module_is_a_failed_trial(written):
    record = written.run().trial().start().end(0, "failed", error=["Any", "it broke", ""]).record()
    assert type(record.error) is TrialFailed


@pytest.mark.parametrize("state", ["done", "stopped", "failed"])
def test_what_an_end_says_reads_back_the_same(written, tmp_path, state):
    error = LaneDied("trial 0: killed by SIGSEGV", hint="see log.txt") if state == "failed" else None
    measures = Measures(Demand(7, 3), expected=12, seconds=3.0, expected_seconds=2.5, slowdown=1.2, speed=0.5)
    before = new_record(tmp_path, state=TrialState(state), measures=measures, error=error, lasted=8.0)
    written.run().trial().add("end", **end_event(before))
    after = written.record()
    assert (after.state, after.measures, after.lasted) == (before.state, before.measures, before.lasted)
    assert type(after.error) is type(before.error)
    assert str(after.error) == str(before.error)


def test_the_end_of_an_unmeasured_trial_reads_back(written, tmp_path):
    written.run().trial().add("end", **end_event(new_record(tmp_path, state=TrialState.STOPPED)))
    assert written.record().measures.demand is None


def test_trials_come_back_in_order_whatever_order_they_ended_in(written):
    written.run().trial(1).trial(0).start(1).start(0).end(1).end(0)
    assert [record.trial for record in written.read().records] == [0, 1]


def test_trials_do_not_mix(written):
    written.run().trial(0).trial(1).start(0).start(1)
    written.report(1, trial=0, loss=1.0).report(1, trial=1, loss=2.0).end(1)
    first, second = written.read().records
    assert (first.last_value, second.last_value) == (1.0, 2.0)
    assert (first.state.is_final, second.state.is_final) == (False, True)


def test_events_of_a_trial_whose_beginning_was_never_written_are_passed_over(written):
    assert written.run().start(5).report(1, trial=5, loss=1.0).read().records == []


def test_a_trial_whose_checkpoint_found_no_room_is_run_again(written):
    no_room = ["StorageError", "trial 0: no space left", "make room"]
    record = written.run().trial().start().report(1, loss=1.0).end(state="failed", error=no_room).record()
    assert not record.state.is_final
    assert record.error is None


def test_another_version_is_refused_with_both_numbers(written):
    with pytest.raises(StorageError) as refused:
        written.run(version=VERSION + 1).trial().read()
    assert f"version {VERSION + 1}" in refused.value.message
    assert f"version {VERSION}" in refused.value.message
    assert "name=" in refused.value.hint


def test_another_version_is_refused_before_its_events_are_understood(written):
    with pytest.raises(StorageError, match=f"version {VERSION + 1}"):
        written.run(version=VERSION + 1).add("trial", number=0, parameters={}).read()


def test_a_session_of_another_version_is_refused_behind_one_of_this(written):
    with pytest.raises(StorageError, match=f"version {VERSION + 1}"):
        written.run().trial().run(version=VERSION + 1).read()


def test_a_file_without_a_run_is_refused(written):
    with pytest.raises(StorageError, match="does not begin with a run"):
        written.read()


@pytest.mark.parametrize(
    "fields",
    [
        {"event": "report"},
        {"event": "report", "step": "1", "metrics": {"loss": 0.5}},
        {"event": "end", "state": "odd"},
        {"event": "end", "state": "failed", "error": ""},
        {"event": "trial"},
        {"event": "start"},
        {"event": "trial", "params": None, "seed": 1},
        {"event": "trial", "params": {}, "seed": "1"},
        {"event": "run", "version": VERSION, "constants": None},
        {"event": "run", "version": VERSION, "options": None},
        {"event": "end", "state": "done", "error": None, "persistent": "1", "ephemeral": 1},
        {"event": "end", "state": "done", "error": None, "persistent": 1, "ephemeral": 1, "busy": "much"},
        {"event": "end", "state": "done", "error": None, "persistent": 1, "ephemeral": 1, "busy": math.inf},
        {"event": "end", "state": "done", "error": None, "persistent": 1, "ephemeral": -1},
        {"event": "end", "state": "done", "error": None, "persistent": None, "seconds": "1"},
        {"event": "end", "state": "done", "error": None, "persistent": None, "expected_seconds": 10**400},
    ],
)
def test_a_line_that_lacks_something_is_named_with_a_way_out(written, fields):
    with pytest.raises(StorageError, match=r"line 3 of .* makes no sense") as refused:
        written.run().trial().add(**fields, trial=0).read()
    assert "cut off that line" in refused.value.hint


def test_a_run_has_started_once_a_trial_has_or_its_file_cannot_be_told(written):
    written.log.flush()
    assert not has_started(written.folder), "its driver died before the first event"
    written.run().trial().log.flush()
    assert not has_started(written.folder)
    written.start().log.flush()
    assert has_started(written.folder)
    written.folder.events.write_text("{}\n")
    assert has_started(written.folder)


@pytest.mark.parametrize("time", [1e308, -1.0, math.nan, "noon", None])
def test_a_line_with_an_impossible_time_is_named(written, time):
    written.run().trial().log.close()
    with open(written.folder.events, "a") as events:
        events.write(json.dumps({"event": "start", "time": time, "trial": 0, "device": "cpu:0", "lane": 1}) + "\n")
    with pytest.raises(StorageError, match=r"line 3 of .* is not an event"):
        read_run(written.folder)


def test_a_line_too_deep_to_read_is_named(written):
    written.run().trial().log.close()
    with open(written.folder.events, "ab") as events:
        events.write(b"[" * 100_000 + b"]" * 100_000 + b"\n")
    with pytest.raises(StorageError, match=r"line 3 of .* is not an event"):
        read_run(written.folder)


def test_a_torn_last_line_costs_only_that_event(written):
    written.run().trial().start().report(1, loss=0.5).report(2, loss=0.25).log.close()
    content = written.folder.events.read_bytes()
    written.folder.events.write_bytes(content[:-4])
    (record,) = read_run(written.folder).records
    assert record.values == [(1, 0.5)]


@pytest.mark.parametrize(("mode", "best"), [("min", 1), ("max", 2)])
def test_the_best_finished_record_is_chosen_by_mode(tmp_path, mode, best):
    records = [
        Record(number, {}, {}, 0, tmp_path, state=TrialState.DONE, values=[(0, value)])
        for number, value in enumerate([2.0, 1.0, 3.0])
    ]
    assert best_of(records, mode).trial == best


def test_unfinished_records_are_never_best(tmp_path):
    records = [
        Record(number, {}, {}, 0, tmp_path, state=state, values=[(0, float(number))])
        for number, state in enumerate([TrialState.STOPPED, TrialState.FAILED, TrialState.RUNNING, TrialState.DONE])
    ]
    assert best_of(records, "min").trial == 3
    assert best_of(records[:3], "min") is None


def test_the_first_of_equally_good_records_is_best(tmp_path):
    records = [Record(number, {}, {}, 0, tmp_path, state=TrialState.DONE, values=[(0, 1.0)]) for number in range(3)]
    assert best_of(records, "min").trial == best_of(records, "max").trial == 0


def test_parameters_are_kept_as_json_keeps_them():
    assert json_safe({"a": (1, 2), "b": {"c": 1.5}}) == {"a": [1, 2], "b": {"c": 1.5}}


def test_a_trial_that_starts_after_an_earlier_session_ended_it_is_not_over(written):
    error = ["InputError", "priority= raised", "mend it"]
    record = written.run().trial().end(0, "failed", error=error).run().start().record()
    assert record.state is TrialState.WAITING
    assert (record.error, record.end) == (None, None)
