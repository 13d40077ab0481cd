"""What a run gives back."""

import json
import os
import sys
from pathlib import Path

import pytest

from cotune.demand import MIB
from cotune.errors import InputError, NoResult, TrialFailed
from cotune.paths import TrialFolder
from cotune.results import Results, TrialResult
from cotune.trial import TrialState


def line(step, time=0.0, /, **metrics):
    return json.dumps({"event": "report", "time": time, "trial": 0, "step": step, "metrics": metrics}).encode() + b"\n"


def trial(number, *lines, state=TrialState.DONE, config=None, **fields):
    return TrialResult(number, config or {"x": number}, state, _lines=lines, **fields)


def results(*trials, metric="loss", mode="min", **fields):
    return Results(trials, metric, mode, "my-run", Path("/runs/my-run"), 12.34, **fields)


def failed(number, message="ValueError: no"):
    return trial(number, state=TrialState.FAILED, error=TrialFailed(f"trial {number}: {message}", hint="look"))


@pytest.mark.parametrize(("mode", "best"), [("min", 1), ("max", 2)])
def test_the_best_trial_is_chosen_by_mode(mode, best):
    found = results(*(trial(n, line(1, loss=v)) for n, v in enumerate([2.0, 1.0, 3.0])), mode=mode)
    assert found.best.id == best


def test_the_last_report_counts_not_the_best_one():
    found = results(trial(0, line(1, loss=0.0), line(2, loss=5.0)), trial(1, line(1, loss=3.0)))
    assert found.best.id == 1


def test_a_last_report_without_the_metric_leaves_the_value_before():
    found = results(trial(0, line(1, loss=1.0), line(2, other=5.0)), trial(1, line(1, loss=3.0)))
    assert found.best.id == 0


def test_a_stopped_trial_is_not_best_while_one_has_finished():
    found = results(trial(0, line(1, loss=0.0), state=TrialState.STOPPED), trial(1, line(1, loss=3.0)))
    assert found.best.id == 1


def test_where_the_pruner_stopped_every_trial_the_best_of_those_is_best():
    found = results(*(trial(n, line(1, loss=v), state=TrialState.STOPPED) for n, v in enumerate([2.0, 1.0])))
    assert found.best.id == 1


@pytest.mark.parametrize("state", [TrialState.FAILED, TrialState.INTERRUPTED])
def test_failed_and_interrupted_trials_are_never_best(state):
    with pytest.raises(NoResult):
        _ = results(trial(0, line(1, loss=0.0), state=state)).best


def test_the_first_of_equally_good_trials_is_best():
    assert results(*(trial(n, line(1, loss=1.0)) for n in range(3)), mode="max").best.id == 0


@pytest.mark.parametrize("name", ["time", "step"])
def test_a_metric_named_like_something_reports_carry_can_be_tuned(name):
    found = results(*(trial(n, line(1, **{name: v})) for n, v in enumerate([2.0, 1.0])), metric=name)
    assert found.best.id == 1
    assert found.best.metrics == {name: 1.0}


def test_no_result_names_the_first_error():
    with pytest.raises(NoResult) as missing:
        _ = results(trial(0, state=TrialState.INTERRUPTED), failed(1, "ValueError: bad width\nof 3"), failed(2)).best
    assert "none of the 3 trials of 'my-run'" in missing.value.message
    assert missing.value.message.endswith("trial 1: ValueError: bad width")
    assert "error.txt" in missing.value.hint


def test_no_result_of_a_run_that_was_cut_off_says_how_to_go_on():
    with pytest.raises(NoResult) as missing:
        _ = results(trial(0, state=TrialState.INTERRUPTED), trial(1, state=TrialState.WAITING)).best
    assert "name='my-run', resume=True" in missing.value.hint
    with pytest.raises(NoResult) as missing:
        _ = results(interrupted=True).best
    assert "name='my-run', resume=True" in missing.value.hint


def test_no_result_of_a_run_without_trials_says_so():
    with pytest.raises(NoResult, match="none of the 0 trials"):
        _ = results().best


