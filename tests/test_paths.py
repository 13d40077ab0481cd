"""File names: above all, a checkpoint is there as a whole or not at all."""

import errno
import fcntl
import os
import time

import pytest

from cotune.errors import StorageError
from cotune.paths import RunFolder, TrialFolder, storage_folder


@pytest.fixture
def trial(tmp_path):
    return TrialFolder(tmp_path / "0007")


def save(trial, reports, text="state"):
    written = trial.begin_checkpoint()
    (written / "state.txt").write_text(text)
    return trial.publish_checkpoint(written, reports)


def test_without_a_checkpoint_there_is_none(trial):
    assert trial.latest_checkpoint() is None
    assert trial.reports_at_checkpoint() == 0


def test_a_checkpoint_is_seen_once_it_is_published(trial):
    written = trial.begin_checkpoint()
    (written / "state.txt").write_text("half")
    assert trial.latest_checkpoint() is None
    published = trial.publish_checkpoint(written, 3)
    assert trial.latest_checkpoint() == published
    assert (published / "state.txt").read_text() == "half"


def test_a_checkpoint_is_published_by_rename(trial):
    written = trial.begin_checkpoint()
    inode = written.stat().st_ino
    published = trial.publish_checkpoint(written, 3)
    assert published.stat().st_ino == inode
    assert not written.exists()


def test_only_the_newest_checkpoint_is_kept(trial):
    save(trial, 1, "old")
    newest = save(trial, 2, "new")
    assert [path.name for path in trial.checkpoints.iterdir()] == [newest.name]
    assert (trial.latest_checkpoint() / "state.txt").read_text() == "new"


def test_the_number_of_reports_at_a_checkpoint_is_in_its_name(trial):
    save(trial, 12)
    assert trial.reports_at_checkpoint() == 12
    trial.recount_checkpoint(11)
    assert trial.reports_at_checkpoint() == 11


def test_a_checkpoint_saved_ahead_of_what_proves_the_last_report_is_the_last_checkpoint(trial):
    save(trial, 11)
    trial.note_last_report(12)
    assert not trial.is_over_at_checkpoint(), "the last report would have to be made again"
    save(trial, 12)
    trial.note_last_report(12)
    assert trial.is_over_at_checkpoint()
    assert trial.reports_at_checkpoint() == 12


def test_checkpoints_of_the_same_report_are_numbered(trial):
    first, second = save(trial, 5).name, save(trial, 5).name
    assert first.split("-")[0] == second.split("-")[0]
    assert first < second


def test_after_a_restart_from_fewer_reports_the_newest_is_still_the_last_one_published(trial):
    save(trial, 9, "before")
    after = save(trial, 4, "after")
    assert trial.latest_checkpoint() == after
    assert trial.reports_at_checkpoint() == 4


def test_numbers_beyond_their_padding_still_sort(trial):
    for name in ("999999-999999", "1000000-1000000"):
        (trial.checkpoints / name).mkdir(parents=True)
    assert trial.latest_checkpoint().name == "1000000-1000000"
    assert trial.reports_at_checkpoint() == 1_000_000


def test_what_a_killed_process_left_half_written_is_ignored(trial):
    published = save(trial, 2)
    (trial.checkpoints / ".writing-999999").mkdir()
    assert trial.latest_checkpoint() == published
    assert trial.reports_at_checkpoint() == 2


def test_only_a_half_written_checkpoint_is_none(trial):
    (trial.checkpoints / ".writing-999999").mkdir(parents=True)
    assert trial.latest_checkpoint() is None


def test_the_next_checkpoint_clears_what_killed_processes_left_half_written(trial):
    torn = trial.checkpoints / ".writing-999999"
    torn.mkdir(parents=True)
    (torn / "state.txt").write_text("x")
    save(trial, 2)
    assert not torn.exists()


def test_a_checkpoint_begun_again_starts_empty(trial):
    (trial.begin_checkpoint() / "half.txt").write_text("x")
    assert list(trial.begin_checkpoint().iterdir()) == []


def test_when_publishing_fails_the_checkpoint_before_stays(trial, monkeypatch):
    before = save(trial, 2)
    written = trial.begin_checkpoint()

    def full(_old, _new):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(OSError, match="No space"):
        trial.publish_checkpoint(written, 3)
    assert trial.latest_checkpoint() == before


def test_a_folder_that_was_not_made_by_cotune_is_not_a_checkpoint(trial):
    published = save(trial, 2)
    (trial.checkpoints / "notes").mkdir()
    assert trial.latest_checkpoint() == published


