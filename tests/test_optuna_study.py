"""`cotune.optimize` with real lanes: Optuna's own guides, run both ways."""

import copy
import functools
import importlib.util
import inspect
import logging
import operator
import os
import pickle
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import cloudpickle
import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

import cotune
from cotune._arguments import assigned_outside
from cotune.packer.policies import Gandiva
from cotune.paths import RunFolder
from cotune.search.study_pickling import study_as_proxy
from cotune.sharing import delays


@pytest.fixture
def said():
    """What Optuna's loggers say, less our own line on where the logs are."""
    lines = []

    class Collect(logging.Handler):
        def emit(self, record):
            if "Logs and tracebacks" not in record.getMessage():
                lines.append((record.levelname, record.getMessage()))

    handler, logger = Collect(), logging.getLogger("optuna")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lines
    logger.setLevel(level)
    logger.removeHandler(handler)


def outcome(study):
    """All that a study knows of its trials, but times. As text, since NaN is not itself."""
    return repr(
        [
            (t.number, t.state, t.values, t.params, t.intermediate_values, t.user_attrs, t.system_attrs)
            for t in study.trials
        ]
    )


def quadratic(trial):
    x = trial.suggest_float("x", -10, 10)
    return (x - 2) ** 2


def learning_curve(trial):
    x = trial.suggest_float("x", 0, 1)
    for step in range(5):
        trial.report(x + 1 / (step + 1), step)
        if trial.should_prune():
            raise optuna.TrialPruned(f"at {step}")
    return x


def conditional(trial):
    if trial.suggest_categorical("classifier", ["svc", "forest"]) == "svc":
        return trial.suggest_float("svc_c", 1e-10, 1e10, log=True) % 7
    return trial.suggest_int("depth", 2, 32, log=True) + trial.suggest_float("part", 0, 1, step=0.25)


def attributes(trial):
    trial.set_user_attr("number", trial.number)
    x = trial.suggest_float("x", 0, 1)
    trial.set_user_attr("params", trial.params)
    assert trial.user_attrs["number"] == trial.number
    assert trial.distributions == {"x": optuna.distributions.FloatDistribution(0, 1)}
    assert trial.datetime_start is not None
    assert isinstance(trial, optuna.Trial)
    assert isinstance(trial.study, optuna.Study)
    assert trial.study.direction == optuna.study.StudyDirection.MINIMIZE
    assert len(trial.study.trials) == trial.number + 1
    return x


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("objective", [quadratic, learning_curve, conditional, attributes])
def test_one_lane_repeats_what_optuna_does(optimize, said, objective):
    alone, ours = (
        optuna.create_study(
            sampler=optuna.samplers.TPESampler(seed=3, n_startup_trials=4, multivariate=objective is conditional),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=2),
            study_name="study",
        )
        for _ in range(2)
    )
    said.clear()
    alone.optimize(objective, n_trials=12)
    expected = list(said)
    said.clear()
    optimize(ours, objective, n_trials=12, lanes=1)
    assert outcome(ours) == outcome(alone)
    assert said == expected


def test_a_decorator_may_supply_arguments_of_an_objective_and_of_a_callback(optimize):
    heard = []

    def with_offset(function):
        return functools.wraps(function)(lambda trial: function(trial, 3.0))

    def without_study(function):
        return functools.wraps(function)(lambda study, trial: function(trial))

    study = optuna.create_study()
    optimize(study, with_offset(lambda trial, offset: offset), 1, callbacks=[without_study(heard.append)])
    assert [trial.value for trial in heard] == [3.0]


@pytest.mark.parametrize("n_trials", [0, -2, np.int64(-2)])
def test_no_trials_are_none(optimize, n_trials):
    study = optuna.create_study()
    optimize(study, lambda trial: 0.0, n_trials=n_trials)
    assert study.trials == []


