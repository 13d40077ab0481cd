"""Turns, with real threads: exactly one holder at any time, handed on in order."""

import os
import threading
from types import SimpleNamespace

import pytest

from cotune.sharing.inside import turns as turns_module
from cotune.sharing.inside.turns import Turns, Waiter

PATIENCE = 20


class Resident:
    """A trial in a lane that does what the test tells it, one command at a time."""

    def __init__(self, name, turns, log):
        self.name = name
        self.gate = threading.Lock()
        self.gate.acquire()
        self.wanted = threading.Event()
        self.waits = threading.Event()
        self._turns, self._log = turns, log

    def turn_begins(self):
        self.cores = os.sched_getaffinity(0)
        self._log.append(("begins", self.name))

    def turn_ends(self):
        self._log.append(("ends", self.name))

    def turn_wanted(self):
        self.wanted.set()


class Actor(threading.Thread):
    """A thread that takes one step of its script whenever the test says so."""

    def __init__(self, resident, turns, script):
        super().__init__(daemon=True)
        self.resident, self._turns, self._script = resident, turns, script
        self.go = threading.Semaphore(0)
        self.did = threading.Semaphore(0)

    def run(self):
        for what in self._script:
            self.go.acquire()
            getattr(self._turns, what)(self.resident)
            self.did.release()

    def may(self):
        """Lets it begin its next step."""
        self.go.release()

    def finished(self):
        """Waits for that step to be over."""
        assert self.did.acquire(timeout=PATIENCE)

    def does(self):
        self.may()
        self.finished()


@pytest.fixture
def log():
    return []


@pytest.fixture
def turns():
    return Turns()


@pytest.fixture
def actor(turns, log):
    actors = []

    def make(name, *script):
        made = Actor(Resident(name, turns, log), turns, script)
        made.start()
        actors.append(made)
        return made

    yield make
    for made in actors:
        made.join(timeout=PATIENCE)
        assert not made.is_alive()


def joins_the_queue(actor, holder):
    """Has an actor ask for the turn that another one has; gives when it is in the queue."""
    holder.resident.wanted.clear()
    actor.may()
    assert holder.resident.wanted.wait(PATIENCE)


def test_a_resident_alone_gets_the_turn_at_once(turns, actor, log):
    a = actor("a", "take", "give_up")
    a.does()
    assert turns.holder is a.resident
    assert not turns.others_wait
    a.does()
    assert turns.holder is None
    assert log == [("begins", "a"), ("ends", "a")]


def test_a_second_resident_waits(turns, actor, log):
    a, b = actor("a", "take", "give_up"), actor("b", "take", "give_up")
    a.does()
    joins_the_queue(b, a)
    assert turns.holder is a.resident
    assert turns.others_wait
    assert ("begins", "b") not in log
    a.does()
    b.finished()
    b.does()


def test_joining_makes_the_holder_look_at_the_clock(actor):
    a, b = actor("a", "take", "give_up"), actor("b", "take", "give_up")
    a.does()
    assert not a.resident.wanted.is_set()
    joins_the_queue(b, a)
    assert a.resident.wanted.is_set()
    a.does()
    b.finished()
    b.does()


def test_giving_up_hands_the_turn_on(turns, actor, log):
    a, b = actor("a", "take", "give_up"), actor("b", "take", "give_up")
    a.does()
    joins_the_queue(b, a)
    a.does()
    b.finished()
    assert turns.holder is b.resident
    assert log == [("begins", "a"), ("ends", "a"), ("begins", "b")]
    b.does()


def test_giving_up_hands_on_to_who_has_waited_longest(actor, log):
    a, b, c = (actor(name, "take", "give_up") for name in "abc")
    a.does()
    joins_the_queue(b, a)
    joins_the_queue(c, a)
    a.does()
    b.finished()
    b.does()
    c.finished()
    c.does()
    assert [name for what, name in log if what == "begins"] == ["a", "b", "c"]


def test_passing_on_lets_the_others_run_first(turns, actor, log):
    a, b = actor("a", "take", "pass_on", "give_up"), actor("b", "take", "pass_on", "give_up")
    a.does()
    joins_the_queue(b, a)
    a.may()
    b.finished()
    assert turns.holder is b.resident
    b.may()
    a.finished()
    assert turns.holder is a.resident
    a.does()
    b.finished()
    b.does()
    assert [name for what, name in log if what == "begins"] == ["a", "b", "a", "b"]


