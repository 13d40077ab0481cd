"""The limit of open files, and how a run raises it."""

import os
import resource

import pytest

from cotune.engines.open_files import OTHER_FILES, are_scarce, files_left, raised_limit


@pytest.fixture
def limit():
    """Sets the soft limit to the files in use and so many more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def to(more):
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + more, before[1]))

    yield to
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_files_are_scarce_where_the_limit_leaves_no_room_beside_what_else_a_run_opens(limit):
    limit(OTHER_FILES + 20)
    assert not are_scarce(20)
    assert are_scarce(21)


def test_within_a_raised_limit_as_many_can_be_opened_as_the_system_allows(limit):
    limit(OTHER_FILES)
    lowered = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = files_left()
    assert room > 0
    with raised_limit():
        assert not are_scarce(min(room, 1000))
        # Of another run in another thread.
        with raised_limit():
            pass
        assert not are_scarce(min(room, 1000))
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == lowered
