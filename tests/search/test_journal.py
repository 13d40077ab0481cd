from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from cotune.errors import StorageError
from cotune.search.journal import RunStorage, SystemAttributes, WriteBehindBackend, system_attributes

optuna.logging.set_verbosity(optuna.logging.WARNING)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.log"


def record(number: int) -> dict[str, Any]:
    return {"op_code": 2, "worker_id": "w", "study_id": 0, "user_attr": {"n": number}}


def make_study(backend: Any, name: str = "s") -> optuna.Study:
    return optuna.create_study(
        storage=JournalStorage(backend),
        study_name=name,
        load_if_exists=True,
        sampler=optuna.samplers.RandomSampler(seed=1),
    )


def run_trial(study: optuna.Study) -> optuna.trial.FrozenTrial:
    trial = study.ask()
    x = trial.suggest_float("x", 0, 1)
    trial.suggest_categorical("c", ["ä", None, True])
    trial.report(x, 1)
    trial.report(float("nan"), 2)
    trial.set_user_attr("where", ["lane", 3])
    return study.tell(trial, x)


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_records_are_readable_at_once_and_written_by_flush(path: Path) -> None:
    backend = WriteBehindBackend(path)
    backend.append_logs([record(0), record(1)])
    assert backend.read_logs(0) == [record(0), record(1)]
    assert backend.read_logs(1) == [record(1)]
    assert backend.pending == 2
    assert path.read_bytes() == b""
    backend.flush()
    assert backend.pending == 0
    assert list(JournalFileBackend(str(path)).read_logs(0)) == [record(0), record(1)]
    backend.append_logs([record(2)])
    assert backend.read_logs(1) == [record(1), record(2)]
    assert backend.read_logs(2) == [record(2)]
    assert backend.read_logs(3) == []
    backend.close()


def test_the_file_is_what_the_stock_backend_writes(tmp_path: Path) -> None:
    stock, ours = tmp_path / "stock", tmp_path / "ours"
    logs = [record(0), {"op_code": 7, "intermediate_value": float("nan"), "values": (1.0, 2), "ä": None}]
    JournalFileBackend(str(stock)).append_logs(logs)
    backend = WriteBehindBackend(ours)
    backend.append_logs(logs)
    backend.close()
    assert ours.read_bytes() == stock.read_bytes()


def test_a_running_study_can_be_opened_with_the_stock_backend(path: Path) -> None:
    backend = WriteBehindBackend(path)
    study = make_study(backend)
    for number in range(3):
        trial = run_trial(study)
        backend.flush()
        other = optuna.load_study(study_name="s", storage=JournalStorage(JournalFileBackend(str(path))))
        assert len(other.trials) == number + 1
        assert other.trials[-1].params == trial.params
        assert other.trials[-1].user_attrs == {"where": ["lane", 3]}
    running = study.ask()
    backend.flush()
    other = optuna.load_study(study_name="s", storage=JournalStorage(JournalFileBackend(str(path))))
    assert other.trials[-1].state == optuna.trial.TrialState.RUNNING
    study.tell(running, state=optuna.trial.TrialState.FAIL)
    backend.close()


def test_a_study_survives_reopening(path: Path) -> None:
    backend = WriteBehindBackend(path)
    study = make_study(backend)
    before = [run_trial(study) for _ in range(3)]
    backend.close()
    backend = WriteBehindBackend(path)
    assert backend.pending == 0
    study = make_study(backend)
    assert [(t.number, t.params, t.values) for t in study.trials] == [(t.number, t.params, t.values) for t in before]
    assert run_trial(study).number == 3
    backend.close()
    assert len(make_study(JournalFileBackend(str(path))).trials) == 4


def test_a_second_storage_reads_everything_though_memory_holds_only_the_rest(path: Path) -> None:
    backend = WriteBehindBackend(path)
    study = make_study(backend)
    run_trial(study)
    backend.flush()
    run_trial(study)
    assert len(make_study(backend).trials) == 2
    backend.close()


@pytest.mark.parametrize("torn", [b'{"op_code":2,"wor', b'{"op_code":2}', b'{"op\n', b"\0\0\0", b"\xff{"])
def test_a_torn_last_line_is_cut_off(path: Path, torn: bytes) -> None:
    backend = WriteBehindBackend(path)
    backend.append_logs([record(0), record(1)])
    backend.close()
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    backend = WriteBehindBackend(path)
    assert path.read_bytes() == whole
    assert backend.read_logs(0) == [record(0), record(1)]
    backend.append_logs([record(2)])
    backend.close()
    assert list(JournalFileBackend(str(path)).read_logs(0)) == [record(0), record(1), record(2)]


