"""What is loaded, what would be found, and whose it is."""

import sys
import types
from types import ModuleType

import pytest

from cotune.script.installed import is_own, loaded_modules


class Library:
    """As cffi's libraries, which stand among the modules."""

    __slots__ = ()
    __class__ = property(lambda self: ModuleType)


class Lazy(ModuleType):
    """A module that loads something when it is asked for what it does not have."""

    def __getattribute__(self, name):
        raise AssertionError(name)


def test_loaded_modules_are_those_with_variables(monkeypatch):
    assert isinstance(Library(), ModuleType)
    monkeypatch.setitem(sys.modules, "library", Library())
    monkeypatch.setitem(sys.modules, "nothing", None)
    loaded = dict(loaded_modules())
    assert loaded["sys"] is vars(sys)
    assert not {"library", "nothing"} & set(loaded)


def test_no_module_is_asked_for_its_variables(monkeypatch):
    monkeypatch.setitem(sys.modules, "lazy", Lazy("lazy"))
    assert dict(loaded_modules())["lazy"]["__name__"] == "lazy"


def test_a_users_code_below_the_prefix_of_python_is_the_users():
    mine = types.ModuleType("mine")
    mine.__file__ = f"{sys.prefix}/src/app/mine.py"
    assert is_own(mine)
    assert not is_own(types)
    assert not is_own(pytest)