class Odd(Exception):
    """Takes other arguments than it keeps."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")
        self.one = one


def returned(value):
    return lambda trial: value


def pruned(*reports):
    def end(trial):
        for step, value in enumerate(reports):
            trial.report(value, step)
        raise optuna.TrialPruned(f"after {reports}")

    return end


def raises(kind, *args):
    def end(trial):
        raise kind(*args)

    return end


def changes_a_choice(trial):
    trial.suggest_categorical("c", [1, 2])
    trial.suggest_categorical("c", [1, 2, 3])


ENDS = [
    returned(1), returned(float("nan")), returned(None), returned((1.0, 2.0)), returned([3.0]), returned("abc"),
    returned(float("inf")), returned(True), returned({"a": 1}), returned(b"1"), pruned(),
    pruned(3.0, 2.0), pruned(3.0, float("nan")),
    raises(ValueError, "no luck"), raises(Odd, 1, 2), raises(UnicodeDecodeError, "utf-8", b"x", 0, 1, "reason"),
    lambda trial: trial.suggest_float("y", 1, 0), lambda trial: trial.report("much", 1),
    lambda trial: trial.report(1.0, -1), lambda trial: trial.set_user_attr("key", "value"), changes_a_choice,
]  # fmt: skip


def ends(trial):
    """Ends in another way every time."""
    trial.suggest_float("x", 0, 1)
    return ENDS[trial.number](trial)


def test_however_a_trial_ends_the_study_keeps_what_optuna_would(optimize, said):
    found = []
    for run, options in ((optuna.Study.optimize, {}), (optimize, {"lanes": 1})):
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1), study_name="study")
        said.clear()
        run(study, ends, n_trials=len(ENDS), catch=(ValueError, TypeError, Odd), **options)
        found.append((outcome(study), list(said)))
    assert found[0][0] == found[1][0]
    assert found[0][1] == found[1][1]


@pytest.mark.parametrize("error", [(Odd, 1, 2), (KeyboardInterrupt,)], ids=["exception", "interrupt"])
def test_what_is_not_caught_ends_it_as_in_optuna(optimize, said, error):
    found = []
    for run, options in ((optuna.Study.optimize, {}), (optimize, {"lanes": 1})):
        study = optuna.create_study(study_name="study")
        said.clear()
        with pytest.raises(error[0]) as caught:
            run(study, raises(*error), n_trials=3, catch=(ValueError,), **options)
        found.append((outcome(study), repr(caught.value), vars(caught.value).get("one"), list(said)))
    assert found[0] == found[1]


def test_an_exception_of_a_class_in_a_script_is_the_same_class_outside(optimize):
    class Local(Exception):
        pass

    def objective(trial):
        raise Local({"what": trial.number})

    study = optuna.create_study()
    with pytest.raises(Local) as caught:
        optimize(study, objective, n_trials=5)
    assert caught.value.args == ({"what": 0},)
    assert "in objective" in caught.value.__notes__[0]
    assert {t.state for t in study.trials} == {TrialState.FAIL}


@pytest.mark.filterwarnings("ignore:Argument ``heartbeat_interval``")
def test_what_classes_of_studies_and_storages_add_is_called_there_and_attributes_are_set_there(optimize, tmp_path):
    class Greeting(optuna.Study):
        def greet(self, name):
            return f"{name} in {self.study_name}"

    def objective(trial):
        if trial.number == 0:
            trial.study.sampler = optuna.samplers.RandomSampler(seed=2)
            trial.study.first = operator.itemgetter(0)
        assert isinstance(trial.study.first, operator.itemgetter)
        trial.set_user_attr("greeted", trial.study.greet("you"))
        trial.set_user_attr("beats", trial.storage.get_heartbeat_interval())
        return trial.suggest_float("x", 0, 1)

    storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path}/study.db", heartbeat_interval=60)
    plain = optuna.create_study(study_name="mine", storage=storage, sampler=optuna.samplers.RandomSampler(seed=1))
    study = Greeting("mine", storage, sampler=plain.sampler)
    optimize(study, objective, n_trials=3, lanes=1)
    assert [t.user_attrs for t in study.trials] == [{"greeted": "you in mine", "beats": 60}] * 3
    expected = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=2))
    expected.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=3)
    assert [t.params for t in study.trials] == [t.params for t in expected.trials]


def test_an_exception_says_the_same_outside_and_what_it_was_raised_from(optimize):
    class Coded(Exception):
        def __init__(self, code):
            super().__init__(f"code {code}")
            self.code = code

    def objective(trial):
        try:
            {}["none"]
        except KeyError as error:
            raise Coded(7) from error

    with pytest.raises(Coded) as caught:
        optimize(optuna.create_study(), objective, n_trials=1)
    assert (str(caught.value), caught.value.code) == ("code 7", 7)
    assert repr(caught.value.__cause__) == "KeyError('none')"


def test_an_exception_that_cannot_travel_is_still_of_its_class(optimize):
    def objective(trial):
        raise LookupError("held", threading.Lock())

    study = optuna.create_study()
    with pytest.raises(LookupError, match="held"):
        optimize(study, objective, n_trials=1)
    optimize(study, objective, n_trials=2, catch=LookupError)
    assert {t.state for t in study.trials} == {TrialState.FAIL}


def test_an_exception_that_holds_its_trial_is_still_of_its_class(optimize):
    class Diverged(Exception):
        def __init__(self, code, trial):
            super().__init__(code)
            self.trial = trial

        def __str__(self):
            return f"code {self.args[0]}"

    def objective(trial):
        raise Diverged(5, trial)

    study = optuna.create_study()
    optimize(study, objective, n_trials=2, catch=Diverged)
    assert {t.state for t in study.trials} == {TrialState.FAIL}
    with pytest.raises(Diverged) as caught:
        optimize(study, objective, n_trials=1)
    assert (str(caught.value), caught.value.args) == ("code 5", (5,))


def test_an_exception_that_takes_no_note_fails_its_trial(optimize):
    class Bare(Exception):
        def add_note(self, note):
            raise TypeError(note)

    def objective(trial):
        raise Bare("bare")

    study = optuna.create_study()
    optimize(study, objective, n_trials=2, lanes=1, catch=Bare)
    assert [t.state for t in study.trials] == [TrialState.FAIL] * 2


def test_an_exception_of_a_module_that_only_the_objective_can_import_fails_its_trial(optimize, tmp_path):
    (tmp_path / "found_by_the_objective.py").write_text("class Missing(LookupError): ...")
    folder = str(tmp_path)

    def objective(trial):
        sys.path.insert(0, folder)
        import found_by_the_objective

        raise found_by_the_objective.Missing("no such row")

    study = optuna.create_study()
    with pytest.raises(LookupError, match=r"found_by_the_objective\.Missing: no such row"):
        optimize(study, objective, n_trials=1)
    optimize(study, objective, n_trials=2, catch=LookupError)
    assert [t.state for t in study.trials] == [TrialState.FAIL] * 3


@pytest.mark.parametrize("residents", [1, 3])
def test_an_objective_of_a_module_finds_the_study_that_is_a_global_there(optimize, tmp_path, monkeypatch, residents):
    (tmp_path / "tuned_in_a_module.py").write_text(
        """
