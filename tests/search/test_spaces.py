from __future__ import annotations

import json
import math
import subprocess
import sys
from argparse import Namespace
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from optuna.distributions import CategoricalDistribution

from cotune.errors import InputError, SpaceError
from cotune.search.domains import (
    Choice,
    Float,
    Integer,
    choice,
    lograndint,
    loguniform,
    qloguniform,
    qrandint,
    quniform,
    randint,
    uniform,
)
from cotune.search.spaces import Space, apart

optuna.logging.set_verbosity(optuna.logging.WARNING)


def relu(x: float) -> float:
    return max(x, 0.0)


@dataclass
class Layer:
    width: Any


class Widget:
    def __init__(self, size: int) -> None:
        self.size = size


def ask(space: Space, seed: int = 0) -> dict[str, Any]:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    return study.ask(space.distributions()).params


@pytest.mark.parametrize(
    ("tree", "value"),
    [
        ({}, "{}"),
        ([1], "list"),
        (None, "NoneType"),
        ({"": 1}, "''"),
        ({"a": {"b/c": 1}}, "'b/c' in 'a'"),
        ({1: 2}, "1"),
        ({"lr": {"grid_search": []}}, "lr: "),
        ({"lr": {"grid_search": "ab"}}, "ab"),
        ({"sizes": [8, randint(1, 4)]}, "sizes: Integer"),
        ({"layers": [{"width": randint(1, 4)}, {"width": 3}]}, "layers: Integer"),
        ({"layers": [[(randint(1, 4),)]]}, "layers: Integer"),
        ({"model": Namespace(width=randint(1, 4))}, "model: Integer"),
        ({"model": Layer(randint(1, 4))}, "model: Integer"),
        ({"optimizer": choice([{"name": "adam", "betas": [randint(1, 4)]}])}, "optimizer: a domain among the options"),
        ({"net": {"lr": uniform}}, "net/lr: uniform itself"),
        ({"lr": type("rv_frozen", (), {"rvs": print})()}, "lr: a distribution of scipy's"),
    ],
)
def test_wrong_spaces_name_the_value_and_hint(tree: Any, value: str) -> None:
    with pytest.raises(SpaceError) as caught:
        Space(tree)
    assert value in caught.value.message
    assert caught.value.hint


def test_a_space_that_holds_itself_is_refused() -> None:
    tree: dict[str, Any] = {"lr": uniform(0, 1)}
    tree["again"] = tree
    endless: list[Any] = [1]
    endless.append(endless)
    for space in (tree, {"constant": endless}):
        with pytest.raises(SpaceError, match="has no end"):
            Space(space)


def test_nested_dicts_are_flattened_and_rebuilt_in_order() -> None:
    space = Space(
        {
            "optimizer": {"name": choice(["adam", "sgd"]), "lr": loguniform(1e-4, 1), "eps": 1e-8},
            "width": qrandint(8, 32, 8),
            "grid": {"grid_search": [1, 2]},
            "empty": {},
        }
    )
    assert list(space.domains) == ["optimizer/name", "optimizer/lr", "width", "grid"]
    assert space.constants == {"optimizer/eps": 1e-8, "empty": {}}
    assert space.domains["grid"] == Choice((1, 2))
    params = {"optimizer/name": "sgd", "optimizer/lr": 0.1, "width": 16, "grid": 2, "other": 1}
    config = space.config(params)
    assert config == {
        "optimizer": {"name": "sgd", "lr": 0.1, "eps": 1e-8},
        "width": 16,
        "grid": 2,
        "empty": {},
    }
    assert list(config) == ["optimizer", "width", "grid", "empty"]
    assert list(config["optimizer"]) == ["name", "lr", "eps"]


def test_a_mapping_of_another_type_is_a_constant_unless_a_domain_is_in_it() -> None:
    class Attributes(dict):  # type: ignore[type-arg]
        __getattr__ = dict.__getitem__

    counts = defaultdict(int, {"a": 1})
    tree = {"own": Attributes(width=8), "counts": counts, "order": OrderedDict(lr=uniform(0, 1)), "plain": {"a": 1}}
    space = Space(tree)
    assert list(space.constants) == ["own", "counts", "plain/a"]
    config = apart(space.config({"order/lr": 0.5}))
    # This class cannot be copied by `copy`, and it can be pickled.
    assert config["own"].width == 8
    assert config["counts"]["b"] == 0
    assert dict(counts) == {"a": 1}
    assert config["order"] == {"lr": 0.5}


def test_a_choice_of_integers_that_no_float_can_be_is_one_of_names() -> None:
    space = Space({"limit": choice([1, 10**400])})
    assert space.features({"limit": 10**400}) != space.features({"limit": 1})
    assert space.config({"limit": 10**400}) == {"limit": 10**400}


