"""What a thread has waited for a core."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from cotune.sharing import delays
from cotune.sharing.delays import ThreadDelays

BURN = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
print(flush=True)
while True: pass
"""


def burn(seconds: float) -> None:
    begun = time.thread_time()
    while time.thread_time() - begun < seconds:
        pass


@pytest.mark.skipif(not delays.are_counted(), reason="this kernel counts no delays")
def test_what_is_computed_beside_others_on_a_core_takes_as_long_as_alone_but_for_the_delays():
    core = min(os.sched_getaffinity(0))
    found = {}

    def compute() -> None:
        os.sched_setaffinity(0, {core})
        own = ThreadDelays()
        began, before = time.monotonic(), own.seconds()
        burn(0.2)
        found["wall"], found["delayed"] = time.monotonic() - began, own.seconds() - before
        own.close()

    with subprocess.Popen([sys.executable, "-c", BURN, str(core)], stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        thread = threading.Thread(target=compute)
        thread.start()
        thread.join()
        other.kill()
    assert found["delayed"] > 0.1
    assert found["wall"] - found["delayed"] == pytest.approx(0.2, rel=0.2)


def test_of_the_thread_that_made_it_whichever_reads_it():
    own = ThreadDelays()
    told = []
    other = threading.Thread(target=lambda: told.append(own.seconds()))
    before = own.seconds()
    other.start()
    other.join()
    assert before <= told[0] <= own.seconds()
    own.close()


def test_they_stay_what_they_were_once_the_thread_has_ended():
    made = []
    thread = threading.Thread(target=lambda: made.append(ThreadDelays()))
    thread.start()
    thread.join()
    assert made[0].seconds() == made[0].seconds() >= 0.0
    made[0].close()


def test_none_where_the_kernel_counts_none(monkeypatch):
    monkeypatch.setattr(delays, "_OWN", "/proc/no/such/file")
    assert not delays.are_counted()
    none = ThreadDelays()
    assert none.seconds() == 0.0
    none.close()


def test_closed_it_keeps_no_file():
    before = len(os.listdir("/proc/self/fd"))
    one = ThreadDelays()
    one.close()
    one.close()
    assert len(os.listdir("/proc/self/fd")) == before