import optuna

study = optuna.create_study()

def objective(trial):
    for step in range(5):
        study.set_user_attr(f"{trial.number}/{step}", len(study.trials) > trial.number)
        trial.report(0.0, step)
    if trial.number == 2:
        study.stop()
    return 0.0
"""
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tuned_in_a_module", raising=False)
    import tuned_in_a_module

    optimize(study := tuned_in_a_module.study, tuned_in_a_module.objective, 9, lanes=1, residents=residents)
    assert 3 <= len(study.trials) < 9
    told = {f"{trial}/{step}" for trial in range(3) for step in range(5)}
    assert told <= study.user_attrs.keys()
    assert all(study.user_attrs.values())


def test_a_group_of_exceptions_of_which_one_cannot_travel_is_still_a_group(optimize):
    def objective(trial):
        raise ExceptionGroup("both", [ValueError(1), LookupError("held", threading.Lock())])

    with pytest.raises(ExceptionGroup, match="both") as caught:
        optimize(optuna.create_study(), objective, n_trials=1)
    assert [type(error) for error in caught.value.exceptions] == [ValueError, LookupError]


@pytest.mark.skipif(not hasattr(optuna.Trial, "set_constraint"), reason="since Optuna 5")
def test_constraints_are_set_and_read_through_the_trial(optimize):
    def objective(trial):
        x = trial.suggest_float("x", 0, 1)
        trial.set_constraint("half", 0.5 - x)
        assert trial.constraints == {"half": 0.5 - x}
        return x

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    optimize(study, objective, n_trials=8)
    assert study.best_value >= 0.5


def test_pruning_a_classifier(optimize):
    # https://optuna.readthedocs.io, "Efficient optimization algorithms"
    if not importlib.util.find_spec("sklearn"):
        pytest.skip("scikit-learn is not installed")

    def objective(trial):
        from sklearn.datasets import load_iris
        from sklearn.linear_model import SGDClassifier
        from sklearn.model_selection import train_test_split

        data = cotune.shared("iris", lambda: load_iris(return_X_y=True))
        train_x, valid_x, train_y, valid_y = train_test_split(*data, test_size=0.25, random_state=0)
        alpha = trial.suggest_float("alpha", 1e-5, 1e-1, log=True)
        clf = SGDClassifier(alpha=alpha, random_state=0)
        for step in range(20):
            clf.partial_fit(train_x, train_y, classes=[0, 1, 2])
            trial.report(1.0 - clf.score(valid_x, valid_y), step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return 1.0 - clf.score(valid_x, valid_y)

    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0), pruner=optuna.pruners.MedianPruner())
    optimize(study, objective, n_trials=12, lanes=2)
    assert {t.state for t in study.trials} == {TrialState.COMPLETE, TrialState.PRUNED}
    assert min(len(t.intermediate_values) for t in study.trials) < 20


def test_pruning_a_torch_loop_with_values_that_are_tensors(optimize):
    if not importlib.util.find_spec("torch"):
        pytest.skip("torch is not installed")

    def objective(trial):
        import torch
        from torch import nn

        width = trial.suggest_int("width", 2, 8)
        model = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=trial.suggest_float("lr", 1e-4, 1e-1, log=True))
        x = torch.ones(8, 4)
        for epoch in range(3):
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            trial.report(loss, epoch)
            if trial.should_prune():
                raise optuna.TrialPruned
        return loss

    study = optuna.create_study()
    optimize(study, objective, n_trials=4, lanes=2)
    assert [t.state for t in study.trials] == [TrialState.COMPLETE] * 4
    assert all(len(t.intermediate_values) == 3 for t in study.trials)


def test_parameters_may_be_named_by_keyword(optimize):
    def objective(trial):
        x = trial.suggest_float(name="x", low=0.0, high=1.0)
        kind = trial.suggest_categorical(name="kind", choices=["a", "b"])
        trial.set_user_attr(key="kind", value=kind)
        return x + trial.suggest_int(name="n", low=1, high=3)

    study = optuna.create_study()
    optimize(study, objective, n_trials=2)
    assert all(set(trial.params) == {"x", "kind", "n"} for trial in study.trials)
    assert all(trial.user_attrs["kind"] == trial.params["kind"] for trial in study.trials)


def test_a_trial_may_be_copied_and_pickled_within_its_objective(optimize):
    class Reporter:
        """Like a pruning callback, which scikit-learn's `clone` copies with the estimator."""

        def __init__(self, trial):
            self.trial = trial

    def objective(trial):
        copies = [copy.copy(trial), copy.deepcopy(Reporter(trial)).trial, pickle.loads(pickle.dumps(trial))]
        for step, one in enumerate(copies):
            one.report(step, step)
            one.set_user_attr(str(step), one.number)
        study = copy.deepcopy(trial.study)
        assert study.study_name == trial.study.study_name
        assert pickle.loads(pickle.dumps(study)).direction == study.direction
        return copies[0].suggest_float("x", 0, 1)

    study = optuna.create_study()
    optimize(study, objective, n_trials=2, lanes=1)
    for trial in study.trials:
        assert trial.intermediate_values == {0: 0.0, 1: 1.0, 2: 2.0}
        assert trial.user_attrs == dict.fromkeys("012", trial.number)