def test_constants_only() -> None:
    space = Space({"lr": 0.1, "sizes": [1, 2]})
    assert space.distributions() == {}
    assert space.grid() == {}
    assert space.grid_size() == 1
    assert space.features({}) == {}
    assert space.config({}) == {"lr": 0.1, "sizes": [1, 2]}


def test_configs_share_what_the_space_holds_but_those_for_code_of_the_users_share_no_containers() -> None:
    widget, sizes = Widget(1), [1, [2]]
    space = Space({"widget": widget, "sizes": sizes, "layers": choice([[1], [2]]), "nested": {"seen": {1}}})
    config = space.config({"layers": "0: [1]"})
    assert config["sizes"] is sizes
    own = apart(config)
    assert own == config
    own["sizes"][1].append(3)
    own["layers"].append(3)
    own["nested"]["seen"].add(3)
    assert config == {"widget": widget, "sizes": [1, [2]], "layers": [1], "nested": {"seen": {1}}}
    assert own["widget"] is widget


def test_a_missing_or_unknown_parameter_is_named() -> None:
    space = Space({"a": choice(["x", "y"]), "b": choice([relu])})
    with pytest.raises(InputError, match="'b'"):
        space.config({"a": "x"})
    with pytest.raises(InputError, match="a: 'z'"):
        space.config({"a": "z", "b": "0: relu"})
    with pytest.raises(InputError, match="b: "):
        space.features({"a": "x", "b": relu})


def test_plain_options_stand_for_themselves() -> None:
    options = (None, True, 2, 3.5, "adam")
    space = Space({"a": choice(options)})
    assert space.distributions() == {"a": CategoricalDistribution(options)}
    assert [space.config({"a": option})["a"] for option in options] == list(options)


@pytest.mark.parametrize("options", [(1, 1.0), (1, True), (0, False), (0.0, -0.0), (math.nan, 1.0), (1, 2, relu)])
def test_options_that_optuna_would_confuse_get_labels(options: tuple[Any, ...]) -> None:
    space = Space({"a": choice(options)})
    distribution = space.distributions()["a"]
    assert isinstance(distribution, CategoricalDistribution)
    labels = [str(label) for label in distribution.choices]
    assert [label.split(":")[0] for label in labels] == [str(index) for index in range(len(options))]
    for label, option in zip(labels, options, strict=True):
        decoded = space.config({"a": label})["a"]
        assert type(decoded) is type(option)
        assert repr(decoded) == repr(option)


def test_labels() -> None:
    objects = [relu, Widget, Widget(1), [relu, {"b", "a"}], {"k": (1, None)}, lambda x: x, int, "y" * 99]
    distribution = Space({"a": choice(objects)}).distributions()["a"]
    assert isinstance(distribution, CategoricalDistribution)
    names = [str(label) for label in distribution.choices]
    assert names[:2] == ["0: relu", "1: Widget"]
    assert names[2].startswith("2: <")
    assert names[3:7] == ["3: [relu, {'a', 'b'}]", "4: {'k': (1, None)}", "5: <lambda>", "6: int"]
    assert not any("0x" in name for name in names)
    assert max(map(len, names)) < 70


def test_numpy_scalars_become_python_numbers() -> None:
    space = Space({"a": choice(np.arange(3))})
    assert space.distributions() == {"a": CategoricalDistribution((0, 1, 2))}
    assert type(space.config({"a": 2})["a"]) is int


def test_labels_are_the_same_in_another_process() -> None:
    code = """
import functools, json
from cotune.search.domains import choice
from cotune.search.spaces import Space
class A: ...
def f(): ...
options = [{"b", "a", "c"}, A(), f, functools.partial(f, 1), frozenset({"x", "y", "z"}), [{"p", "q"}]]
print(json.dumps(Space({"a": choice(options)}).distributions()["a"].choices))
"""
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": str(seed), "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in (1, 2)
    }
    assert len(seen) == 1
    assert len(json.loads(seen.pop())) == 6


def test_importing_it_loads_neither_optuna_nor_ray_nor_numpy() -> None:
    code = "import sys, cotune.search.spaces; print({'optuna', 'ray', 'numpy', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "set()"


