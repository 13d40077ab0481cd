"""What is read back of a run without running it."""

from pathlib import Path

import numpy as np
import pytest

import cotune
from cotune._load import runs_in
from cotune.paths import RunFolder
from cotune.record import VERSION, EventLog, Records
from cotune.trial import TrialState


@pytest.fixture
def folder(tmp_path):
    """A run of which one trial is done, one has begun, and one has not."""
    folder = RunFolder(tmp_path / "mine")
    folder.create()
    log = EventLog(folder.events)
    constants = {"opt/decay": 0.1, "data": [1, 2]}
    log.write("run", 0.0, version=VERSION, metric="loss", mode="min", seed=1, constants=constants)
    records = Records(folder, log, "min", 1)
    for trial in range(3):
        records.proposed(trial, {"opt/name": "adam", "lr": 0.1 * trial}, {})
    for trial in range(2):
        records.starts(trial, "cpu:0", trial)
    records.ends(records[0], TrialState.DONE)
    log.close()
    return folder


def states(results):
    return [str(trial.state) for trial in results]


def test_a_run_that_was_killed_is_interrupted(folder, tmp_path):
    results = cotune.load("mine", tmp_path)
    assert states(results) == ["done", "interrupted", "waiting"]
    assert results.interrupted
    assert results[1].config == {"opt": {"name": "adam", "decay": 0.1}, "lr": 0.1, "data": [1, 2]}
    assert (results[1].device, results[1].lane) == ("cpu:0", 1)


def test_a_run_that_ended_before_its_first_trial_is_interrupted(folder, tmp_path):
    first, *_ = folder.events.read_text().splitlines(keepends=True)
    folder.events.write_text(first)
    results = cotune.load("mine", tmp_path)
    assert results.interrupted
    assert states(results) == []


def test_a_run_that_goes_on_is_running(folder, tmp_path):
    with folder.locked():
        results = cotune.load("mine", tmp_path)
    assert states(results) == ["done", "running", "waiting"]
    assert not results.interrupted


def test_a_run_that_is_not_there_is_told_with_those_that_are(folder, tmp_path):
    with pytest.raises(cotune.InputError, match="no run named 'yours' is in") as raised:
        cotune.load("yours", tmp_path)
    assert "mine" in raised.value.hint


@pytest.mark.parametrize("name", [None, 5, Path("mine")])
def test_what_is_not_a_name_is_refused(folder, tmp_path, name):
    with pytest.raises(cotune.InputError, match="is not the name of a run"):
        cotune.load(name, tmp_path)


@pytest.mark.parametrize("storage", [5, b"runs", "", "sqlite:///runs.db"])
def test_a_storage_that_is_no_folder_is_refused_as_by_a_run(storage):
    with pytest.raises(cotune.InputError, match="is not a folder") as raised:
        cotune.load("mine", storage)
    assert repr(storage) in str(raised.value)
    assert "optuna.load_study()" in raised.value.hint


def test_a_run_that_is_removed_while_others_are_looked_for_is_not_among_them(tmp_path):
    class Removed(type(tmp_path)):
        """A path whose file is gone once its name was seen."""

        def is_file(self):
            found = super().is_file()
            if self.parent.name == "gone":
                self.unlink()
            return found

    for name in ("gone", "stays"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "events.jsonl").touch()
    assert runs_in(Removed(tmp_path)) == ["stays"]


def test_the_path_of_a_run_is_refused_with_the_name_to_pass(tmp_path):
    with pytest.raises(cotune.InputError, match="is a path") as refused:
        cotune.load(f"{tmp_path}/mine")
    assert "'mine'" in refused.value.hint
    assert f"{str(tmp_path)!r}" in refused.value.hint


def test_the_folder_of_a_study_is_not_a_run(tmp_path):
    folder = RunFolder(tmp_path / "study")
    folder.create()
    log = EventLog(folder.events)
    log.write("run", 0.0, version=VERSION, name="study", study="of-mine", seed=1)
    log.close()
    with pytest.raises(cotune.InputError, match="belongs to the Optuna study 'of-mine'"):
        cotune.load("study", tmp_path)


