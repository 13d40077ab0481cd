"""`cotune show`."""

import json

import pytest

from cotune.cli import main
from cotune.errors import TrialFailed
from cotune.paths import RunFolder
from cotune.record import VERSION, EventLog, Records
from cotune.trial import Report, TrialState


@pytest.fixture
def storage(tmp_path):
    folder = RunFolder(tmp_path / "mine")
    folder.create()
    log = EventLog(folder.events)
    log.write("run", 0.0, version=VERSION, metric="loss", mode="min", seed=1, constants={"width": 3})
    records = Records(folder, log, "min", 1)
    ends = [(0.3, TrialState.DONE), (0.1, TrialState.STOPPED), (0.2, TrialState.DONE), (None, TrialState.FAILED)]
    for trial, (loss, state) in enumerate(ends):
        records.proposed(trial, {"lr": 0.1 * trial}, {})
        records.starts(trial, "cpu:0", 0)
        if loss is not None:
            line = {"event": "report", "time": 1.0, "trial": trial, "step": 0, "metrics": {"loss": loss}}
            records.reported(Report(trial, 0, 0, loss, json.dumps(line).encode() + b"\n"))
        records[trial].error = (
            TrialFailed(f"trial {trial}: too \x1b[2Jbad", hint="") if state is TrialState.FAILED else None
        )
        records.ends(records[trial], state)
    log.close()
    return tmp_path


def test_it_shows_the_best_first_and_what_has_failed(storage, capsys):
    assert main(["show", "mine", "--storage", str(storage), "--trials", "2"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("Results 'mine': 4 trials (2 done, 1 stopped, 1 failed)")
    assert [line.split() for line in out[-3:]] == [
        ["2", "done", "loss=0.2", "lr=0.2"],
        ["0", "done", "loss=0.3", "lr=0"],
        ["trial", "3:", "too", "\N{REPLACEMENT CHARACTER}[2Jbad"],
    ], "the error does nothing to a terminal"


def test_json_has_no_numbers_that_json_does_not_know(storage, capsys):
    events = storage / "mine" / "events.jsonl"
    events.write_text(events.read_text().replace('"width": 3', '"width": NaN').replace('"width":3', '"width":NaN'))
    assert main(["show", "mine", "--storage", str(storage), "--json"]) == 0
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert told["trials"][0]["config"]["width"] is None


def test_it_gives_everything_as_json(storage, capsys):
    assert main(["show", "mine", "--storage", str(storage), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [trial["state"] for trial in told["trials"]] == ["done", "stopped", "done", "failed"]
    assert told["trials"][1]["metrics"] == {"loss": 0.1}
    assert told["trials"][3]["error"] == "trial 3: too \x1b[2Jbad"
    assert {"expected", "slowdown", "expected_seconds"} < set(told["trials"][0])


def test_without_a_name_json_has_all_runs(storage, capsys):
    assert main(["show", "--storage", str(storage), "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["name"], told["trials"]) == ("mine", {"done": 2, "stopped": 1, "failed": 1})
    assert main(["show", "mine", "--storage", str(storage), "--trials", "-1"]) == 2


def test_without_a_name_it_lists_the_runs(storage, capsys):
    assert main(["show", "--storage", str(storage)]) == 0
    assert capsys.readouterr().out.startswith("Results 'mine': 4 trials (2 done")
    assert main(["show", "--storage", str(storage / "mine")]) == 0
    assert "no runs in" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("good", "damaged"), [('"metric":"loss",', ""), ('"mode":"min"', '"mode":3'), ('"time":0.0', '"time":"now"')]
)
def test_a_damaged_run_is_named_and_the_others_are_listed(storage, capsys, good, damaged):
    other = RunFolder(storage / "other")
    other.create()
    text = (storage / "mine" / "events.jsonl").read_text().replace('": ', '":').replace(", ", ",")
    assert good in text
    other.events.write_text(text.replace(good, damaged, 1))
    assert main(["show", "--storage", str(storage)]) == 0
    out = capsys.readouterr().out
    assert "Results 'mine': 4 trials" in out
    assert "other" in out


def test_a_storage_that_cannot_be_read_is_an_error(storage, capsys):
    assert main(["show", "--storage", str(storage / "mine" / "events.jsonl")]) == 2
    assert "cannot be read: Not a directory" in capsys.readouterr().err


def test_a_run_that_is_not_there_is_an_error(storage, capsys):
    assert main(["show", "yours", "--storage", str(storage)]) == 2
    assert "hint: the newest there: mine" in capsys.readouterr().err


def test_a_name_like_that_of_a_run_is_answered_with_that(storage, capsys):
    assert main(["show", "min", "--storage", str(storage)]) != 0
    assert "hint: did you mean mine?" in capsys.readouterr().err