def test_features() -> None:
    space = Space(
        {
            "lr": loguniform(1e-4, 1),
            "layers": randint(1, 5),
            "batch": choice([32, 64, 64.5]),
            "mixed": choice([1, 1.0]),
            "optimizer": choice(["adam", "sgd"]),
            "amp": choice([True, False]),
            "bad": choice([math.nan, 2.0]),
            "act": choice([relu, abs]),
            "q": qloguniform(0.5, 8, 0.5),
            "constant": 3,
        }
    )
    params = {
        "lr": 0.01,
        "layers": 3,
        "batch": 64,
        "mixed": "1: 1.0",
        "optimizer": "sgd",
        "amp": True,
        "bad": "0: nan",
        "act": "1: abs",
        "q": 1.1,
    }
    assert space.features(params) == {
        "lr": 0.01,
        "layers": 3.0,
        "batch": 64.0,
        "mixed": 1.0,
        "optimizer=sgd": 1.0,
        "amp=True": 1.0,
        "bad=0: nan": 1.0,
        "act=1: abs": 1.0,
        "q": 1.0,
    }
    assert space.config(params)["q"] == 1.0


def test_grid() -> None:
    space = Space(
        {
            "a": quniform(0, 0.3, 0.1),
            "b": Integer(2, 7, step=2),
            "c": choice([relu, abs]),
            "d": choice(["x", "x", "y"]),
            "e": 1,
        }
    )
    assert space.grid() == {
        "a": [0.0, 0.1, 0.2, 0.3],
        "b": [2, 4, 6],
        "c": ["0: relu", "1: abs"],
        "d": ["x", "y"],
    }
    assert space.grid_size() == 4 * 3 * 2 * 2


@pytest.mark.parametrize("option", [uniform(0, 1), {"kind": "sgd", "lr": uniform(0, 1)}])
def test_a_domain_among_the_options_of_a_choice_is_refused(option):
    with pytest.raises(SpaceError, match="optimizer: a domain among the options") as caught:
        Space({"optimizer": choice(["adam", option])})
    assert "cotune.optimize" in caught.value.hint


def test_a_continuous_or_huge_grid_is_refused() -> None:
    space = Space({"a": choice([1]), "lr": uniform(0, 1)})
    assert space.grid_size() is None
    with pytest.raises(SpaceError, match="lr: ") as caught:
        space.grid()
    assert "quniform" in caught.value.hint
    with pytest.raises(SpaceError, match="1,000,000,000 points"):
        Space({"a": randint(0, 10**9)}).grid()


bounds = st.tuples(st.integers(-1000, 1000), st.integers(1, 1000)).map(lambda b: (b[0], b[0] + b[1]))
positive = st.tuples(st.integers(1, 1000), st.integers(1, 1000)).map(lambda b: (b[0], b[0] + b[1]))
floats = st.one_of(
    bounds.map(lambda b: uniform(b[0] / 8, b[1] / 8)),
    positive.map(lambda b: loguniform(b[0] / 8, b[1] / 8)),
    st.builds(lambda b, q: Float(b[0], b[1], step=q / 10), bounds, st.integers(1, 50)),
    st.builds(lambda b, q: Float(b[0], b[1], log=True, step=q / 10), positive, st.integers(1, 50)),
)
integers = st.one_of(
    bounds.map(lambda b: randint(*b)),
    positive.map(lambda b: lograndint(*b)),
    st.builds(lambda b, q: Integer(b[0], b[1], step=q), bounds, st.integers(1, 50)),
    st.builds(lambda b, q: Integer(b[0], b[1], log=True, step=q), positive, st.integers(1, 50)),
)
options = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers()), st.just(relu)
)
choices = st.lists(options, min_size=1, max_size=5).map(choice)
names = st.text(st.characters(blacklist_characters="/", blacklist_categories=["Cs"]), min_size=1, max_size=8)
trees = st.dictionaries(
    names,
    st.recursive(
        st.one_of(floats, integers, choices, st.integers()),
        lambda leaves: st.dictionaries(names, leaves, max_size=3).filter(lambda d: set(d) != {"grid_search"}),
        max_leaves=5,
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=100)
@given(tree=trees, seed=st.integers(0, 2**32 - 1))
def test_configs_respect_bounds_types_and_shape(tree: dict[str, Any], seed: int) -> None:
    space = Space(tree)
    params = ask(space, seed)
    check(tree, space.config(params))
    assert all(math.isfinite(value) for value in space.features(params).values())


def check(tree: Any, value: Any) -> None:
    match tree:
        case Float() | Integer():
            assert type(value) is (float if isinstance(tree, Float) else int)
            assert tree.low <= value <= tree.high
            if tree.step is not None:
                steps = (value - tree.low) / tree.step
                assert math.isclose(steps, round(steps), abs_tol=1e-6)
        case Choice():
            assert any(repr(value) == repr(option) for option in tree.options)
        case dict():
            assert list(value) == list(tree)
            for key in tree:
                check(tree[key], value[key])
        case _:
            assert value == tree
