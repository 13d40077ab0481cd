"""Limits of a lane's process that a trial has changed, or used up."""

import contextlib
import os
import resource

import pytest

from cotune.sharing.inside.process_limits import MOST_FILES, ProcessLimits


@pytest.fixture
def limits():
    return ProcessLimits()


def test_a_limit_that_a_trial_has_lowered_is_put_back(limits):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] - 1, before[1]))
    assert limits.put_back()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


def test_one_that_it_has_lowered_for_good_is_not(limits, monkeypatch):
    now, lower = resource.getrlimit(resource.RLIMIT_CPU), (1 << 30, 1 << 30)
    monkeypatch.setattr(resource, "getrlimit", lambda which: lower if which == resource.RLIMIT_CPU else now)

    def refuse(which, limit):
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert not limits.put_back()


def test_rights_that_it_has_given_up_are_not(limits, monkeypatch):
    """The trials after it could not write their logs."""
    assert limits.put_back()
    monkeypatch.setattr(os, "getresuid", lambda: (65534, 65534, 65534))
    assert not limits.put_back()


def test_files_that_ended_trials_leave_open_are_counted_from_the_first_trial_on(limits):
    assert not limits.are_files_left(others_run=False)
    with contextlib.ExitStack() as stack:
        for _ in range(MOST_FILES + 8):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        assert limits.are_files_left(others_run=False)
        assert not limits.are_files_left(others_run=True)
    assert not limits.are_files_left(others_run=False)
