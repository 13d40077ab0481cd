"""Checkpoints that find no room."""

import errno
import os
from pathlib import Path

import pytest

from cotune.errors import InputError, StorageError
from cotune.paths import TrialFolder
from cotune.sharing.inside.checkpoints import Checkpoints


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(3, TrialFolder(tmp_path), lambda: (1, False))


class Leaving(Exception):
    pass


def fails(checkpoints, error):
    with checkpoints.save():
        raise error


def test_what_a_library_makes_of_a_full_disk_is_told_as_that(checkpoints, monkeypatch):
    def full(path, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StorageError, match="No space left"):
        fails(checkpoints, RuntimeError("unexpected pos 64 vs 0"))


def test_where_there_is_room_an_error_is_the_trials_own(checkpoints):
    with pytest.raises(RuntimeError, match="unexpected"):
        fails(checkpoints, RuntimeError("unexpected pos 64 vs 0"))


@pytest.mark.parametrize(
    "error", [ConnectionRefusedError(errno.ECONNREFUSED, "refused"), FileNotFoundError(2, "no", "/x")]
)
def test_errors_that_are_not_of_the_checkpoints_files_are_the_trials_own(checkpoints, error):
    with pytest.raises(type(error)):
        fails(checkpoints, error)


@pytest.mark.parametrize("name", ["none/state.pt", "."])
def test_a_file_that_cannot_be_opened_because_of_its_name_is_the_trials_own_mistake(checkpoints, name):
    with pytest.raises((FileNotFoundError, IsADirectoryError)), checkpoints.save() as path:
        (path / name).write_text("")


def test_an_interruption_is_no_matter_of_room(checkpoints):
    with pytest.raises(KeyboardInterrupt):
        fails(checkpoints, KeyboardInterrupt())


def test_a_directory_that_is_gone_when_its_block_ends_is_no_matter_of_room(checkpoints):
    with pytest.raises(InputError, match="is gone"), checkpoints.save() as path:
        path.rename(path.with_name("mine"))


def test_a_forked_process_that_leaves_the_block_with_an_error_takes_nothing_along(checkpoints):
    def block():
        with checkpoints.save() as path:
            (path / "weights").touch()
            child = os.fork()
            if child == 0:
                raise Leaving
            os.waitpid(child, 0)
            return (path / "weights").exists()

    try:
        is_there = block()
    except Leaving:
        os._exit(0)
    assert is_there