def test_options_and_constants_are_as_json_keeps_them(tmp_path):
    space = {
        "layers": cotune.choice([[64], [64, 64]]),
        "size": cotune.choice([(3, 4)]),
        "mixed": cotune.choice([True, 1]),
        "opt": cotune.choice([{"name": "sgd", "lr": 0.1}]),
        "by_number": cotune.choice([{1: "a"}]),
        "act": cotune.choice([abs]),
        "text": "x" * 3000,
        "scalar": np.float32(3),
        "array": np.ones(3),
    }
    ran = cotune.run(
        lambda config: float(len(config["layers"])), space, metric="loss", sampler="grid", lanes=1,
        devices=["cpu:0@1GiB"], storage=tmp_path, name="mine", dashboard=False,
    )  # fmt: skip
    loaded = cotune.load("mine", tmp_path)
    for trial, before in zip(loaded, ran, strict=True):
        for name in ("layers", "mixed", "opt", "text"):
            assert trial.config[name] == before.config[name]
            assert type(trial.config[name]) is type(before.config[name])
        assert trial.config["size"] == [3, 4]
        assert trial.config["scalar"] == 3.0
        assert trial.config["by_number"] == "0: {1: 'a'}"
        assert trial.config["act"] == "0: abs"
        assert isinstance(trial.config["array"], str)
    assert {tuple(trial.config["layers"]) for trial in loaded} == {(64,), (64, 64)}


def test_configs_are_those_that_trials_had_where_they_were_rounded(tmp_path):
    space = {
        "width": cotune.qloguniform(8, 512, 8),
        "drop": cotune.quniform(0, 1, 0.1),
        "layers": cotune.choice([1, 2]),
    }
    results = cotune.run(
        lambda config: config["drop"], space, metric="loss", trials=8, devices=["cpu:0"], storage=tmp_path, name="q",
        dashboard=False, seed=3,
    )  # fmt: skip
    assert [trial.config for trial in cotune.load("q", tmp_path)] == [trial.config for trial in results]


def test_options_that_a_later_session_has_added_are_known_too(tmp_path):
    def run(options, trials):
        return cotune.run(
            lambda config: 0.0, {"layers": cotune.choice(options)}, metric="loss", trials=trials, sampler="grid",
            devices=["cpu:0"], storage=tmp_path, name="grown", dashboard=False, resume=True,
        )  # fmt: skip

    run([[1], [2, 2]], 2)
    run([[1], [2, 2], [3, 3, 3]], 3)
    assert sorted(trial.config["layers"] for trial in cotune.load("grown", tmp_path)) == [[1], [2, 2], [3, 3, 3]]


def test_a_trial_that_lifts_its_limits_or_stops_its_clock_leaves_a_run_that_can_be_read(tmp_path):
    def train(config):
        import sys
        import time

        if config["how"] == "digits":
            sys.set_int_max_str_digits(0)
            cotune.report({"loss": 1.0, "n": 10**5000})
        elif config["how"] == "clock":
            time.time = lambda: float("nan")
            cotune.report({"loss": 1.0})
        cotune.report({"loss": 2.0})

    space = {"how": cotune.choice(["digits", "clock", "neither"])}
    run = {"metric": "loss", "storage": tmp_path, "name": "r", "dashboard": False, "sampler": "grid"}
    results = cotune.run(train, space, devices=["cpu:0"], reuse=False, **run)
    loaded = cotune.load("r", storage=tmp_path)
    for found in (results, loaded):
        by = {trial.config["how"]: trial for trial in found.trials}
        assert {how: trial.state for how, trial in by.items()} == {
            "digits": TrialState.FAILED,
            "clock": TrialState.DONE,
            "neither": TrialState.DONE,
        }
        assert [report["loss"] for report in by["clock"].history] == [1.0, 2.0]