def test_a_journal_torn_in_its_first_line_is_empty(path: Path) -> None:
    path.write_bytes(b'{"op_co')
    backend = WriteBehindBackend(path)
    assert backend.read_logs(0) == []
    backend.close()


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"my diary", 1),
        (b"my diary\n", 1),
        (b"my\ndiary\n", 1),
        (b'{"op_code":2}\ngarbage\n{"op_code":2}\n', 2),
        (b"[1]\n", 1),
        (b'{"loss":1}\n', 1),
    ],
)
def test_another_file_is_refused_and_left_alone(path: Path, content: bytes, line: int) -> None:
    path.write_bytes(content)
    with pytest.raises(StorageError, match=f"line {line} ") as caught:
        WriteBehindBackend(path)
    assert str(path) in caught.value.message
    assert caught.value.hint
    assert path.read_bytes() == content


def test_nothing_is_unpickled() -> None:
    assert not hasattr(WriteBehindBackend, "load_snapshot")


def test_what_json_cannot_hold_is_refused_to_the_caller(path: Path) -> None:
    backend = WriteBehindBackend(path)
    study = make_study(backend)
    with pytest.raises(TypeError):
        study.set_user_attr("where", object())
    study.set_user_attr("where", "here")
    backend.close()
    assert make_study(JournalFileBackend(str(path))).user_attrs == {"where": "here"}


def test_a_record_does_not_change_after_it_was_appended(path: Path) -> None:
    backend = WriteBehindBackend(path)
    study = make_study(backend)
    value = [1]
    study.set_user_attr("list", value)
    value.append(2)
    assert study.user_attrs == {"list": [1]}
    backend.close()
    assert make_study(JournalFileBackend(str(path))).user_attrs == {"list": [1]}


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file") as caught:
        WriteBehindBackend(tmp_path / "missing" / "journal.log")
    assert "missing/journal.log" in caught.value.message
    assert caught.value.hint


def test_a_full_device_keeps_records_pending() -> None:
    backend = WriteBehindBackend("/dev/full")
    backend.append_logs([record(0)])
    with pytest.raises(StorageError, match="No space left") as caught:
        backend.flush()
    assert caught.value.hint
    assert backend.pending == 1
    assert backend.read_logs(0) == [record(0)]
    with pytest.raises(StorageError):
        backend.close()
    backend.close()


def test_a_write_that_stops_half_way_is_taken_back_and_retried(path: Path) -> None:
    backend = WriteBehindBackend(path)
    backend.append_logs([record(0)])
    backend.flush()
    whole = path.read_bytes()
    backend.append_logs([record(1), record(2)])
    with file_size_limit(len(whole) + 10), pytest.raises(StorageError, match="too large"):
        backend.flush()
    assert path.read_bytes() == whole
    assert backend.pending == 2
    backend.close()
    assert list(JournalFileBackend(str(path)).read_logs(0)) == [record(0), record(1), record(2)]


def test_a_closed_journal_takes_nothing(path: Path) -> None:
    backend = WriteBehindBackend(path)
    backend.close()
    backend.close()
    with pytest.raises(StorageError, match="closed"):
        backend.append_logs([record(0)])


def test_one_write_a_flush(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = WriteBehindBackend(path)
    backend.append_logs([record(number) for number in range(100)])
    writes: list[int] = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: writes.append(len(data)) or write(fd, data))
    backend.flush()
    backend.flush()
    assert writes == [path.stat().st_size]
    backend.close()


def test_a_journal_that_was_emptied_is_named_and_not_taken_up(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.touch()
    assert system_attributes(path) == SystemAttributes()
    assert f"{path} cannot be taken up (it holds no study): sampler and pruner know of trials only" in caplog.text


def test_asking_looks_through_trials_only_while_one_may_wait(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    look = JournalStorage.get_all_trials
    monkeypatch.setattr(
        JournalStorage, "get_all_trials", lambda self, *args, **more: looked.append(1) or look(self, *args, **more)
    )
    study = optuna.create_study(storage=RunStorage(WriteBehindBackend(path)), sampler=optuna.samplers.RandomSampler())
    study.ask()
    looked.clear()
    study.ask()
    assert not looked
    study.enqueue_trial({"x": 0.25})
    study.enqueue_trial({"x": 0.75})
    assert [study.ask().suggest_float("x", 0, 1) for _ in range(2)] == [0.25, 0.75]
    study.ask()
    looked.clear()
    assert study.ask().number == 5
    assert not looked