def test_errors_are_the_failed_trials():
    assert [t.id for t in results(trial(0, line(1, loss=1.0)), failed(1), failed(2)).errors] == [1, 2]


def test_the_history_has_every_report_in_order():
    one = trial(0, line(1, 10.0, loss=2.0, note="a"), line(5, 11.5, loss=1.0))
    assert one.history == [
        {"step": 1, "time": 10.0, "loss": 2.0, "note": "a"},
        {"step": 5, "time": 11.5, "loss": 1.0},
    ]


def test_metrics_named_step_or_time_leave_those_of_the_history_alone():
    assert trial(0, b'{"time":1.5,"step":0,"metrics":{"time":0.25,"step":100}}\n').history == [
        {"step": 0, "time": 1.5, "metrics/time": 0.25, "metrics/step": 100}
    ]


def test_the_history_has_values_that_strict_json_does_not_know():
    (report,) = trial(0, b'{"time":1.0,"step":1,"metrics":{"grad":NaN,"max":Infinity,"ok":true,"none":null}}\n').history
    assert report["grad"] != report["grad"]
    assert (report["max"], report["ok"], report["none"]) == (float("inf"), True, None)


def test_metrics_are_the_last_value_of_each():
    assert trial(0, line(1, loss=2.0, accuracy=0.5), line(2, loss=1.0)).metrics == {"loss": 1.0, "accuracy": 0.5}


def test_a_trial_that_reported_nothing_has_no_metrics():
    assert trial(0).history == []
    assert trial(0).metrics == {}


def test_the_checkpoint_is_the_newest_one_in_the_folder(tmp_path):
    folder = TrialFolder(tmp_path)
    published = folder.publish_checkpoint(folder.begin_checkpoint(), 3)
    assert trial(0, folder=tmp_path).checkpoint == published


def test_a_trial_without_checkpoints_has_none(tmp_path):
    assert trial(0, folder=tmp_path).checkpoint is None


def test_results_are_a_sequence_of_trials():
    found = results(trial(0), trial(1), trial(2))
    assert len(found) == 3
    assert found[1].id == 1
    assert [t.id for t in found[-2:]] == [1, 2]
    assert [t.id for t in found] == [0, 1, 2]
    assert found[2] in found
    assert {found, *found} == {found, found[0], found[1], found[2]}, "they can be kept in sets and dicts"


def test_the_dataframe_has_a_row_a_trial():
    frame = results(
        trial(
            0,
            line(1, loss=2.0, accuracy=0.5),
            config={"lr": 0.1, "model": {"width": 64, "kind": "cnn"}, "empty": {}},
            persistent=100,
            ephemeral=50,
            device="cpu:0",
            lane=1,
            start=10.0,
            end=12.0,
            attempts=1,
        ),
        failed(1),
    ).dataframe()
    assert list(frame["trial"]) == [0, 1]
    assert list(frame["state"]) == ["done", "failed"]
    row = frame.iloc[0]
    assert (row["loss"], row["accuracy"]) == (2.0, 0.5)
    assert (row["config/lr"], row["config/model/width"], row["config/model/kind"]) == (0.1, 64, "cnn")
    assert (row["persistent"], row["ephemeral"], row["device"], row["lane"], row["attempts"]) == (
        100,
        50,
        "cpu:0",
        1,
        1,
    )
    assert frame.iloc[1]["error"] == "trial 1: ValueError: no"
    assert set(frame.columns) == {
        *("trial", "state", "loss", "accuracy", "config/lr", "config/model/width", "config/model/kind"),
        *("config/empty", "config/x", "persistent", "ephemeral", "expected", "device", "lane"),
        *("slowdown", "seconds", "expected_seconds"),
        *("start", "end", "attempts", "error"),
    }


@pytest.mark.parametrize("name", ["error", "state", "trial", "start", "device"])
def test_a_metric_named_like_a_column_is_not_lost_and_hides_nothing(name):
    frame = results(trial(0, line(1, **{name: 0.25}), state=TrialState.DONE)).dataframe()
    values = {column: frame.iloc[0][column] for column in frame.columns}
    assert 0.25 in [value for value in values.values() if isinstance(value, float)], values
    assert (values["trial"], values["state"]) == (0, "done")


