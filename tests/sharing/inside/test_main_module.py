"""What a trial has of the user's script, in the main module of its lane."""

import functools
import pickle
import sys
from types import FunctionType, SimpleNamespace

import pytest

from cotune.script.by_value import dumps, functions_of_script
from cotune.sharing.inside.main_module import MainModule


def code(config):
    return helper_of_the_script(config)  # noqa: F821


def helper(config):
    return config


@pytest.fixture
def script():
    """A function of a script, as cloudpickle makes it in another process."""
    names = {"__name__": "__main__", "__file__": "script.py"}
    function = FunctionType(code.__code__, names, "train_of_the_script")
    function.__module__ = "__main__"
    names["helper_of_the_script"] = made = FunctionType(helper.__code__, names, "helper_of_the_script")
    made.__module__, made.__qualname__ = "__main__", "helper_of_the_script"
    return function


def forms(function):
    step_class = type("Steps", (), {"setup": function})
    return [
        function,
        functools.partial(function, 1),
        functools.partial(functools.partial(function)),
        functools.wraps(function)(lambda config: function(config)),
        step_class,
        step_class(),
        step_class().setup,
        SimpleNamespace(func=function),
        type("Inherits", (step_class,), {"func": "sphere"})(),
        functools.partial(map, function),
    ]


def functions_of(trainable):
    """The functions that come with a trainable in another process."""
    with functions_of_script() as functions:
        pickle.loads(dumps(trainable))
    return functions


@pytest.mark.parametrize("form", range(10))
def test_functions_of_the_script_can_be_pickled_by_name(script, form):
    functions = functions_of(forms(script)[form])
    main = MainModule(functions)
    main.enter()
    helper = functions[0].__globals__["helper_of_the_script"]
    assert pickle.loads(pickle.dumps(helper)) is helper
    assert getattr(sys.modules["__main__"], "__file__", None) != "script.py"
    main.leave()
    assert not hasattr(sys.modules["__main__"], "helper_of_the_script")


def test_a_decorated_function_has_its_name_and_not_the_one_behind_it(script):
    behind = FunctionType(helper.__code__, script.__globals__, "helper")
    script.__module__, behind.__module__, script.behind = "__main__", "__main__", behind
    script.__name__ = script.__qualname__ = behind.__name__ = behind.__qualname__ = "decorated_in_the_script"
    functions = functions_of(script)
    main = MainModule(functions)
    main.enter()
    assert sys.modules["__main__"].decorated_in_the_script is functions[0]
    assert functions[0].behind in functions
    main.leave()


def test_classes_that_came_with_objects_can_be_pickled_by_name(script):
    settings = type("SettingsOfTheScript", (), {"__module__": "__main__"})
    inner = type("Inner", (), {"__module__": "__main__", "__qualname__": "Outer.Inner"})
    main = MainModule([script], [settings, inner, int])
    main.enter()
    assert type(pickle.loads(pickle.dumps(settings()))) is settings
    assert not hasattr(sys.modules["__main__"], "Inner")
    main.leave()
    assert not hasattr(sys.modules["__main__"], "SettingsOfTheScript")


def test_nested_classes_are_found_also_where_only_they_have_come(script):
    def nested(name):
        return type(name.rpartition(".")[2], (), {"__module__": "__main__", "__qualname__": name})

    config, deeper, known = nested("Model.Config"), nested("Model.Data.Config"), nested("Known.Config")
    outer = type("Known", (), {"__module__": "__main__", "Config": known})
    main = MainModule([script], [config, deeper, known, outer])
    main.enter()
    assert [type(pickle.loads(pickle.dumps(cls()))) for cls in (config, deeper, known)] == [config, deeper, known]
    assert sys.modules["__main__"].Known is outer
    main.leave()
    assert not hasattr(sys.modules["__main__"], "Model")


def test_a_successor_with_the_same_names_keeps_its_own(script):
    other = FunctionType(code.__code__, {"__name__": "__main__", "helper_of_the_script": 2}, "train")
    first, second = MainModule([script]), MainModule([other])
    first.enter()
    second.enter()
    first.leave()
    assert sys.modules["__main__"].helper_of_the_script == 2
    second.leave()


@pytest.mark.parametrize("trainable", [print, functools.partial(print), helper, SimpleNamespace(), object(), 3])
def test_what_is_not_of_the_script_leaves_the_main_module_alone(trainable):
    before = dict(vars(sys.modules["__main__"]))
    MainModule(functions_of(trainable)).enter()
    assert dict(vars(sys.modules["__main__"])) == before