def test_several_objectives_and_constraints(optimize):
    def objective(trial):
        x, y = trial.suggest_float("x", -15, 30), trial.suggest_float("y", -15, 30)
        trial.set_user_attr("constraint", ((x - 5) ** 2 + y**2 - 25, -((x - 8) ** 2) - (y + 3) ** 2 + 7.7))
        return 4 * x**2 + 4 * y**2, (x - 5) ** 2 + (y - 5) ** 2

    found = []
    for run, options in ((optuna.Study.optimize, {}), (optimize, {"lanes": 1})):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna 5 has trial.set_constraint() instead
            sampler = optuna.samplers.NSGAIISampler(
                constraints_func=lambda trial: trial.user_attrs["constraint"], seed=1, population_size=5
            )
        study = optuna.create_study(directions=["minimize", "minimize"], sampler=sampler)
        run(study, objective, n_trials=14, **options)
        found.append((outcome(study), [t.number for t in study.best_trials]))
    assert found[0] == found[1]


def test_reports_of_several_objectives_are_refused_as_by_optuna(optimize):
    def objective(trial):
        trial.report(1.0, 0)

    study = optuna.create_study(directions=["minimize", "minimize"])
    with pytest.raises(NotImplementedError, match="multi-objective"):
        optimize(study, objective, n_trials=1)


def test_callbacks_hear_of_every_trial_and_can_stop_the_study(optimize):
    heard = []

    def callback(study, trial):
        heard.append((trial.number, trial.state))
        if trial.number == 4:
            study.stop()

    study = optuna.create_study()
    optimize(study, quadratic, n_trials=50, lanes=1, callbacks=[callback])
    assert heard == [(number, TrialState.COMPLETE) for number in range(5)]
    assert len(study.trials) == 5


