"""What can be tuned, and how a step class is driven."""

import contextlib
import functools
import itertools
import sys

import optuna
import pytest

import cotune
from cotune import session, trainable
from cotune.errors import InputError
from cotune.paths import TrialFolder
from cotune.trainable import call, check_trainable, takes


def train(config):
    return config["x"]


class CallableObject:
    def __call__(self, config):
        return config["x"]

    def method(self, config):
        return config["x"]

    @classmethod
    def class_method(cls, config):
        return config["x"]

    @staticmethod
    def static_method(config):
        return config["x"]


class CallableWithFunc(CallableObject):
    func = "sphere"


class Steps:
    """Counts to config["steps"]."""

    def setup(self, config):
        self.config, self.count = config, 0

    def step(self):
        self.count += 1
        return {"count": self.count, "done": self.count >= self.config["steps"]}


class SavingSteps(Steps):
    def save(self, path):
        (path / "count").write_text(str(self.count))

    def load(self, path):
        self.count = int((path / "count").read_text())


@pytest.mark.parametrize(
    ("what", "name"),
    [
        pytest.param(train, "train", id="function"),
        pytest.param(lambda config: 1, "lambda", id="lambda"),
        pytest.param(functools.partial(train), "train", id="partial"),
        pytest.param(functools.partial(lambda data, config: 1, [1]), "lambda", id="partial of a lambda"),
        pytest.param(functools.partial(lambda config, data: 1, data=[1]), "lambda", id="partial with a keyword"),
        pytest.param(CallableObject(), "CallableObject", id="callable object"),
        pytest.param(functools.partial(CallableObject()), "CallableObject", id="partial of a callable object"),
        pytest.param(CallableWithFunc(), "CallableWithFunc", id="callable object with an attribute func"),
        pytest.param(CallableObject().method, "method", id="bound method"),
        pytest.param(CallableObject.class_method, "class_method", id="class method"),
        pytest.param(CallableObject.static_method, "static_method", id="static method"),
        pytest.param(lambda config, verbose=False: 1, "lambda", id="further argument with a default"),
        pytest.param(lambda *args: 1, "lambda", id="any arguments"),
        pytest.param(len, "len", id="builtin"),
        pytest.param(Steps, "Steps", id="step class"),
        pytest.param(SavingSteps, "SavingSteps", id="step class that inherits"),
    ],
)
def test_what_can_be_tuned_has_a_name(what, name):
    assert check_trainable(what) == name


def with_data(function):
    return functools.wraps(function)(lambda config: function(config, [1]))


def test_a_decorator_may_supply_arguments():
    assert check_trainable(with_data(lambda config, data: 1)) == "lambda"
    assert takes(with_data(lambda config, data: 1), 1)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        pytest.param(lambda: 1, "lambda()", id="no argument"),
        pytest.param(lambda config, data: 1, "(config, data)", id="two arguments"),
        pytest.param(lambda *, config: 1, "(*, config)", id="keyword only"),
        pytest.param(functools.partial(train, {}), "train()", id="partial with nothing left"),
        pytest.param(functools.wraps(train)(lambda: 1), "train()", id="decorator that takes nothing"),
        pytest.param(CallableObject.method, "method(self, config)", id="unbound method"),
    ],
)
def test_what_cannot_be_called_with_a_config_is_refused(what, said):
    with pytest.raises(InputError) as refused:
        check_trainable(what)
    assert said in refused.value.message
    assert "def train(config)" in refused.value.hint


@pytest.mark.skipif(sys.version_info < (3, 14), reason="until Python 3.13 annotations were computed at once")
def test_a_function_annotated_with_a_name_for_type_checkers_only_can_be_tuned():
    variables = {}
    exec("def train(config: Settings) -> Loss: pass", variables)
    assert check_trainable(variables["train"]) == "train"


@pytest.mark.parametrize("what", ["train", 5, None, {"x": 1}, Steps()], ids=lambda what: type(what).__name__)
def test_what_cannot_be_called_at_all_is_refused(what):
    with pytest.raises(InputError, match="cannot be called"):
        check_trainable(what)


def test_an_object_of_a_step_class_and_a_study_are_refused_with_what_takes_them():
    with pytest.raises(InputError) as refused:
        check_trainable(Steps())
    assert "pass the class itself, Steps" in refused.value.hint
    with pytest.raises(InputError) as refused:
        check_trainable(optuna.create_study())
    assert "cotune.optimize(" in refused.value.hint


