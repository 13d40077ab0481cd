"""Errors travel between processes whole, and say what to do."""

import inspect
import pickle
import re

import pytest

from cotune import errors
from cotune.errors import CotuneError

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, Exception) and value.__module__ == errors.__name__
]
BY_NAME = {cls.__name__: cls for cls in CLASSES}


def tree() -> list[tuple[int, str, str]]:
    """Depth, name and other base of every class drawn in the module's docstring."""
    drawn = []
    for line in errors.__doc__.splitlines():
        match = re.match(r"((?:[│├└]|──| )*?)(?:├── |└── )?([A-Z]\w+)(?: \((\w+)\))?  ", line)
        if match:
            drawn.append((line.index(match[2]) // 4, match[2], match[3] or ""))
    return drawn


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_survives_pickling_with_message_and_hint(cls):
    copy = pickle.loads(pickle.dumps(cls("no such thing: 'x'", hint="write 'y'")))
    assert type(copy) is cls
    assert (copy.message, copy.hint) == ("no such thing: 'x'", "write 'y'")
    assert copy.args == ("no such thing: 'x'",)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_shows_message_and_hint(cls):
    assert str(cls("no such thing: 'x'", hint="write 'y'")) == "no such thing: 'x'\n  hint: write 'y'"


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_error_without_a_hint_is_its_message(cls):
    assert str(cls("no such thing: 'x'")) == "no such thing: 'x'"


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_is_a_cotune_error_and_says_what_it_is(cls):
    assert issubclass(cls, CotuneError)
    assert cls.__doc__


def test_pickling_keeps_the_hint_of_a_subclass_defined_elsewhere():
    class Mine(CotuneError):
        pass

    rebuild, arguments = Mine("a", hint="b").__reduce__()
    copy = rebuild(*arguments)
    assert (type(copy), copy.message, copy.hint) == (Mine, "a", "b")


def test_wrong_arguments_are_value_errors():
    with pytest.raises(ValueError, match="bad"):
        raise errors.InputError("bad")


def test_the_drawn_tree_lists_every_class():
    assert sorted(name for _, name, _ in tree()) == sorted(BY_NAME)


def test_the_drawn_tree_has_the_real_bases():
    above: dict[int, str] = {}
    for depth, name, other in tree():
        above[depth] = name
        expected = [above[depth - 1]] if depth else ["Exception"]
        assert [base.__name__ for base in BY_NAME[name].__bases__] == expected + ([other] if other else [])


def test_every_class_is_public():
    import cotune

    assert set(BY_NAME) <= set(cotune.__all__)
