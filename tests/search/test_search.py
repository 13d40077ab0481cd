"""A run's study on its own thread, which a test asks and tells as the driver's loop does."""

import threading
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from optuna.samplers import RandomSampler

from cotune.paths import RunFolder
from cotune.search import search as module
from cotune.search.domains import choice, randint, uniform
from cotune.search.proposer import Suggestion, Verdict
from cotune.search.pruners import Asha
from cotune.search.search import FLUSH_EVERY, MAX_VALUES, PastTrial, Search
from cotune.search.spaces import Space
from cotune.trial import TrialState


@pytest.fixture
def search(tmp_path, request):
    """A search that judges; `await_answer()` returns its next answer. A parameter changes what it is made of."""
    answered = threading.Semaphore(0)
    made_of = {"space": {"x": uniform(0, 1)}, "sampler": RandomSampler(), "pruner": Asha(), "past": []}
    made_of.update(getattr(request, "param", {}))
    made = Search(
        Space(made_of["space"]),
        made_of["sampler"],
        made_of["pruner"],
        direction="minimize",
        folder=RunFolder(tmp_path),
        past=made_of["past"],
        wake=answered.release,
    )
    waiting = []

    def await_answer():
        while not waiting:
            assert answered.acquire(timeout=30)
            waiting.extend(made.answers())
        return waiting.pop(0)

    made.await_answer = await_answer
    yield made
    made.close()


def test_what_is_judged_is_written_while_reports_come_without_a_pause(search, tmp_path, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    search.ask(1)
    suggestion = search.await_answer()
    assert type(suggestion) is Suggestion
    for step in range(1, 9):
        clock.now += 0.6 * FLUSH_EVERY
        search.report(suggestion.trial, 0, step, 1.0)
        assert type(search.await_answer()) is Verdict
    # At the second rung, step 4, there was something else to write.
    assert RunFolder(tmp_path).journal.read_text().count("intermediate_value") > 4


def test_what_the_pruner_notes_of_a_rung_is_written_before_the_trial_goes_on(search, tmp_path):
    search.ask(1)
    search.report(search.await_answer().trial, 0, 1, 1.0)
    assert type(search.await_answer()) is Verdict
    assert "completed_rung_0" in RunFolder(tmp_path).journal.read_text()


class Fixed(RandomSampler):
    """A sampler of a user's that returns what NumPy has computed, and a whole number for a float."""

    params: ClassVar = {"n": np.int64(3), "x": np.float32(0.25), "whole": 1, "size": np.int32(16)}

    def sample_independent(self, study, trial, param_name, param_distribution):
        return self.params[param_name]


SPACE = {"n": randint(1, 5), "x": uniform(0, 1), "whole": uniform(0, 1), "size": choice([8, 16])}


@pytest.mark.parametrize("search", [{"space": SPACE, "sampler": Fixed()}], indirect=True)
def test_what_a_sampler_returns_has_the_type_of_its_domain(search):
    search.ask(1)
    params = search.await_answer().params
    assert params == Fixed.params
    assert [type(value) for value in params.values()] == [int, float, float, int]


@pytest.mark.parametrize("search", [{"pruner": None}], indirect=True)
def test_of_many_reports_that_nobody_judges_the_study_has_some_and_the_last(search):
    search.ask(1)
    number = search.await_answer().trial
    reports = [(-1, 0.5), *((step, 1.0 / (step + 1)) for step in range(3 * MAX_VALUES)), (3 * MAX_VALUES, float("nan"))]
    search.tell(number, TrialState.STOPPED, reports, None)
    search.close()
    (trial,) = search.study.trials
    assert MAX_VALUES / 2 < len(trial.intermediate_values) <= MAX_VALUES + 1
    assert (min(trial.intermediate_values), trial.last_step) == (0, 3 * MAX_VALUES - 1)


ENDS = (TrialState.DONE, TrialState.STOPPED, TrialState.FAILED)
PAST = [PastTrial(number, {"x": 0.5}, [(1, 0.7), (2, 0.6)], state, 1.0, 2.0) for number, state in enumerate(ENDS)]


@pytest.mark.parametrize("search", [{"past": PAST}], indirect=True)
def test_trials_of_an_earlier_session_have_their_last_value_unless_they_failed(search):
    assert [trial.value for trial in search.study.trials] == [0.6, 0.6, None]