def test_the_dataframe_takes_text_that_utf8_cannot_express():
    name = os.fsdecode(b"caf\xe9")
    found = trial(0, line(1, **{"loss": 1.0, "file": name, name: 2.0}), config={"path": name})
    row = results(found, failed(1, name)).dataframe().iloc
    assert (row[0]["file"], row[0]["config/path"], row[0]["caf\\udce9"]) == ("caf\\udce9", "caf\\udce9", 2.0)
    assert row[1]["error"] == "trial 1: caf\\udce9"


def test_a_run_without_trials_has_an_empty_dataframe():
    assert len(results().dataframe()) == 0


def test_without_pandas_the_dataframe_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError) as refused:
        results(trial(0)).dataframe()
    assert refused.value.hint == "pip install pandas"


def test_the_repr_tells_counts_best_and_folder():
    text = repr(
        results(
            trial(0, line(1, loss=0.123456789), config={"lr": 0.1}, persistent=3 << 20, ephemeral=1 << 20),
            trial(1, line(1, loss=2.0), state=TrialState.STOPPED),
            failed(2),
        )
    )
    assert text.splitlines() == [
        "Results 'my-run': 3 trials (1 done, 1 stopped, 1 failed), makespan 12.3 s",
        "  best loss=0.123457 (trial 0): {'lr': 0.1}",
        "  it held 3.0 MiB and peaked 1.0 MiB above",
        "  /runs/my-run",
    ]


def test_the_repr_shortens_a_config_with_data_in_it():
    assert len(repr(results(trial(0, line(1, loss=1.0), config={"data": list(range(100_000))})))) < 400


def test_the_repr_without_a_result_says_why():
    text = repr(results(failed(0, "ValueError: bad width")))
    assert "1 failed" in text
    assert "ValueError: bad width" in text


def test_the_repr_of_an_interrupted_run_says_how_to_go_on():
    assert "name='my-run', resume=True" in repr(results(interrupted=True))


def test_the_repr_of_a_trial_tells_its_config_and_what_it_reported_last():
    text = repr(trial(3, line(1, loss=1.0), line(2, loss=0.5), config={"lr": 0.1}))
    assert text.startswith("TrialResult(id=3, config={'lr': 0.1}, metrics={'loss': 0.5}, state='done', folder=")
    assert len(repr(trial(0, line(1, loss=1.0), config={"data": list(range(100_000))}))) < 300


def test_the_repr_of_a_failed_trial_tells_why():
    assert "ValueError: bad width" in repr(failed(0, "ValueError: bad width"))


def test_what_was_predicted_is_shown_against_what_was_measured():
    known = {
        "persistent": 80 * MIB,
        "ephemeral": 20 * MIB,
        "expected": 150 * MIB,
        "seconds": 10.0,
        "expected_seconds": 5.0,
    }
    found = results(trial(0, line(1, loss=1.0), **known), trial(1, line(1, loss=2.0)))
    assert found.set_aside.ratio == 1.5
    assert found.predicted_seconds.ratio == 0.5
    assert "predicted time: 0.50 times what was measured" in repr(found)
    assert "predicted time" not in repr(results(trial(1, line(1, loss=2.0))))


def test_what_is_set_aside_for_tiny_trials_is_no_prediction():
    known = {"persistent": MIB, "ephemeral": MIB, "expected": 150 * MIB}
    assert results(trial(0, line(1, loss=1.0), **known)).set_aside is None


def test_what_is_expected_of_trials_of_less_than_a_second_is_no_prediction():
    found = results(trial(0, line(1, loss=1.0), seconds=0.1, expected_seconds=2.2))
    assert found.predicted_seconds is None


def test_to_print_results_reads_no_long_history(monkeypatch):
    found = results(trial(0, *(line(step, loss=1.0 / step) for step in range(1, 1001))))
    decoded, loads = [], json.loads
    monkeypatch.setattr(json, "loads", lambda text: decoded.append(text) or loads(text))
    assert "loss=0.001" in str(found)
    assert len(decoded) < 10
