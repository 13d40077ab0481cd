"""Whose signals are taken, and given back."""

import asyncio
import functools
import os
import signal

import pytest

from cotune.driver import signals
from cotune.driver.signals import Interrupts, handled_by

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


def test_one_of_the_users_own_stays_if_it_is_to(as_before):
    own, ours = [], []

    class Counter:
        def __call__(self, number, frame):
            own.append(number)

    signal.signal(signal.SIGINT, lambda number, frame: own.append(number))
    signal.signal(signal.SIGTERM, functools.partial(Counter()))
    with handled_by(lambda number, frame: ours.append(number), leaves_own=True):
        for number in BOTH:
            signal.raise_signal(number)
    assert (own, ours) == (list(BOTH), [])
    with handled_by(lambda number, frame: ours.append(number)):
        for number in BOTH:
            signal.raise_signal(number)
    assert (own, ours) == (list(BOTH), list(BOTH))


def test_one_of_no_module_is_not_the_users_own(as_before):
    made, ours = {}, []
    exec("def handler(number, frame): raise AssertionError", made)
    made["handler"].__module__ = None
    signal.signal(signal.SIGINT, made["handler"])
    with handled_by(lambda number, frame: ours.append(number), leaves_own=True):
        signal.raise_signal(signal.SIGINT)
    assert ours == [signal.SIGINT]


def test_that_of_an_event_loop_does_not_stay_and_nor_does_that_of_a_call_around(as_before):
    heard = []

    async def within():
        with handled_by(lambda number, frame: heard.append("outer"), leaves_own=True):
            signal.raise_signal(signal.SIGINT)
            with handled_by(lambda number, frame: heard.append("inner"), leaves_own=True):
                signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    asyncio.run(within())
    assert heard == ["outer", "inner"]


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


def test_a_signal_that_is_passed_on_at_once_by_a_program_around_this_one_counts_once(as_before, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(signals.time, "monotonic", lambda: now[0])
    interrupts = Interrupts(last=2)
    with interrupts.handled():
        for at in (0.0, 0.01, signals.ECHO - 0.01):
            now[0] = 100 + at
            signal.raise_signal(signal.SIGINT)
        assert interrupts.received == [signal.SIGINT]
        # As of a key that is held down.
        now[0] = 100 + signals.ECHO + 0.01
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert interrupts.received == [signal.SIGINT] * 2


def test_a_signal_that_comes_while_a_sweep_is_told_of_an_earlier_one_counts_once(as_before, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(signals.time, "monotonic", lambda: now[0])
    told = []

    class FakeSweep:
        def interrupt(self, count):
            told.append(count)
            if len(told) == 1:
                now[0] += 1
                signal.raise_signal(signal.SIGINT)

    interrupts = Interrupts(last=3)

    def sets_up():
        with interrupts.handled():
            signal.raise_signal(signal.SIGINT)
            interrupts.end(FakeSweep())

    with pytest.raises(KeyboardInterrupt):
        sets_up()
    assert told == [1, 2]


def test_a_second_signal_that_comes_once_the_sweep_is_over_interrupts_too(as_before, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(signals.time, "monotonic", lambda: now[0])
    closed = []
    interrupts = Interrupts(last=2)

    class FakeSweep:
        def interrupt(self, count):
            pass

    def runs():
        with interrupts.handled():
            interrupts.end(FakeSweep())
            signal.raise_signal(signal.SIGINT)
            now[0] += 1
            signal.raise_signal(signal.SIGINT)
            closed.append(True)

    with pytest.raises(KeyboardInterrupt):
        runs()
    assert closed == [True]


def test_the_first_process_of_a_container_ends_by_a_signal_that_the_kernel_keeps_from_it(as_before, monkeypatch):
    interrupts = Interrupts(last=2)

    def runs():
        with interrupts.handled(signal.SIGTERM):
            signal.raise_signal(signal.SIGTERM)
            monkeypatch.setattr(signals.signal, "raise_signal", lambda number: None)

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with pytest.raises(SystemExit) as ended:
        runs()
    assert ended.value.code == 128 + signal.SIGTERM
