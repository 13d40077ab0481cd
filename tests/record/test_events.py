"""The events file: what was flushed is read back, what was torn is cut off, a full disk is said."""

import contextlib
import errno
import json
import os
from pathlib import Path

import pytest

from cotune.errors import StorageError
from cotune.record import EventLog, read_events


@pytest.fixture
def path(tmp_path):
    return tmp_path / "events.jsonl"


def write(path, *events):
    log = EventLog(path)
    for number, event in enumerate(events):
        log.write(event, float(number))
    log.close()


def names(path):
    return [event["event"] for event, _ in read_events(path)]


def test_what_was_written_reads_back(path):
    log = EventLog(path)
    log.write("trial", 12.3456789, trial=3, params={"x": 1.5, "y": "ü"})
    log.close()
    assert [event for event, _ in read_events(path)] == [
        {"event": "trial", "time": 12.345679, "trial": 3, "params": {"x": 1.5, "y": "ü"}}
    ]


def test_events_come_with_their_lines(path):
    line = b'{"event":"report","time":1.0,"metrics":{"loss":0.5}}\n'
    log = EventLog(path)
    log.write("run", 0.0)
    log.write_line(line)
    log.close()
    assert list(read_events(path))[1] == (json.loads(line), line)
    assert b"".join(raw for _, raw in read_events(path)) == path.read_bytes()


def test_nothing_is_in_the_file_before_it_is_flushed(path):
    log = EventLog(path)
    log.write("run", 0.0)
    assert path.read_bytes() == b""
    log.flush()
    assert names(path) == ["run"]
    log.close()


def test_closing_flushes(path):
    write(path, "run", "trial")
    assert names(path) == ["run", "trial"]


def test_opening_again_appends(path):
    write(path, "run")
    write(path, "trial")
    assert names(path) == ["run", "trial"]


def test_an_empty_file_has_no_events(path):
    path.touch()
    assert names(path) == []


def test_a_torn_last_line_is_not_read(path):
    write(path, "run", "trial")
    path.write_bytes(path.read_bytes()[:-5])
    assert names(path) == ["run"]


def test_a_torn_last_line_is_cut_off_when_the_file_is_opened_to_append(path):
    write(path, "run", "trial")
    path.write_bytes(path.read_bytes()[:-5])
    write(path, "end")
    assert names(path) == ["run", "end"]


def test_a_file_that_is_all_one_torn_line_becomes_empty(path):
    path.write_bytes(b'{"event":"run"')
    EventLog(path).close()
    assert path.read_bytes() == b""


def test_a_torn_line_longer_than_one_read_is_cut_off(path):
    write(path, "run")
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"event":"trial","time":1,"params":"' + b"x" * 200_000)
    EventLog(path).close()
    assert path.read_bytes() == whole


def test_a_torn_line_that_cannot_be_cut_off_is_a_storage_error_and_leaves_no_file_open(path, monkeypatch):
    def refuse(_fd, _length):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    path.write_bytes(b'{"event":"ru')
    monkeypatch.setattr(os, "ftruncate", refuse)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(StorageError, match=os.strerror(errno.EIO)):
        EventLog(path)
    assert os.listdir("/proc/self/fd") == before


def test_a_whole_file_is_left_as_it_is(path):
    write(path, "run", "trial")
    before = path.read_bytes()
    EventLog(path).close()
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "line", [b"no json\n", b"5\n", b"[]\n", b'{"event":"run"}\n', b"\0\0\0\0\n", b"\xff\xfe\n", b"\n"], ids=repr
)
def test_a_line_that_is_no_event_is_named(path, line):
    write(path, "run")
    path.write_bytes(path.read_bytes() + line)
    with pytest.raises(StorageError) as refused:
        names(path)
    assert "line 2" in refused.value.message
    assert str(path) in refused.value.message


def test_a_full_disk_is_a_storage_error_with_the_path():
    log = EventLog("/dev/full")
    log.write("run", 0.0)
    with pytest.raises(StorageError) as refused:
        log.flush()
    assert "/dev/full" in refused.value.message
    assert "No space left on device" in refused.value.message
    assert "resume=True" in refused.value.hint
    with contextlib.suppress(StorageError):
        log.close()


@pytest.mark.parametrize("away", [Path.unlink, lambda path: path.rename(path.with_name("moved"))])
def test_a_file_that_is_removed_or_moved_while_it_is_written_is_a_storage_error(path, away):
    log = EventLog(path)
    log.write("run", 0.0)
    log.flush()
    away(path)
    log.write("trial", 1.0)
    with pytest.raises(StorageError, match="was removed or moved while the run goes on") as refused:
        log.flush()
    assert str(path) in refused.value.message
    log.close()


def test_closing_on_a_full_disk_is_a_storage_error_too():
    log = EventLog("/dev/full")
    log.write("run", 0.0)
    with pytest.raises(StorageError):
        log.close()


def test_what_is_written_after_a_disk_was_full_for_a_while_is_not_glued_to_a_torn_line(path, monkeypatch):
    log = EventLog(path)
    log.write("run", 0.0)
    log.flush()
    real = os.write

    def half(fd, data):
        if len(data) < 10:
            raise OSError(28, "No space left on device")
        return real(fd, data[: len(data) // 2])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        log.write("trial", 1.0)
        with pytest.raises(StorageError):
            log.flush()
    log.write("end", 2.0)
    log.close()
    assert names(path)[0] == "run"
    assert names(path)[-1] == "end"


def test_a_write_that_takes_only_a_part_goes_on_with_the_rest(path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:7]))
    write(path, "run", "trial")
    monkeypatch.undo()
    assert names(path) == ["run", "trial"]


def test_a_file_that_is_not_there_cannot_be_read(path):
    with pytest.raises(StorageError, match="No such file"):
        names(path)


def test_a_file_that_cannot_be_made_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError) as refused:
        EventLog(tmp_path / "missing" / "events.jsonl")
    assert "missing" in refused.value.message


def test_what_json_does_not_know_is_written_as_text(path):
    log = EventLog(path)
    log.write("trial", 0.0, folder=path)
    log.close()
    assert next(read_events(path))[0]["folder"] == str(path)


def test_the_file_is_not_inherited_by_other_programs(path):
    log = EventLog(path)
    assert not os.get_inheritable(log._fd)
    log.close()