def test_an_objective_can_stop_the_study_also_one_it_refers_to(optimize):
    study = optuna.create_study()

    def objective(trial):
        if trial.number == 2:
            trial.study.stop()
        if trial.number == 7:
            study.stop()
        return trial.suggest_float("x", 0, 1) + len(study.trials)

    optimize(study, objective, lanes=1)
    assert [t.value // 1 for t in study.trials] == [1, 2, 3]
    optimize(study, objective, lanes=1)
    assert len(study.trials) == 8


@pytest.mark.skipif(not delays.are_counted(), reason="this kernel counts no delays")
def test_more_lanes_than_cores_run_objectives_that_wait(optimize, tmp_path):
    def objective(trial):
        x = trial.suggest_float("x", 0, 1)
        time.sleep(0.1)
        return x

    study = optuna.create_study()
    optimize(study, objective, n_trials=16 * len(os.sched_getaffinity(0)))
    at_once = max(
        sum(a.datetime_start <= b.datetime_start < a.datetime_complete for a in study.trials) for b in study.trials
    )
    assert at_once > len(os.sched_getaffinity(0))


def test_a_list_of_callbacks_may_change_meanwhile(optimize):
    heard = []

    def once(study, trial):
        heard.append(("once", trial.number))
        callbacks.remove(once)
        callbacks.append(later)

    def later(study, trial):
        heard.append(("later", trial.number))

    callbacks = [once]
    optuna.create_study().optimize(quadratic, n_trials=3, callbacks=callbacks)
    expected, heard, callbacks = heard, [], [once]
    optimize(optuna.create_study(), quadratic, n_trials=3, lanes=1, callbacks=callbacks)
    assert heard == expected == [("once", 0), ("later", 1), ("later", 2)]


def test_callbacks_from_a_generator_hear_of_every_trial(optimize):
    heard = []
    optimize(optuna.create_study(), quadratic, 2, callbacks=(hear for hear in [lambda *_: heard.append(0)]))
    assert heard == [0, 0]


def test_a_callback_that_raises_ends_it(optimize):
    def callback(study, trial):
        raise KeyError(trial.number)

    study = optuna.create_study()
    with pytest.raises(KeyError):
        optimize(study, quadratic, n_trials=20, callbacks=[callback])
    assert TrialState.RUNNING not in {t.state for t in study.trials}


def test_max_trials_callback_and_enqueued_trials(optimize):
    study = optuna.create_study()
    study.enqueue_trial({"x": 2.0})
    study.enqueue_trial({"x": 5.0}, user_attrs={"memo": "guess"})
    optimize(study, quadratic, callbacks=[optuna.study.MaxTrialsCallback(6)], lanes=1)
    assert [t.value for t in study.trials[:2]] == [0.0, 9.0]
    assert study.trials[1].user_attrs == {"memo": "guess"}
    assert len(study.trials) == 6


@pytest.mark.parametrize("storage", ["sqlite", "journal"])
def test_a_stored_study_is_resumed_by_running_it_again(optimize, tmp_path, storage):
    def load():
        where = f"sqlite:///{tmp_path}/study.db"
        if storage == "journal":
            backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "journal.log"))
            where = optuna.storages.JournalStorage(backend)
        return optuna.create_study(study_name="mine", storage=where, load_if_exists=True)

    folder = RunFolder(tmp_path / "runs" / "mine")
    folder.create()
    folder.events.touch()  # as one does that dies, or finds the disk full, before it has written anything
    for total in (3, 6):
        study = load()
        optimize(study, learning_curve, n_trials=3, lanes=2, name="mine")
        assert len(study.trials) == total
    assert [t.number for t in load().trials] == list(range(6))
    assert all(t.state.is_finished() for t in load().trials)
    with pytest.raises(cotune.RunNameInUse):
        optimize(optuna.create_study(), quadratic, n_trials=1, name="mine")


def test_studies_in_two_threads_each_have_their_own_proxy():
    first, second, both = optuna.create_study(), optuna.create_study(), threading.Barrier(2)

    def serve():
        with study_as_proxy(second):
            both.wait(30)  # the other has begun before, and ends before
            both.wait(30)
            return cloudpickle.dumps(second)

    with ThreadPoolExecutor(1) as other:
        with study_as_proxy(first):
            served = other.submit(serve)
            both.wait(30)
            assert b"study_in_lane" in cloudpickle.dumps(first)
            assert b"study_in_lane" not in cloudpickle.dumps(second)
        both.wait(30)
        assert b"study_in_lane" in served.result(30)
    assert b"study_in_lane" not in cloudpickle.dumps(first)


def test_the_grid_of_a_grid_sampler_is_run_once(optimize):
    grid = {"x": [-50, 0, 50], "y": [-99, 99]}

    def objective(trial):
        return trial.suggest_float("x", -100, 100) ** 2 + trial.suggest_int("y", -100, 100) ** 2

    study = optuna.create_study(sampler=optuna.samplers.GridSampler(grid, seed=0))
    optimize(study, objective, lanes=1)
    assert sorted((t.params["x"], t.params["y"]) for t in study.trials) == [
        (x, y) for x in (-50, 0, 50) for y in (-99, 99)
    ]


