"""What is shown of a run."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from cotune.dashboard.display import Display
from cotune.dashboard.snapshot import RunningView
from cotune.packer import Packer, PackerOptions
from cotune.paths import RunFolder
from cotune.record import Records
from cotune.record.events import EventLog
from cotune.trial import TrialState


def test_a_note_that_quotes_control_characters_does_nothing_to_a_terminal(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    log = EventLog(folder.events)
    display = Display(None, "loss", 3, Records(folder, log, "", 0), Packer(PackerOptions()))
    display.note = "trial 3 failed: ValueError: \x1b[2J\r\x9b31m 日本 \udc80"
    assert display.snapshot().note == "trial 3 failed: ValueError: �[2J��31m 日本 �"
    log.close()


def running(seconds):
    return [RunningView(trial, since, None, None, None) for trial, since in enumerate(seconds)]


def test_the_time_left_goes_by_how_long_the_trials_of_this_session_took(monkeypatch):
    counts = {"done": 10, "stopped": 0, "failed": 0}
    records = SimpleNamespace(counts=counts, first_start=100.0, ended_seconds=0.0)
    packer = SimpleNamespace(held=0)
    display = Display(None, "loss", 22, records, packer)
    now = SimpleNamespace(value=100.0)
    monkeypatch.setattr(time, "monotonic", lambda: now.value)
    assert display._seconds_left(running([0.0, 0.0])) is None
    # Twelve trials of 10 s each, two at once: as much less is left as time goes by.
    for seconds in range(11, 60):
        over, since = divmod(seconds, 10)
        now.value, records.ended_seconds = 100.0 + seconds, 20.0 * over
        counts.update(done=10 + 2 * over)
        expected = pytest.approx(60 - seconds, abs=0.5)
        assert display._seconds_left(running([float(since)] * 2)) == expected
    # The last one takes longer than the others did.
    now.value, records.ended_seconds = 190.0, 110.0
    counts.update(done=19, stopped=1, failed=1)
    assert display._seconds_left(running([40.0])) == pytest.approx(4.0)
    packer.held = 1
    assert display._seconds_left(running([40.0])) is None
    packer.held = 0
    display.ends("interrupted")
    assert (display.note, display._seconds_left([])) == ("interrupted", None)


def test_a_last_trial_that_runs_alone_takes_as_long_as_it_takes(monkeypatch):
    records = SimpleNamespace(counts={"done": 0}, first_start=100.0, ended_seconds=80.0)
    display = Display(None, "loss", 9, records, SimpleNamespace(held=0))
    records.counts["done"] = 8
    monkeypatch.setattr(time, "monotonic", lambda: 121.0)
    assert display._seconds_left(running([1.0])) == pytest.approx(9.0)


def test_one_that_failed_at_once_does_not_say_how_long_trials_take(monkeypatch):
    records = SimpleNamespace(counts={"failed": 0}, first_start=100.0, ended_seconds=0.1)
    display = Display(None, "loss", 50, records, SimpleNamespace(held=0))
    records.counts["failed"] = 1
    monkeypatch.setattr(time, "monotonic", lambda: 120.1)
    # Two at once have run for 20 s, and 47 wait.
    assert display._seconds_left(running([20.0, 20.0])) == pytest.approx(47 * 20 / 2, rel=0.02)


def test_a_run_that_ends_early_starts_no_lanes_any_more(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    log = EventLog(folder.events)
    display = Display(None, "loss", 3, Records(folder, log, "", 0), Packer(PackerOptions()))
    assert display.snapshot().is_starting
    display.ends("interrupted")
    assert not display.snapshot().is_starting
    log.close()


def test_at_the_end_of_a_run_that_was_interrupted_it_says_how_to_go_on(tmp_path):
    folder, shown = RunFolder(tmp_path / "run"), []
    folder.create()
    log = EventLog(folder.events)
    view = SimpleNamespace(close=lambda snapshot: shown.append(snapshot.note))
    display = Display(view, "loss", 3, Records(folder, log, "", 0), Packer(PackerOptions()))
    display.ends("interrupted", "press again to end at once", "go on with resume=True")
    assert display.note == "interrupted: press again to end at once"
    display.close()
    display.note = "trial 3 failed: ValueError"
    display.close()
    assert shown == ["interrupted; go on with resume=True", "trial 3 failed: ValueError"]
    log.close()


def test_no_time_is_said_to_be_left_before_a_trial_has_started(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    log = EventLog(folder.events)
    records = Records(folder, log, "min", 0)
    display = Display(None, "loss", 100, records, Packer(PackerOptions()))
    # As one that an earlier session has stopped.
    records.ends(records.proposed(0, {}, {}), TrialState.STOPPED)
    assert display.snapshot().seconds_left is None
    log.close()


def test_what_earlier_sessions_have_run_beyond_the_trials_of_this_one_is_part_of_the_total(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    log = EventLog(folder.events)
    records = Records(folder, log, "min", 0)
    for trial in range(4):
        records.ends(records.proposed(trial, {}, {}), TrialState.STOPPED)
    shown = [Display(None, "loss", trials, records, Packer(PackerOptions())).snapshot() for trials in (3, 5, None)]
    assert [snapshot.total for snapshot in shown] == [4, 5, None]
    log.close()
