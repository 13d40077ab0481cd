"""What a trial's own thread waits for."""

import os
import threading
from types import SimpleNamespace

from cotune.sharing.inside.trial_waits import TrialWaits


def waits_of_this_thread():
    seat = os.eventfd(1)
    waits = TrialWaits(SimpleNamespace(host=None), seat, None)
    waits.begin()
    os.close(seat)
    return waits


def test_a_thread_is_waited_for_by_one_that_joins_it_and_not_by_one_that_still_starts_it():
    class SetLate(threading.Event):
        def set(self):
            pass

    waits, found = waits_of_this_thread(), []

    def train():
        found.extend((waits.is_waited_for(), waits.is_waited_for(for_its_end=False)))
        threading.Event.set(thread._started)
        while not waits.is_waited_for():
            pass
        found.append(True)

    thread = threading.Thread(target=train, daemon=True)
    # The starting thread waits for this within `start`, and may be late to see it.
    thread._started = SetLate()
    thread.start()
    thread.join(60)
    assert found == [False, True, True]
