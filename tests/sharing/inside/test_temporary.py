"""Temporary directories that nobody has cleaned up."""

import tempfile
from pathlib import Path

import pytest

from cotune.sharing.inside.temporary import disown_temporary, remove_temporary


@pytest.fixture
def others():
    """Keeps those that are there already."""
    disown_temporary()


def test_those_of_this_process_are_removed_and_those_of_its_parent_stay(others, tmp_path):
    inherited = tempfile.TemporaryDirectory(dir=tmp_path)
    disown_temporary()
    own = tempfile.TemporaryDirectory(dir=tmp_path)
    remove_temporary()
    assert not Path(own.name).exists()
    assert Path(inherited.name).exists()
    inherited.cleanup()


def test_one_that_cannot_be_removed_does_not_keep_the_others(others, tmp_path):
    class Stubborn(tempfile.TemporaryDirectory):
        _rmtree = classmethod(lambda cls, name, **options: 1 / 0)

    first, second, third = (make(dir=tmp_path) for make in (tempfile.TemporaryDirectory, Stubborn, Stubborn))
    remove_temporary()
    assert [Path(one.name).exists() for one in (first, second, third)] == [False, True, True]