@pytest.mark.parametrize("missing", ["setup", "step"])
def test_a_class_without_setup_or_step_is_refused(missing):
    cls = type("Partly", (), {name: getattr(Steps, name) for name in {"setup", "step"} - {missing}})
    with pytest.raises(InputError) as refused:
        check_trainable(cls)
    assert "Partly" in refused.value.message
    assert "setup(self, config)" in refused.value.hint


def test_a_class_that_cannot_be_made_without_arguments_is_refused():
    class Configured(Steps):
        def __init__(self, config):
            self.setup(config)

    with pytest.raises(InputError) as refused:
        check_trainable(Configured)
    assert "Configured(config)" in refused.value.message
    assert "setup(self, config)" in refused.value.hint


def test_a_class_whose_step_is_no_method_is_refused():
    with pytest.raises(InputError):
        check_trainable(type("Odd", (), {"setup": Steps.setup, "step": 3}))


@pytest.mark.parametrize("name", ["save", "load", "rehearse"])
def test_a_class_whose_optional_part_is_no_method_is_refused(name):
    with pytest.raises(InputError, match=f"Odd.{name} is 5"):
        check_trainable(type("Odd", (Steps,), {name: 5}))


@pytest.mark.parametrize(
    ("name", "method", "said"),
    [
        ("setup", lambda self: None, "setup(self) cannot be called with one argument"),
        ("step", lambda self, batch: None, "step(self, batch) cannot be called with no argument"),
        ("cleanup", lambda self, path: None, "cleanup(self, path) cannot be called with no argument"),
        ("load", staticmethod(lambda: None), "load() cannot be called with one argument"),
    ],
    ids=["setup", "step", "cleanup", "static"],
)
def test_a_class_whose_methods_take_other_arguments_is_refused(name, method, said):
    with pytest.raises(InputError) as refused:
        check_trainable(type("Odd", (Steps,), {name: method}))
    assert said in refused.value.message


@pytest.mark.parametrize(
    "parts",
    [
        {"load": staticmethod(lambda path: None)},
        {"step": type("Step", (), {"__call__": lambda self: None})()},
        {"step": functools.wraps(lambda self, batch: None)(lambda self: None)},
    ],
    ids=["static", "callable object", "decorated"],
)
def test_a_class_may_have_methods_of_any_kind(parts):
    assert check_trainable(type("Odd", (Steps,), parts)) == "Odd"


def test_a_function_is_called_with_the_config_and_gives_what_it_returns():
    assert call(train, {"x": 5}) == 5


def test_a_step_class_runs_outside_of_a_run_until_it_says_done(capsys):
    assert call(Steps, {"steps": 3}) is None
    assert capsys.readouterr().out.splitlines() == [
        "count=1, done=False",
        "count=2, done=False",
        "count=3, done=True",
    ]


def test_a_step_class_ends_when_a_step_gives_none(capsys):
    class Ends(Steps):
        def step(self):
            self.count += 1
            return {"count": self.count} if self.count <= 2 else None

    call(Ends, {})
    assert capsys.readouterr().out == "count=1\ncount=2\n"


def test_a_step_class_cleans_up_also_after_an_error():
    cleaned = []

    class Fails(Steps):
        def step(self):
            raise ZeroDivisionError

        def cleanup(self):
            cleaned.append(True)

    with pytest.raises(ZeroDivisionError):
        call(Fails, {})
    assert cleaned == [True]


def test_an_optional_part_that_is_none_is_not_there(in_session):
    with cotune.checkpoint() as path:
        (path / "count").write_text("1")
    call(type("Bare", (SavingSteps,), {"save": None, "load": None, "cleanup": None}), {"steps": 1})


def test_what_cleaning_up_raises_is_told_and_changes_no_outcome(capsys):
    class CannotCleanUp(Steps):
        def cleanup(self):
            self.file.close()

    class Fails(CannotCleanUp):
        def setup(self, config):
            raise ZeroDivisionError

    call(CannotCleanUp, {"steps": 1})
    assert "no attribute 'file'" in capsys.readouterr().err
    with pytest.raises(ZeroDivisionError):
        call(Fails, {})
    assert "no attribute 'file'" in capsys.readouterr().err