@pytest.mark.parametrize("form", ["class", "lambda", "partial"])
def test_every_form_of_objective_runs(optimize, form):
    class Objective:
        def __init__(self, low, high):
            self.low, self.high = low, high

        def __call__(self, trial):
            return trial.suggest_float("x", self.low, self.high)

    data = {"low": 3, "high": 4}
    objective = {
        "class": Objective(3, 4),
        "lambda": lambda trial: Objective(**data)(trial),
        "partial": functools.partial(lambda low, trial: Objective(low, 4)(trial), 3),
    }[form]
    study = optuna.create_study()
    optimize(study, objective, n_trials=2)
    assert all(3 <= t.value <= 4 for t in study.trials)


def test_warnings_of_what_a_trial_asks_for_are_heard_in_the_driver(optimize):
    def objective(trial):
        trial.report(1.0, 0)
        trial.report(2.0, 0)
        return trial.suggest_uniform("x", 0, 1)

    study = optuna.create_study()
    with pytest.warns(FutureWarning, match="suggest_uniform"), pytest.warns(UserWarning, match="already reported"):
        optimize(study, objective, n_trials=1)
    assert study.trials[0].intermediate_values == {0: 1.0}


def test_several_lanes_run_at_once_and_every_trial_is_told(optimize):
    def objective(trial):
        x = trial.suggest_float("x", 0, 1)
        for step in range(5):
            time.sleep(0.02)
            trial.report(x, step)
        trial.set_user_attr("pid", os.getpid())
        return x

    study = optuna.create_study()
    optimize(study, objective, n_trials=8, lanes=2)
    assert [t.state for t in study.trials] == [TrialState.COMPLETE] * 8
    assert len({t.user_attrs["pid"] for t in study.trials}) == 2


def test_objectives_that_never_report_are_measured_by_their_length_and_run_at_once_too(optimize):
    def objective(trial):
        time.sleep(0.15)
        trial.set_user_attr("pid", os.getpid())
        return trial.suggest_float("x", 0, 1)

    study = optuna.create_study()
    # A policy that does not guess how many pay.
    policy = type("Own", (Gandiva,), {})()
    optimize(study, objective, n_trials=12, policy=policy)
    assert policy.judged, "by the pruner that a study has by default"
    assert len({t.user_attrs["pid"] for t in study.trials}) == 2


def test_a_database_in_memory_is_seen_by_one_thread_only_which_is_ours(optimize):
    study = optuna.create_study(storage="sqlite:///:memory:")
    optimize(study, learning_curve, n_trials=3, lanes=2)
    assert [t.state.is_finished() for t in study.trials] == [True] * 3


def test_what_belongs_to_the_driver_is_refused_in_a_lane(optimize):
    def objective(trial):
        with pytest.raises(AttributeError, match="in the driver"):
            trial._cached_frozen_trial  # noqa: B018
        with pytest.raises(cotune.RunError, match=r"study\.ask"):
            trial.study.ask()
        with pytest.raises(AttributeError):
            trial.nonsense()
        trial.study.set_user_attr("asked by", trial.number)
        assert trial.study.user_attrs == {"asked by": 0}
        assert trial.study.sampler is not None
        assert trial.relative_params == {}
        return 1.0

    study = optuna.create_study()
    optimize(study, objective, n_trials=1)
    assert [t.value for t in study.trials] == [1.0]


def test_what_optuna_keeps_in_the_storage_of_a_trial_gets_there(optimize, tmp_path):
    from optuna.artifacts import FileSystemArtifactStore, get_all_artifact_meta, upload_artifact
    from optuna.terminator import report_cross_validation_scores

    (tmp_path / "kept").mkdir()
    store = FileSystemArtifactStore(str(tmp_path / "kept"))

    def objective(trial):
        made = tmp_path / f"model-{trial.number}.txt"
        made.write_text("weights")
        trial.set_user_attr("artifact", upload_artifact(artifact_store=store, file_path=made, study_or_trial=trial))
        report_cross_validation_scores(trial, [0.5, 0.25])
        (meta,) = get_all_artifact_meta(trial)
        assert isinstance(trial.storage, optuna.storages.BaseStorage)
        return len(meta.filename)

    study = optuna.create_study(storage=f"sqlite:///{tmp_path}/study.db")
    optimize(study, objective, n_trials=2)
    for trial in study.trials:
        (meta,) = get_all_artifact_meta(trial, storage=study._storage)
        assert meta.artifact_id == trial.user_attrs["artifact"]
        assert [0.5, 0.25] in trial.system_attrs.values()