def test_every_file_of_a_run_is_below_its_folder(tmp_path):
    run = RunFolder(tmp_path / "run")
    files = [run.lock, run.events, run.journal, run.lanes, run.trial(7).log, run.trial(7).error]
    assert all(file.is_relative_to(run.path) for file in files)
    assert len(set(files)) == len(files)


def test_trials_have_folders_of_their_own(tmp_path):
    run = RunFolder(tmp_path)
    assert run.trial(7).path.name == "0007"
    assert len({run.trial(number).path for number in range(0, 20_000, 7)}) == len(range(0, 20_000, 7))


def test_creating_a_run_folder_leaves_only_the_folder_for_lanes(tmp_path):
    run = RunFolder(tmp_path / "a" / "b")
    run.create()
    run.create()
    assert [path.name for path in run.path.iterdir()] == [run.lanes.name]


def test_a_run_folder_that_cannot_be_made_names_path_and_way_out(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError) as refused:
        RunFolder(tmp_path / "file" / "run").create()
    assert str(tmp_path / "file" / "run") in refused.value.message
    assert "storage=" in refused.value.hint


def test_the_environment_chooses_the_storage(monkeypatch, tmp_path):
    monkeypatch.setenv("COTUNE_STORAGE", str(tmp_path))
    assert storage_folder() == tmp_path


def test_variables_in_the_environments_storage_are_expanded(monkeypatch, tmp_path):
    monkeypatch.setenv("RUNS_ARE_IN", str(tmp_path))
    monkeypatch.setenv("COTUNE_STORAGE", "$RUNS_ARE_IN/runs")
    assert storage_folder() == tmp_path / "runs"


def test_a_storage_that_is_a_url_is_refused_wherever_it_is_said(monkeypatch):
    monkeypatch.setenv("COTUNE_STORAGE", "s3://bucket/runs")
    for named in (None, "gs://bucket/runs"):
        with pytest.raises(StorageError, match="://bucket/runs' is no folder for runs"):
            storage_folder(named)


@pytest.mark.parametrize("chosen", ["~nobody-has-this-name/x", "relative"])
def test_a_storage_that_leads_nowhere_is_told_with_a_way_out(monkeypatch, tmp_path, chosen):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setenv("COTUNE_STORAGE", chosen)
    with pytest.raises(StorageError, match="is no folder for runs") as refused:
        storage_folder()
    assert "absolute path" in refused.value.hint


def test_a_process_that_the_driver_forks_does_not_keep_the_lock_of_its_run(tmp_path):
    folder = RunFolder(tmp_path / "it")
    folder.create()
    ended, end = os.pipe()
    held, hold = os.pipe()
    with folder.locked():
        child = os.fork()
        if child == 0:
            os.close(hold)
            os.write(end, b"x")
            os.read(held, 1)
            os._exit(0)
        os.read(ended, 1)
        assert folder.is_locked
    assert not folder.is_locked
    os.close(hold)
    os.waitpid(child, 0)
    for fd in (ended, end, held):
        os.close(fd)


@pytest.mark.parametrize("value", [None, ""])
def test_the_storage_is_in_the_home_folder_otherwise(monkeypatch, tmp_path, value):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("COTUNE_STORAGE", raising=False)
    if value is not None:
        monkeypatch.setenv("COTUNE_STORAGE", value)
    assert storage_folder() == tmp_path / "cotune_runs"


def test_where_the_file_system_has_no_locks_a_run_begins_and_says_so(tmp_path, monkeypatch, caplog):
    def unsupported(fd, how):
        raise OSError(errno.ENOLCK, "No locks available")

    folder = RunFolder(tmp_path / "one")
    folder.create()
    monkeypatch.setattr(fcntl, "flock", unsupported)
    with folder.locked():
        assert "No locks available" in caplog.text
    assert not folder.is_locked


def test_whoever_looks_whether_a_run_goes_on_keeps_it_from_nobody(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path / "one")
    folder.create()
    folder.lock.touch()
    looking = os.open(folder.lock, os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    # The driver looks again in a moment, in which the other one is done.
    monkeypatch.setattr(time, "sleep", lambda seconds: fcntl.flock(looking, fcntl.LOCK_UN))
    with folder.locked():
        assert folder.is_locked
    os.close(looking)


def test_a_folder_of_a_trial_that_cannot_be_made_is_named_with_what_to_do(tmp_path):
    (tmp_path / "trials").write_text("no folder")
    with pytest.raises(StorageError, match="trials/0007: Not a directory") as refused:
        TrialFolder(tmp_path / "trials" / "0007").renew()
    assert "make room" in refused.value.hint


def test_a_lock_that_cannot_be_opened_is_told(tmp_path):
    folder = RunFolder(tmp_path)
    folder.lock.mkdir()
    with pytest.raises(StorageError, match="cannot be opened"), folder.locked():
        pass
