"""Classes that JAX knows as pytrees are known to it in another process."""

import dataclasses
import pickle
import sys
from types import ModuleType

import pytest

from cotune.script import by_value, pytrees


@pytest.fixture
def table(monkeypatch):
    """The table of a JAX."""
    inner, outer = ModuleType("jax._src.tree_util"), ModuleType("jax.tree_util")
    inner._registry = {}

    def register_pytree_node(cls, flatten, unflatten):
        inner._registry[cls] = flatten, unflatten

    def register_dataclass(cls, data_fields, meta_fields, drop_fields=()):
        def unflatten_func(meta, data):
            return cls(**dict(zip([*meta_fields, *data_fields], [*meta, *data], strict=True)))

        def flatten_func(value):
            return [getattr(value, name) for name in data_fields], [getattr(value, name) for name in meta_fields]

        assert {one.name for one in dataclasses.fields(cls)} == {*data_fields, *meta_fields, *drop_fields}
        unflatten_func.__qualname__ = "register_dataclass.<locals>.unflatten_func"
        inner._registry[cls] = flatten_func, unflatten_func

    outer.register_pytree_node, outer.register_dataclass = register_pytree_node, register_dataclass
    for module in (ModuleType("jax"), ModuleType("jax._src"), inner, outer):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return inner._registry


def travelled(cls, table):
    """The class as it is in a process that has not seen it."""
    pickled = by_value.dumps(cls)
    table.clear()
    by_value.forget_classes()
    there = pickle.loads(pickled)
    assert list(table) == [there]
    return there


def test_a_registered_dataclass_has_its_leaves(table):
    @dataclasses.dataclass
    class State:
        weights: list
        step: int
        cache: int = 0

    sys.modules["jax.tree_util"].register_dataclass(State, ["weights"], ["step"], ["cache"])
    flatten, unflatten = table[travelled(State, table)]
    assert flatten(State([1], 2)) == ([[1]], [2])
    assert vars(unflatten([2], [[1]])) == {"weights": [1], "step": 2, "cache": 0}


def test_a_class_with_functions_of_its_own_has_its_leaves(table):
    class Pair:
        def __init__(self, *parts):
            self.parts = parts

        @classmethod
        def unflatten(cls, aux, parts):
            return cls(*parts)

    sys.modules["jax.tree_util"].register_pytree_node(Pair, lambda pair: (pair.parts, None), Pair.unflatten)
    there = travelled(Pair, table)
    flatten, unflatten = table[there]
    assert flatten(there(1, 2)) == ((1, 2), None)
    assert type(unflatten(None, (1, 2))) is there


def test_a_class_that_is_known_stays_as_it_is(table):
    class Leaf:
        pass

    assert pytrees.known(Leaf) is None
    table[Leaf] = (len, len)
    pytrees.tell(Leaf, pytrees.Functions(len, repr))
    assert pytrees.known(Leaf) == (len, len)