def test_passing_on_with_nobody_waiting_keeps_the_turn(turns, actor, log):
    a = actor("a", "take", "pass_on", "give_up")
    a.does()
    a.does()
    assert turns.holder is a.resident
    assert log == [("begins", "a")]
    a.does()


def test_whoever_is_preferred_is_handed_the_turn_before_those_who_have_waited_longer(turns, actor, log):
    a, b, c = (actor(name, "take", "give_up") for name in "abc")
    a.does()
    joins_the_queue(b, a)
    joins_the_queue(c, a)
    a.resident.wanted.clear()
    turns.prefer(c.resident)
    assert a.resident.wanted.is_set()
    assert turns.first_waits
    a.does()
    c.finished()
    c.does()
    b.finished()
    b.does()
    assert [name for what, name in log if what == "begins"] == ["a", "c", "b"]


def test_whoever_is_preferred_does_not_pass_the_turn_on(turns, actor, log):
    a, b = actor("a", "take", "pass_on", "give_up"), actor("b", "take", "give_up")
    a.does()
    joins_the_queue(b, a)
    turns.prefer(a.resident)
    a.does()
    assert turns.holder is a.resident
    assert log == [("begins", "a")]
    a.does()
    b.finished()
    b.does()


def test_many_residents_run_one_at_a_time_and_in_turn(turns):
    rounds, names = 200, "abcde"
    inside, overlaps, order = [], [], []
    queued = threading.Semaphore(0)

    class Busy:
        def __init__(self, name):
            self.name, self.gate = name, threading.Lock()
            self.gate.acquire()

        def turn_begins(self):
            inside.append(self.name)
            order.append(self.name)
            if len(inside) != 1:
                overlaps.append(tuple(inside))

        def turn_ends(self):
            inside.remove(self.name)

        def turn_wanted(self):
            queued.release()

        def run(self):
            turns.take(self)
            for _ in range(rounds):
                if turns.holder is not self:
                    overlaps.append((self.name, turns.holder))
                turns.pass_on(self)
            turns.give_up(self)

    first = Busy("first")
    turns.take(first)
    threads = []
    for name in names:
        threads.append(threading.Thread(target=Busy(name).run, daemon=True))
        threads[-1].start()
        assert queued.acquire(timeout=PATIENCE)
    turns.give_up(first)
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert overlaps == []
    assert turns.holder is None
    assert "".join(order[1:]) == names * (rounds + 1)


def test_one_that_gives_up_and_takes_again_waits_behind_the_others(turns, actor, log):
    a, b = actor("a", "take", "give_up", "take", "give_up"), actor("b", "take", "give_up")
    a.does()
    joins_the_queue(b, a)
    a.does()
    b.finished()
    joins_the_queue(a, b)
    assert turns.holder is b.resident
    b.does()
    a.finished()
    assert turns.holder is a.resident
    a.does()
    assert [name for what, name in log if what == "begins"] == ["a", "b", "a"]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core only")
def test_a_waiting_thread_is_called_to_the_core_of_who_hands_it_the_turn():
    made, called, done = [], threading.Semaphore(0), threading.Semaphore(0)

    def waits():
        made.append((Waiter(), threading.get_native_id()))
        done.release()
        assert called.acquire(timeout=PATIENCE)
        made[0][0].go_anywhere()
        done.release()
        assert called.acquire(timeout=PATIENCE)

    everywhere = os.sched_getaffinity(0)
    here = min(everywhere)
    thread = threading.Thread(target=waits)
    thread.start()
    assert done.acquire(timeout=PATIENCE)
    waiter, number = made[0]
    os.sched_setaffinity(0, {here})
    try:
        waiter.call_here()
        assert os.sched_getaffinity(number) == {here}
    finally:
        os.sched_setaffinity(0, everywhere)
    called.release()
    assert done.acquire(timeout=PATIENCE)
    assert os.sched_getaffinity(number) == everywhere
    called.release()
    thread.join(timeout=PATIENCE)


def test_a_trial_may_run_on_all_its_cores_again_once_its_turn_begins(actor):
    a, b = actor("a", "take", "give_up"), actor("b", "take", "give_up")
    a.does()
    joins_the_queue(b, a)
    a.does()
    b.finished()
    assert b.resident.cores == os.sched_getaffinity(0)
    b.does()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core only")
def test_a_sandbox_may_hide_on_which_core_a_thread_runs(monkeypatch):
    monkeypatch.setattr(turns_module, "_libc", SimpleNamespace(sched_getcpu=lambda: -1))
    everywhere = os.sched_getaffinity(0)
    Waiter().call_here()
    assert os.sched_getaffinity(0) == everywhere
