"""Sending a trainable to a process that knows nothing of where it came from."""

import functools
import importlib
import importlib.util
import pickle
import socket
import subprocess
import sys
import threading
import types

import numpy as np
import pytest

from cotune.errors import NotPicklable
from cotune.script.pickling import dumps, pack


def called_elsewhere(blob, argument, use="made(argument)"):
    """What the pickled function gives in a fresh process that has our import path, as a zygote has."""
    code = (
        "import pickle, sys; sys.path[:] = eval(sys.argv[1]); argument = eval(sys.argv[2]); "
        f"made = pickle.load(sys.stdin.buffer); print(repr({use}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, repr(sys.path), repr(argument)],
        input=blob,
        capture_output=True,
        timeout=60,
        check=False,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr.decode()
    return eval(done.stdout.decode())


def importable(config):
    return config["x"] + 3


def test_a_lazy_module_travels_by_name_as_any_other_does():
    """`optuna.integration` is one of a class of its own, which cloudpickle takes for an object."""
    import optuna.integration

    assert type(optuna.integration) is not type(optuna)
    blob = dumps(lambda made: optuna.integration.__name__, "it")
    assert called_elsewhere(blob, None) == "optuna.integration"


@pytest.fixture
def stray_module(tmp_path):
    """A module that this process has loaded from a file, and that no other process would find."""
    path = tmp_path / "stray.py"
    path.write_text(
        "import functools\n"
        "import threading\n"
        "FACTOR = 10\n"
        "LOCK = threading.Lock()\n"
        "def scaled(x):\n"
        "    return x * FACTOR\n"
        "kept = functools.cache(scaled)\n"
        "def kept_train(config):\n"
        "    return kept(config['x'])\n"
        "def train(config):\n"
        "    return scaled(config['x'])\n"
        "class Scale:\n"
        "    def __init__(self, extra):\n"
        "        self.extra = extra\n"
        "    def __call__(self, config):\n"
        "        return scaled(config['x']) + self.extra\n"
        "    def method(self, config):\n"
        "        return scaled(config['x']) - self.extra\n"
        "class Steps:\n"
        "    def setup(self, config):\n"
        "        self.x = config['x']\n"
        "    def step(self):\n"
        "        return scaled(self.x)\n"
        "def locked(config):\n"
        "    with LOCK:\n"
        "        return 1\n"
    )
    spec = importlib.util.spec_from_file_location("stray", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["stray"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["stray"]


def test_a_lambda_travels():
    assert called_elsewhere(dumps(lambda config: config["x"] + 1, "it"), {"x": 4}) == 5


def test_a_closure_travels_with_what_it_holds():
    offset = [5]

    def train(config):
        return config["x"] + offset[0]

    assert called_elsewhere(dumps(train, "it"), {"x": 4}) == 9


def test_a_locally_defined_class_travels():
    class Local:
        def __call__(self, config):
            return config["x"] * 2

    assert called_elsewhere(dumps(Local(), "it"), {"x": 4}) == 8


def test_a_function_whose_module_was_replaced_by_an_object_travels(monkeypatch):
    monkeypatch.setitem(sys.modules, "replaced", types.SimpleNamespace())
    monkeypatch.setattr(importable, "__module__", "replaced")
    assert called_elsewhere(dumps(importable, "it"), {"x": 4}) == 7


def test_a_function_of_a_module_on_the_import_path_travels():
    assert called_elsewhere(dumps(importable, "it"), {"x": 4}) == 7


def test_a_function_of_a_module_that_another_process_cannot_import_travels_with_its_helpers(stray_module):
    assert called_elsewhere(dumps(stray_module.train, "it"), {"x": 4}) == 40


def test_a_partial_of_such_a_function_travels(stray_module):
    assert called_elsewhere(dumps(functools.partial(stray_module.train), "it"), {"x": 4}) == 40


def test_a_callable_object_of_such_a_module_travels(stray_module):
    assert called_elsewhere(dumps(stray_module.Scale(3), "it"), {"x": 4}) == 43


def test_a_bound_method_of_such_a_module_travels(stray_module):
    assert called_elsewhere(dumps(stray_module.Scale(3).method, "it"), {"x": 4}) == 37


def test_a_step_class_of_such_a_module_travels(stray_module):
    use = "[m := made(), m.setup(argument), m.step()][-1]"
    assert called_elsewhere(dumps(stray_module.Steps, "it"), {"x": 4}, use) == 40


def test_a_function_that_others_can_import_travels_by_name():
    assert b"randint" in dumps(np.random.randint, "it")
    assert len(dumps(subprocess.check_output, "it")) < 100


def test_pickling_does_not_change_how_a_module_is_pickled_later(stray_module):
    import cloudpickle

    dumps(stray_module.train, "it")
    assert "stray" not in cloudpickle.list_registry_pickle_by_value()


@functools.cache
def remembered(x):
    return x + 1


def test_a_function_with_a_cache_travels_as_functions_do(stray_module):
    @functools.lru_cache(maxsize=7)
    def sum_to(x):
        return x and x + sum_to(x - 1)

    assert sum_to(1) == 1
    use = "(lambda f: [f(argument), *f.cache_info()])(made)"
    assert called_elsewhere(dumps(sum_to, "it"), 2, use) == [3, 0, 3, 7, 3]
    assert called_elsewhere(dumps(stray_module.kept_train, "it"), {"x": 4}) == 40
    assert b"remembered" in dumps(remembered, "it")
    assert len(dumps(remembered, "it")) < 100


def test_a_class_with_what_it_remembers_travels():
    class Data:
        @functools.cached_property
        def rows(self):
            return [1, 2]

        @functools.cache  # noqa: B019
        def sum_and(self, more):
            return sum(self.rows) + more

    blob = dumps(lambda config: (data := Data()).sum_and(config["x"]) and (data.sum_and(4), vars(data)), "it")
    assert called_elsewhere(blob, {"x": 4}) == (7, {"rows": [1, 2]})


def test_a_module_that_two_runs_pickle_at_once_travels_with_both(stray_module):
    import cloudpickle

    class Between:
        def __reduce__(self):
            # As another thread may, just then.
            dumps(stray_module.train, "the other")
            return (int, ("1",))

    one = functools.partial(stray_module.train, {"x": 4, "between": Between()})
    blob = dumps(functools.partial(one, then=stray_module.scaled), "it")
    assert "stray" not in cloudpickle.list_registry_pickle_by_value()
    assert called_elsewhere(blob, None, "made.keywords['then'](4)") == 40


def test_a_module_that_the_user_has_registered_stays_so(stray_module):
    import cloudpickle

    cloudpickle.register_pickle_by_value(stray_module)
    dumps(stray_module.train, "it")
    assert "stray" in cloudpickle.list_registry_pickle_by_value()
    cloudpickle.unregister_pickle_by_value(stray_module)


@pytest.mark.parametrize(
    "unfit",
    [threading.Lock(), (n for n in ()), socket.socket(), threading.current_thread()],
    ids=["lock", "generator", "socket", "thread"],
)
def test_what_cannot_leave_the_process_is_refused_by_name_with_a_way_out(unfit):
    def train(config):
        return unfit

    with pytest.raises(NotPicklable) as refused:
        dumps(train, "the trainable 'train'")
    assert "'unfit' of the trainable 'train' cannot be sent to a lane process" in refused.value.message
    assert "cotune.shared()" in refused.value.hint


class Holder:
    def __init__(self):
        self.parts = {"guard": threading.Lock()}

    def __call__(self, config):
        return 1.0


HOLDER = Holder()


@pytest.mark.parametrize(
    ("unfit", "names"),
    [
        (HOLDER, "'guard' of 'parts' of it "),
        (HOLDER.__call__, "'guard' of 'parts' of it "),
        (functools.partial(len, held=threading.Lock()), "'held' of it "),
        (functools.partial(len, threading.Lock()), "'argument 0' of it "),
    ],
)
def test_a_refusal_says_by_which_names_one_comes_to_what_is_unfit(unfit, names):
    with pytest.raises(NotPicklable) as refused:
        dumps(unfit, "it")
    assert refused.value.message.startswith(names)


def test_a_refusal_names_no_variable_that_is_called_as_an_attribute_is():
    names = {"train": 1, "library": types.SimpleNamespace(train=len), "cv": threading.Lock(), "guard": threading.Lock()}
    exec("def train(config): return library.train(config.cv), (lambda: guard)", names)
    with pytest.raises(NotPicklable) as refused:
        dumps(names["train"], "it")
    assert refused.value.message.startswith("'guard' of it ")


def test_a_refusal_names_no_function_for_naming_itself_or_one_that_names_it():
    names = {"guard": threading.Lock()}
    exec("def deep(n): return deep(n - 1), also(n), guard\ndef also(n): return deep(n)", names)
    with pytest.raises(NotPicklable) as refused:
        dumps(names["deep"], "it")
    assert refused.value.message.startswith("'guard' of it ")


def test_a_refusal_names_what_is_unfit_though_pickling_another_part_adds_to_the_object():
    class Adds:
        def __reduce__(self):
            setattr(held, f"added_{len(vars(held))}", 1)
            return str, ()

    held = types.ModuleType("held")
    held.first, held.guard = Adds(), threading.Lock()
    with pytest.raises(NotPicklable) as refused:
        dumps(functools.partial(len, held), "it")
    assert refused.value.message.startswith("'guard' of 'argument 0' of it ")


def test_a_lock_among_the_globals_it_uses_is_refused(stray_module):
    with pytest.raises(NotPicklable, match="lock"):
        dumps(stray_module.locked, "it")


def test_a_refusal_leaves_no_trace(stray_module):
    import cloudpickle

    with pytest.raises(NotPicklable):
        dumps(stray_module.locked, "it")
    assert "stray" not in cloudpickle.list_registry_pickle_by_value()
    assert called_elsewhere(dumps(stray_module.train, "it"), {"x": 4}) == 40


def test_what_a_trial_pickles_reads_back_here():
    assert pickle.loads(dumps(lambda x: x + 1, "it"))(1) == 2


# ---- what the zygote imports


def test_a_trainable_that_takes_large_data_along_is_told_once_what_that_is():
    data = np.zeros(9 << 20)

    def train(config):
        return data[0]

    with pytest.warns(UserWarning, match=r"takes 72.* MiB along, most of it 'data', .* cotune\.shared"):
        pack(train)


@pytest.mark.ray
@pytest.mark.parametrize("runs", [False, True])
def test_what_ray_tune_keeps_for_a_trainable_travels_with_it_whether_ray_runs_or_not(monkeypatch, runs):
    tune = pytest.importorskip("ray.tune")
    trainable = tune.with_parameters(lambda config, data: data, data=[1, 2])
    (registry,) = (cell.cell_contents for cell in trainable.__closure__ if hasattr(cell.cell_contents, "to_flush"))
    if runs:
        # What it keeps is in Ray's store then, for which the list stands here.
        monkeypatch.setattr("ray.is_initialized", lambda: True)
        monkeypatch.setattr("ray.get", lambda kept: kept)
        registry.references, registry.to_flush = registry.to_flush, {}
    assert called_elsewhere(dumps(trainable, "it"), {}) == [1, 2]
