"""`cotune.run(pruner="asha-promote")` with real processes: trials pause at rungs, the best go on."""

import os
import time

import cotune
from cotune.search.promotion import AshaPromote

MIB = 1 << 20


OPTIONS = {"sampler": "grid", "pruner": AshaPromote(1, 3), "lanes": 1, "grants": False}


def climb(config):
    held = os.urandom(8 * MIB)
    for step in range(1, 10):
        cotune.report({"loss": config["x"] + 1 / step, "process": os.getpid()}, step=step)
    assert len(held) == 8 * MIB


NINE = {"x": cotune.choice([4, 7, 1, 8, 0, 3, 6, 2, 5])}


def test_the_best_third_goes_on_from_each_rung_and_the_rest_ends_as_stopped_with_its_metrics(run):
    found = run(climb, NINE)
    steps = {trial.config["x"]: len(trial.history) for trial in found}
    # Rungs at 1, 3 and 9: of nine the best three go on from the first, of those the best one from the second.
    assert [trial.config["x"] for trial in found if trial.state == "done"] == [0]
    assert found.best.config["x"] == 0
    assert steps[0] == 9
    assert {x for x, count in steps.items() if count >= 3} >= {0, 1, 2}
    assert all(trial.state == "stopped" and trial.metrics["loss"] for trial in found if trial.config["x"])
    assert {trial.attempts for trial in found} == {1}


def test_a_promoted_trial_goes_on_in_the_process_where_it_waited(run):
    found = run(climb, NINE)
    assert {len({report["process"] for report in trial.history}) for trial in found} == {1}


def test_where_too_few_come_to_a_rung_the_best_of_them_finishes(run):
    found = run(climb, {"x": cotune.choice([1, 0])})
    assert [trial.state for trial in sorted(found, key=lambda trial: trial.config["x"])] == ["done", "stopped"]


def test_paused_trials_make_room_and_start_again_from_their_checkpoints(run):
    def train(config):
        saved = cotune.restore()
        start = int((saved / "step").read_text()) if saved else 0
        held = bytearray(os.urandom(MIB)) * 150
        for step in range(start + 1, 10):
            cotune.report({"loss": config["x"] + 1 / step}, step=step)
            with cotune.checkpoint() as path:
                (path / "step").write_text(str(step))
        assert held

    found = run(train, NINE, devices=["cpu:0@700MiB"])
    assert [trial.config["x"] for trial in found if trial.state == "done"] == [0]
    assert [report["step"] for report in found.best.history] == list(range(1, 10))
    assert max(trial.attempts for trial in found) > 1
    assert not found.errors


def test_a_run_with_paused_trials_can_be_interrupted_and_resumed(run, tmp_path, monkeypatch):
    monkeypatch.setattr("cotune.packer.lane_events.STOP_GRACE", 0.5)
    stuck = tmp_path / "stuck"

    def train(config):
        saved = cotune.restore()
        start = int((saved / "step").read_text()) if saved else 0
        for step in range(start + 1, 10):
            while config["x"] == 5 and not stuck.exists():
                stuck.write_text("")
                time.sleep(60)
            cotune.report({"loss": config["x"] + 1 / step}, step=step)
            with cotune.checkpoint() as path:
                (path / "step").write_text(str(step))

    began = run(train, NINE, time_budget=2, name="again", lanes=2)
    assert began.interrupted
    assert "interrupted" in {trial.state for trial in began}
    found = run(train, NINE, name="again", resume=True, lanes=2)
    assert len(found) == 9
    assert {trial.state for trial in found} == {"done", "stopped"}
    assert found.best.config["x"] == 0
    # Nobody has gone on past a rung because of the interruption.
    assert {trial.history[-1]["step"] for trial in found if trial.state == "stopped"} <= {1, 3}


def test_the_time_of_a_trial_is_that_in_which_it_ran(run, tmp_path):
    from cotune.paths import RunFolder
    from cotune.record import read_run

    run(climb, NINE, name="timed")
    records = read_run(RunFolder(tmp_path / "timed")).records
    assert all(record.rested > 0 for record in records)
    assert all(record.paused_at is None for record in records)
