"""The limit of open files, and how a run raises it."""

import contextlib
import os
import resource

import pytest

from cotune.engines.open_files import OTHER_FILES, OpenFiles


@pytest.fixture
def limit():
    """Sets the soft limit to the files in use and so many more; returns a function that reads it."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def to(more):
        used = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + more, before[1]))
        return lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0] - used

    yield to
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_limit_stays_while_there_is_room_beside_what_else_a_run_opens(limit):
    now = limit(OTHER_FILES + 20)
    files = OpenFiles()
    files.allow(20)
    assert now() == OTHER_FILES + 20
    files.restore()
    assert now() == OTHER_FILES + 20


def test_it_is_raised_where_lanes_need_more_and_lowered_at_the_end(limit):
    now = limit(10)
    files = OpenFiles()
    with contextlib.ExitStack() as opened:
        for _ in range(5):
            files.allow(20)
            for _ in range(20):
                opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))
    assert now() >= 100
    files.restore()
    assert now() == 10


def test_it_is_not_raised_above_what_the_system_allows(limit, monkeypatch):
    used = len(os.listdir("/proc/self/fd"))
    now = limit(10)
    monkeypatch.setattr(resource, "getrlimit", lambda what: (used + 10, used + 30))
    raised = []
    monkeypatch.setattr(resource, "setrlimit", lambda what, limits: raised.append(limits))
    files = OpenFiles()
    files.allow(20)
    assert raised == [(used + 30, used + 30)]
    monkeypatch.undo()
    assert now() == 10