def test_an_objective_cannot_optimize_its_own_study(optimize):
    study = optuna.create_study()
    with pytest.raises(RuntimeError, match="Nested"):
        optimize(study, lambda trial: trial.study.optimize(quadratic, n_trials=1), n_trials=1)
    with pytest.raises(cotune.InputError, match="within"):
        optimize(study, quadratic, n_trials=1, callbacks=[lambda study, trial: optimize(study, quadratic, 1)])
    assert {t.state.is_finished() for t in study.trials} == {True}


def test_residents_of_one_lane_ask_by_turns(optimize):
    def objective(trial):
        values = [trial.suggest_float(f"x{number}", 0, 1) for number in range(20)]
        for step in range(20):
            trial.report(values[step], step)
            trial.should_prune()
        trial.set_user_attr("pid", os.getpid())
        return sum(values)

    study = optuna.create_study()
    optimize(study, objective, n_trials=6, lanes=1, residents=3)
    assert [t.state for t in study.trials] == [TrialState.COMPLETE] * 6
    assert all(t.value == sum(t.params.values()) for t in study.trials)
    assert len({t.user_attrs["pid"] for t in study.trials}) == 1


def test_a_timeout_lets_running_trials_finish_and_begins_no_other(optimize):
    def objective(trial):
        time.sleep(0.4)
        return 1.0

    study = optuna.create_study()
    optimize(study, objective, timeout=1, lanes=1)
    assert 1 <= len(study.trials) <= 3
    assert {t.state for t in study.trials} == {TrialState.COMPLETE}


@pytest.mark.parametrize("timeout", [0, -0.5, timedelta(0)])
def test_a_timeout_that_is_over_begins_no_trial(optimize, timeout):
    study = optuna.create_study()
    optimize(study, quadratic, n_trials=3, timeout=timeout)
    assert study.trials == []


def test_an_infinite_timeout_is_none(optimize):
    study = optuna.create_study()
    optimize(study, quadratic, n_trials=2, timeout=float("inf"))
    assert len(study.trials) == 2


def test_what_a_trainable_of_cotune_calls_works_too(optimize, tmp_path):
    def objective(trial):
        assert cotune.device() == "cpu"
        assert cotune.trial_id() == trial.number
        assert cotune.shared("data", lambda: 5) == 5
        trial.report(1.0, 0)
        with cotune.checkpoint() as path:
            (path / "state").write_text("saved")
        print("printed")
        assert (cotune.restore() / "state").read_text() == "saved"
        cotune.report({"loss": 1.0})

    with pytest.raises(cotune.InputError, match=r"trial\.report"):
        optimize(optuna.create_study(), objective, n_trials=1, name="run")
    folder = tmp_path / "runs" / "run" / "trials" / "0000"
    assert (folder / "log.txt").read_text() == "printed\n"
    assert "InputError" in (folder / "error.txt").read_text()


counted = 0


def test_a_variable_that_would_not_change_here_is_warned_of(optimize, said):
    seen = 0

    def objective(trial, power):
        nonlocal seen
        global counted
        seen, counted = seen + 1, counted + 1
        local = [power for _ in range(2)]
        return trial.suggest_float("x", 0, 1) ** local[0]

    class Objective:
        def __call__(self, trial):
            return objective(trial, 2)

    study = optuna.create_study()
    for harmless in (quadratic, Objective(), len):
        assert assigned_outside(harmless) == []
    optimize(study, functools.partial(objective, power=2), n_trials=1)
    warned = [line for level, line in said if level == "WARNING"]
    assert len(warned) == 1
    assert "assigns counted, seen," in warned[0]
    assert (seen, counted) == (0, 0)


def test_what_optuna_takes_by_position_is_taken_in_its_order():
    mine, theirs = (list(inspect.signature(f).parameters.values()) for f in (cotune.optimize, optuna.Study.optimize))
    assert [p.name for p in mine if p.kind is p.POSITIONAL_OR_KEYWORD][2:] == [p.name for p in theirs][2:]
    assert [p.default for p in mine][2 : len(theirs)] == [p.default for p in theirs][2:]


def test_options_that_run_has_too_have_the_same_types():
    mine, theirs = (inspect.signature(f).parameters for f in (cotune.optimize, cotune.run))
    both = mine.keys() & theirs.keys() - {"callbacks"}
    assert "iteration_timeout" in both
    assert {name: mine[name].annotation for name in both} == {name: theirs[name].annotation for name in both}


