"""A study served on this thread, without lanes: what the driver's loop would ask for is asked for in turn."""

import contextlib
import pickle
from types import SimpleNamespace

import optuna
import pytest

from cotune.errors import LaneDied, StorageError
from cotune.paths import RunFolder
from cotune.search import study_search
from cotune.search.proposer import PATIENCE, Exhausted, Reply, Suggestion
from cotune.search.study_search import StudySearch
from cotune.trial import Question, TrialState


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "run")


@pytest.fixture
def locked(monkeypatch):
    """A study whose storage takes no reports."""

    def raises(*args):
        raise optuna.exceptions.StorageInternalError("locked")

    study = optuna.create_study()
    monkeypatch.setattr(study._storage, "set_trial_intermediate_value", raises)
    return study


def test_a_trial_that_reports_faster_than_is_stored_keeps_no_other_from_beginning(folder):
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

    search = StudySearch(study, folder=folder, wake=wake)
    search.ask(1)
    search.serve()
    assert stored == [PATIENCE]


@pytest.mark.parametrize(
    ("asks", "attempt", "state"),
    [(True, 1, "COMPLETE"), (False, 1, "FAIL"), (False, 2, "COMPLETE")],
    ids=["the objective hears of it", "it asks nothing more", "that attempt was lost"],
)
def test_what_the_storage_raises_of_a_report_is_raised_in_the_objective_or_ends_the_trial(
    folder, locked, asks, attempt, state
):
    study, heard = locked, []

    def ask(*question):
        search.question(Question(0, attempt, pickle.dumps((*question, {}))))

    def wake():
        for answer in search.answers():
            if type(answer) is Suggestion:
                search.report(0, 1, 0, 1.0)
                ask(*(("trial", "should_prune", ()) if asks else ("end", "returned", (1.0,))))
            elif type(answer) is Reply:
                heard.append(pickle.loads(answer.payload)[0])
                if heard == [False]:
                    ask("end", "returned", (1.0,))
                else:
                    search.tell(0, TrialState.DONE, [], None)
                    search.finished(None)

    search = StudySearch(study, folder=folder, catch=(optuna.exceptions.StorageInternalError,), wake=wake)
    search.ask(1)
    search.serve()
    assert heard == ([False, True] if asks else [True])
    assert [trial.state.name for trial in study.trials] == [state]


@pytest.mark.parametrize("is_told", [True, False], ids=["its end is told", "the call ends first"])
def test_what_the_storage_raises_of_a_report_fails_a_trial_that_then_prunes_itself(folder, locked, is_told):
    def wake():
        for answer in search.answers():
            if type(answer) is Suggestion:
                search.report(0, 1, 0, 1.0)
                search.question(Question(0, 1, pickle.dumps(("end", "pruned", ("by itself",), {}))))
            elif type(answer) is Reply:
                if is_told:
                    search.tell(0, TrialState.STOPPED, [], None)
                search.finished(None)

    search = StudySearch(locked, folder=folder, wake=wake)
    search.ask(1)
    with pytest.raises(optuna.exceptions.StorageInternalError) if is_told else contextlib.nullcontext():
        search.serve()
    search.give_up(KeyboardInterrupt())
    assert [trial.state.name for trial in locked.trials] == ["FAIL"]


def test_a_lane_that_died_is_no_failure_of_the_storage(folder, locked):
    study = locked

    def wake():
        for answer in search.answers():
            if type(answer) is Suggestion:
                search.report(0, 1, 0, 1.0)
                search.tell(0, TrialState.FAILED, [], LaneDied("three times"))
                search.finished(None)

    search = StudySearch(study, folder=folder, wake=wake)
    search.ask(1)
    search.serve()
    assert [trial.state.name for trial in study.trials] == ["FAIL"]


def test_a_study_that_has_lost_its_storage_is_an_error(folder, tmp_path):
    path = tmp_path / "journal"
    backend = optuna.storages.journal.JournalFileBackend(str(path))
    study = optuna.create_study(storage=optuna.storages.JournalStorage(backend))

    def wake():
        for answer in search.answers():
            if type(answer) is Suggestion:
                path.write_text("")
                search.ask(1)

    search = StudySearch(study, folder=folder, wake=wake)
    search.ask(1)
    with pytest.raises(StorageError, match="removed or replaced"):
        search.serve()


def test_the_timeout_does_not_run_while_no_trial_does(folder, monkeypatch):
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

    search = StudySearch(optuna.create_study(), folder=folder, timeout=60, since=lambda: clock.start, wake=wake)
    search.ask(1)
    search.serve()
    assert heard == [Suggestion] * 4 + [Exhausted]
