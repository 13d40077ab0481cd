"""The command line: what it prints, and what it says when something is wrong."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from cotune.cli import main

QUICK = ["simulate", "--workload", "salus-100", "--jobs", "12"]


def test_figures_of_a_generated_workload(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--policy", "srtf", "--devices", "2"]) == 0
    out = capsys.readouterr().out
    assert "salus-100 on 2 device(s), policy srtf" in out
    for word in ("makespan", "completion", "waiting", "best lower bound", "12 trials"):
        assert word in out


def test_figures_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["makespan"] >= figures["lower_bound"] > 0
    assert figures["trials"] == 12


def test_the_bound_is_of_as_many_lanes_as_were_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "light.csv"
    path.write_text("seconds,busy\n" + "10,0.01\n" * 32)
    assert main(["simulate", "--csv", str(path), "--width", "32", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["makespan"] >= figures["lower_bound"]


def test_where_no_job_fits_nothing_is_said_of_a_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "large.csv"
    path.write_text("seconds,peak_mib\n10,99999\n")
    assert main(["simulate", "--csv", str(path)]) == 0
    out = capsys.readouterr().out
    assert "1 too large for a device" in out
    assert "bound" not in out


def test_a_job_that_is_too_large_counts_in_no_average(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("seconds,peak_mib\n100,10\n10,99999\n")
    assert main(["simulate", "--csv", str(path), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["completion"] == pytest.approx(100, rel=0.02)


def test_a_policy_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_policy.py").write_text(
        "from cotune.packer.policies import Policy\n"
        "class Latest(Policy):\n"
        "    name = 'latest'\n"
        "    def key(self, waiting): return (-waiting.arrival,)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    assert main([*QUICK, "--policy", "own_policy:Latest"]) == 0
    assert "policy latest" in capsys.readouterr().out
    assert main([*QUICK, "--policy", "own_policy:Nope"]) == 2
    assert "--policy own_policy:Nope cannot be made" in capsys.readouterr().err
    assert main([*QUICK, "--policy", ":Latest"]) == 2
    assert "--policy :Latest cannot be made" in capsys.readouterr().err


def test_drawings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "out.json"
    assert main([*QUICK, "--gantt", "--trace", str(trace)]) == 0
    assert "gpu 0 lane" in capsys.readouterr().out
    assert json.loads(trace.read_text())["traceEvents"]


def test_a_drawing_does_not_overwrite_the_table_it_is_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "jobs.csv"
    table.write_text("seconds\n1\n")
    assert main(["simulate", "--csv", str(table), "--trace", str(table)]) == 2
    assert "would overwrite --csv" in capsys.readouterr().err
    assert table.read_text() == "seconds\n1\n"


def test_a_seed_of_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "jobs.csv"
    table.write_text("seconds\n1\n")
    assert main(["simulate", "--csv", str(table), "--seed", "1"]) == 2
    assert "--seed" in capsys.readouterr().err
    assert main(["simulate", "--csv", str(table), "--seed", "1", "--error", "0.5"]) == 0


def test_a_narrow_terminal_that_knows_few_characters_gets_a_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    out = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(out, encoding="ascii", write_through=True))
    assert main([*QUICK, "--gantt"]) == 0
    rows = [line for line in out.getvalue().decode().splitlines() if "gpu 0 lane" in line]
    assert rows
    assert max(map(len, rows)) == 50
    assert any("#" in row for row in rows)


def test_a_trace_that_cannot_be_written_is_refused_before_anything_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cotune.cli.simulate.simulate", None)
    assert main([*QUICK, "--trace", "/nowhere/at/all.json"]) == 2


def test_a_table_of_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("iterations,step_seconds,persistent_mib,ephemeral_mib\n10,1,10,10\n")
    assert main(["simulate", "--csv", str(path), "--learn"]) == 0
    assert "mine on 1 device(s)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workload", "nope"], "choose one of salus-100"),
        ([*QUICK[1:], "--policy", "best"], "choose one of makespan"),
        ([*QUICK[1:], "--policy", ""], "choose one of makespan"),
        ([*QUICK[1:], "--gpus", "9" * 5000], "--gpus 99999999999999999999 is not a count"),
        ([*QUICK[1:], "--gpus", "0"], "--gpus 0 is not a count"),
        ([*QUICK[1:], "--devices", "many"], "--devices many is not a count"),
        ([*QUICK[1:], "--residents=0"], "--residents 0 is not a count"),
        ([*QUICK[1:], "--width", "-1"], "--width -1"),
        ([*QUICK[1:], "--memory", "much"], "'much' is not a size"),
        ([*QUICK[1:], "--error", "50"], "give 0.5 for 50%"),
        ([*QUICK[1:], "--memory", "16"], "--memory 16 is less than 1 MiB"),
        ([*QUICK[1:], "--busy", "2"], "--busy 2.0"),
        ([*QUICK[1:], "--busy", "0.5"], "--busy says something of --run only"),
        (["--run", "nope", "--jobs", "5"], "--jobs says something of --workload only"),
        ([*QUICK[1:], "--jobs", "0"], "0 jobs"),
        ([*QUICK[1:], "--trace", "/nowhere/at/all.json"], "choose another --trace"),
        ([*QUICK[1:], "--memory", ""], "'' is not a size"),
        (["--csv", "/nowhere.csv"], "check the path"),
        (["--run", "", "--storage", "/nowhere"], "cannot name a folder"),
        (
            ["--run", "nope", "--storage", "/nowhere"],
            "no run named 'nope' is in /nowhere",
        ),
    ],
)
def test_what_is_wrong_ends_with_2_and_a_hint(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *arguments]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "hint:" in err
    assert "Traceback" not in err


def test_a_run_that_is_not_there_is_told_with_those_that_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/events.jsonl").touch()
    assert main(["simulate", "--run", "yours", "--storage", str(tmp_path)]) == 2
    assert "the newest there: mine" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["nope"],
        ["simulate"],
        ["simulate", "--seed", "many"],
        [*QUICK, "--json", "--gantt"],
        [*QUICK, "--learn", "--error", "0.5"],
    ],
)
def test_what_argparse_refuses_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2
    assert "usage: cotune" in capsys.readouterr().err