def test_an_objective_that_cannot_travel_is_called_the_objective(optimize):
    lock = threading.Lock()

    def objective(trial):
        with lock:
            return 1.0

    with pytest.raises(cotune.NotPicklable) as refused:
        optimize(optuna.create_study(), objective, n_trials=1)
    assert refused.value.message.startswith("'lock' of the objective cannot be sent to a lane process")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"study": None}, "not an Optuna study"),
        ({"objective": 3}, "cannot be called"),
        ({"objective": None, "func": lambda trial: 3}, "second argument"),
        ({"objective": lambda: 3}, "the objective lambda() cannot be called with one argument"),
        ({"n_trials": 1.5}, "n_trials=1.5"),
        ({"n_trials": "10"}, "n_trials='10'"),
        ({"n_jobs": 4}, "lanes="),
        ({"catch": 3}, "catch"),
        ({"callbacks": 3}, "callbacks"),
        ({"timeout": "3"}, "timeout='3'"),
        ({"timeout": float("nan")}, "timeout=nan"),
        ({"lanes": 0}, "lanes=0"),
        ({"gpus": 99}, "gpu"),
        ({"storage": "sqlite:///study.db"}, "create_study"),
        ({"storage": ""}, "storage=''"),
        ({"grants": "no"}, "grants='no'"),
        ({"dashboard": 1}, "dashboard=1"),
        ({"name": "a/b"}, "name="),
        ({"cluster": "auto"}, "on each machine"),
        ({"max_failures": 2}, "catch="),
        ({"stop": {"loss": 0.1}}, "study.stop()"),
        ({"lockstep": True}, "leave it out"),
        ({"priority": 1.0}, "only cotune.run() has it"),
    ],
)
def test_bad_input_is_refused_with_a_hint_before_anything_starts(tmp_path, change, says):
    options = {"study": optuna.create_study(), "objective": quadratic, "n_trials": 3, "storage": tmp_path / "runs"}
    with pytest.raises(cotune.InputError) as caught:
        cotune.optimize(**{**options, **change})
    assert says in str(caught.value)
    assert caught.value.hint
    assert not (tmp_path / "runs").exists()


class OwnStorage(optuna.storages.InMemoryStorage):
    pass


IN_MEMORY = pytest.mark.parametrize("in_memory", [optuna.storages.InMemoryStorage, OwnStorage])


@IN_MEMORY
def test_an_objective_that_names_its_studys_storage_in_memory_sees_the_study(optimize, in_memory):
    def tune(run):
        storage = in_memory()
        study = optuna.create_study(study_name="mine", storage=storage)
        beside = optuna.create_study(study_name="beside", storage=storage)

        def objective(trial):
            x = trial.suggest_float("x", 0, 1)
            trial.set_user_attr("seen", len(optuna.load_study(study_name="mine", storage=storage).trials))
            beside.enqueue_trial({"x": x})
            return x

        run(study, objective, n_trials=3)
        return [t.user_attrs["seen"] for t in study.trials], len(beside.trials)

    assert tune(functools.partial(optimize, lanes=1)) == tune(optuna.Study.optimize) == ([1, 2, 3], 3)


@IN_MEMORY
def test_a_storage_in_memory_of_other_studies_is_warned_of(optimize, said, in_memory):
    other = optuna.create_study(storage=in_memory())

    def objective(trial):
        other.enqueue_trial({"x": 1.0})
        return 0.0

    optimize(optuna.create_study(), objective, n_trials=2)
    assert [text for level, text in said if "storage in memory" in text and level == "WARNING"]
    assert not other.trials


def test_callbacks_may_save_the_study(optimize, tmp_path):
    def save(study, trial):
        (tmp_path / "study.pkl").write_bytes(pickle.dumps(study))

    optimize(optuna.create_study(), quadratic, n_trials=3, callbacks=[save])
    assert len(pickle.loads((tmp_path / "study.pkl").read_bytes()).trials) == 3


def test_log_lines_show_parameters_as_they_were_suggested(optimize, said):
    def objective(trial):
        x, n = trial.suggest_float("x", 0, 9), trial.suggest_categorical("n", [True, 1, 2])
        if trial.number == 1:
            raise ValueError("planned")
        return x + n

    lines = []
    for run in (optuna.Study.optimize, functools.partial(optimize, lanes=1)):
        said.clear()
        study = optuna.create_study()
        study.enqueue_trial({"x": 3, "n": 1})
        study.enqueue_trial({"x": 4, "n": 1})
        run(study, objective, n_trials=2, catch=(ValueError,))
        lines.append([text for _, text in said if "parameters" in text])
    theirs, ours = lines
    assert "{'x': 3, 'n': 1}" in ours[0]
    # Optuna 4.4 shows what is stored.
    stored = [text.replace("3, 'n': 1", "3.0, 'n': True").replace("4, 'n': 1", "4.0, 'n': True") for text in ours]
    assert theirs in (ours, stored)
