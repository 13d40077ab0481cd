"""Whose signals are taken, and given back."""

import os
import signal

import pytest

from cotune.driver.signals import handled_by

BOTH = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture
def as_before():
    before = {number: signal.getsignal(number) for number in BOTH}
    yield
    for number, was in before.items():
        signal.signal(number, was)


def test_both_call_the_handler_and_are_given_back(as_before):
    heard = []
    before = [signal.getsignal(number) for number in BOTH]
    with handled_by(lambda number, frame: heard.append(number)):
        for number in BOTH:
            signal.raise_signal(number)
    assert heard == list(BOTH)
    assert [signal.getsignal(number) for number in BOTH] == before


def test_one_that_is_ignored_stays_so(as_before):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    heard = []
    with handled_by(lambda number, frame: heard.append(number)):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_process_that_is_forked_meanwhile_ends_like_any_other(as_before):
    reading, writing = os.pipe()
    with handled_by(lambda number, frame: None):
        child = os.fork()
        if child == 0:
            os.write(writing, b"!")
            signal.pause()
            os._exit(0)
        os.read(reading, 1)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
    os.close(reading)
    os.close(writing)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