def test_a_step_class_cleans_up_also_when_loading_fails(in_session):
    cleaned = []

    class CannotLoad(SavingSteps):
        def load(self, path):
            raise ZeroDivisionError

        def cleanup(self):
            cleaned.append(True)

    with cotune.checkpoint() as path:
        (path / "count").write_text("1")
    with pytest.raises(ZeroDivisionError):
        call(CannotLoad, {"steps": 1})
    assert cleaned == [True]


class Crash(Exception):
    pass


class FakeSession:
    """A run's side of one trial: reports kept by number as the driver keeps them, checkpoints in a folder."""

    def __init__(self, folder):
        self.folder = TrialFolder(folder)
        self.reports = []
        self.crash_after = None

    trial = 0
    met_stop_rule = False

    def restart(self):
        del self.reports[self.folder.reports_at_checkpoint() :]

    def report(self, metrics, step):
        self.reports.append(metrics["count"])
        if self.crash_after == len(self.reports):
            raise Crash

    @contextlib.contextmanager
    def checkpoint(self):
        path = self.folder.begin_checkpoint()
        yield path
        self.folder.publish_checkpoint(path, len(self.reports))

    def leave_if_over(self):
        pass

    def restore(self):
        return self.folder.latest_checkpoint()


@pytest.fixture
def in_session(tmp_path):
    fake = FakeSession(tmp_path)
    session.bind(fake)
    yield fake
    session.bind(None)


def test_a_step_class_without_save_takes_no_checkpoint(in_session, monkeypatch):
    monkeypatch.setattr(trainable, "CHECKPOINT_EVERY", 0.0)
    call(Steps, {"steps": 3})
    assert in_session.restore() is None


def test_a_step_class_is_saved_every_few_seconds_only(in_session, monkeypatch):
    seconds = itertools.count(0.0, 2.0)
    monkeypatch.setattr(trainable.time, "monotonic", lambda: next(seconds))
    saved = []

    class Noting(SavingSteps):
        def save(self, path):
            saved.append(self.count)
            super().save(path)

    call(Noting, {"steps": 9})
    # The clock is read once at the start, once a step and once a save: 5 s are three readings.
    assert saved == [3, 6, 9]


class UntilNone(SavingSteps):
    def step(self):
        return None if self.count == self.config["steps"] else {"count": super().step()["count"]}


@pytest.mark.parametrize("cls", [SavingSteps, UntilNone])
def test_a_step_class_is_saved_once_after_its_last_step(in_session, cls):
    call(cls, {"steps": 3})
    assert (in_session.restore() / "count").read_text() == "3"
    assert len(list(in_session.folder.checkpoints.iterdir())) == 1


def test_a_step_class_that_stop_ends_is_saved_before(in_session):
    in_session.met_stop_rule = True

    def leave():
        raise session.TrialStopped

    in_session.leave_if_over = leave
    with pytest.raises(session.TrialStopped):
        call(SavingSteps, {"steps": 3})
    assert (in_session.restore() / "count").read_text() == "1"


@pytest.mark.parametrize("crash_after", range(1, 6))
def test_a_step_class_that_starts_again_reports_every_step_once(in_session, monkeypatch, crash_after):
    monkeypatch.setattr(trainable, "CHECKPOINT_EVERY", 0.0)
    in_session.crash_after = crash_after
    with pytest.raises(Crash):
        call(SavingSteps, {"steps": 6})
    in_session.crash_after = None
    in_session.restart()
    call(SavingSteps, {"steps": 6})
    assert in_session.reports == [1, 2, 3, 4, 5, 6]


def test_a_step_class_goes_on_from_its_checkpoint(in_session):
    with cotune.checkpoint() as path:
        (path / "count").write_text("4")
    call(SavingSteps, {"steps": 6})
    assert in_session.reports == [5, 6]


def test_coroutine_and_generator_functions_are_refused():
    async def coroutine(config):
        return 1.0

    def generator(config):
        yield 1.0

    async def both(config):
        yield 1.0

    class Called:
        async def __call__(self, config):
            return 1.0

    for refused in (coroutine, generator, both, Called()):
        with pytest.raises(InputError, match="would run nothing"):
            check_trainable(refused)
