"""A study served on this thread, without lanes: what the driver's loop would ask for is asked for in turn."""

from types import SimpleNamespace

import optuna

from cotune.search import study_search
from cotune.search.proposer import PATIENCE, Exhausted, Suggestion
from cotune.search.study_search import StudySearch


def test_a_trial_that_reports_faster_than_is_stored_keeps_no_other_from_beginning():
    study, stored = optuna.create_study(), []

    def wake():
        for answer in search.answers():
            if type(answer) is Suggestion and answer.trial == 0:
                search.ask(1)
                for step in range(100):
                    search.report(0, 0, step, 1.0)
            elif type(answer) is Suggestion:
                stored.append(len(study.trials[0].intermediate_values))
                search.finished(None)

    search = StudySearch(study, wake=wake)
    search.ask(1)
    search.serve()
    assert stored == [PATIENCE]


def test_the_timeout_does_not_run_while_no_trial_does(monkeypatch):
    clock = SimpleNamespace(now=1000.0, start=0.0)
    monkeypatch.setattr(study_search, "time", SimpleNamespace(monotonic=lambda: clock.now))
    heard = []

    def wake():
        """After every answer half a minute passes; after the second one the first trial starts."""
        clock.now += 30
        heard.extend(map(type, search.answers()))
        if len(heard) == 2:
            clock.start = clock.now
        if heard[-1] is Exhausted:
            search.finished(None)
        else:
            search.ask(1)

    search = StudySearch(optuna.create_study(), timeout=60, since=lambda: clock.start, wake=wake)
    search.ask(1)
    search.serve()
    assert heard == [Suggestion] * 4 + [Exhausted]
