"""A run's study on its own thread, which a test asks and tells as the driver's loop does."""

import threading
from types import SimpleNamespace

import pytest
from optuna.samplers import RandomSampler

from cotune.search import search as module
from cotune.search.domains import uniform
from cotune.search.proposer import Suggestion, Verdict
from cotune.search.pruners import Asha
from cotune.search.search import FLUSH_EVERY, Search
from cotune.search.spaces import Space


@pytest.fixture
def search(tmp_path):
    """A search that judges; `await_answer()` returns its next answer."""
    answered = threading.Semaphore(0)
    made = Search(
        Space({"x": uniform(0, 1)}),
        RandomSampler(),
        Asha(),
        direction="minimize",
        journal=tmp_path / "journal",
        name="it",
        past=[],
        prepare=lambda number: None,
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
    assert (tmp_path / "journal").read_text().count("intermediate_value") > 4


def test_what_the_pruner_notes_of_a_rung_is_written_before_the_trial_goes_on(search, tmp_path):
    search.ask(1)
    search.report(search.await_answer().trial, 0, 1, 1.0)
    assert type(search.await_answer()) is Verdict
    assert "completed_rung_0" in (tmp_path / "journal").read_text()
