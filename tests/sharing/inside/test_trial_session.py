"""A trial's session in its lane, where whole runs do not show what it does."""

import threading
from types import SimpleNamespace

from cotune.sharing.inside.resident import ResidentTrial
from cotune.sharing.inside.trial_session import TrialSession
from cotune.sharing.inside.turns import Turns

PATIENCE = 20


def test_a_thread_of_a_trial_goes_on_once_the_trials_own_state_is_in_place(monkeypatch):
    settles, may_begin = threading.Event(), threading.Event()

    def turn_begins(_trial):
        settles.set()
        assert may_begin.wait(PATIENCE)

    monkeypatch.setattr(ResidentTrial, "turn_begins", turn_begins)
    trial = TrialSession.__new__(TrialSession)
    trial.host, trial._has_turn, trial._over = SimpleNamespace(turns=Turns()), threading.Event(), False
    own = threading.Thread(target=trial.host.turns.take, args=(trial,))
    own.start()
    assert settles.wait(PATIENCE)
    other = threading.Thread(target=trial._await_turn)
    other.start()
    other.join(0.1)
    was_early = not other.is_alive()
    may_begin.set()
    for thread in (own, other):
        thread.join(PATIENCE)
    assert not was_early
    assert not other.is_alive()
