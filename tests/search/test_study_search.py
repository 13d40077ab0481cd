"""A study served on this thread, without lanes: what the driver's loop would ask for is asked for in turn."""

from types import SimpleNamespace

import optuna

from cotune.search import study_search
from cotune.search.lane_trial import pack
from cotune.search.proposer import Reply
from cotune.search.search import Exhausted, Suggestion
from cotune.search.study_search import StudySearch
from cotune.trial import Question


def test_the_timeout_begins_with_the_first_sign_of_life_of_a_trial(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(study_search, "time", SimpleNamespace(monotonic=lambda: clock.now))
    heard = []

    def wake():
        """One of these after every answer, an hour later each."""
        clock.now += 3600
        heard.extend(map(type, search.answers()))
        next(asked, search.finished)(None)

    search = StudySearch(optuna.create_study(), timeout=60, wake=wake)
    question = Question(0, 0, pack(("trial", "suggest_float", ("x", 0, 1), {})))
    asked = iter([lambda _: search.ask(), lambda _: search.question(question), lambda _: search.ask()])
    search.ask()
    search.serve()
    assert heard == [Suggestion, Suggestion, Reply, Exhausted]
