"""What annotations of the script's classes name reaches another process with them."""

from __future__ import annotations

import pickle
import sqlite3
import sys
import typing
from fractions import Fraction
from pathlib import Path as Folder

import pytest

from cotune.script.pickling import Series
from cotune.sharing.inside.main_module import MainModule
from cotune.sharing.inside.script_classes import ScriptClasses


class Outer:
    inner: typing.Optional["Inner"]  # noqa: UP037, UP045
    folder: Folder
    text: "not a type"  # noqa: F722
    database: Database
    number: int
    mode: typing.Literal["Database"]


class Inner:
    last: Last
    outer: Outer


class Last:
    pass


class Database:
    connection = sqlite3.connect(":memory:")


@pytest.fixture
def script(monkeypatch):
    """These classes, as if they were of the script."""
    main = sys.modules["__main__"]
    for cls in (Outer, Inner, Last, Database):
        monkeypatch.setattr(cls, "__module__", "__main__")
        monkeypatch.setattr(main, cls.__name__, cls, raising=False)
    for name in ("typing", "Folder"):
        monkeypatch.setattr(main, name, globals()[name], raising=False)
    return main


def trip(*trainable):
    """What another process has of the script."""
    series = Series(trainable, "it")
    blob, found = series.first, series.named()
    here, there = ScriptClasses(inherits=False), ScriptClasses(inherits=False)
    here.leave()
    there.enter()
    # As in a trial, which holds its trainable: the tables of classes do not.
    loaded = pickle.loads(blob)
    main = MainModule([], there.now(), found)
    del loaded
    here.enter()
    return main._names


@pytest.mark.parametrize("trainable", [[Outer], [Outer, Inner], [Last, Inner, Outer]])
def test_the_main_module_knows_what_annotations_of_the_scripts_classes_name(script, trainable):
    names = trip(*trainable)
    assert names.keys() == {"Outer", "Inner", "Last", "typing", "Folder"}, "the database cannot travel"
    outer, inner = names["Outer"], names["Inner"]
    assert outer is not Outer
    del outer.__annotations__["database"], outer.__annotations__["text"]
    expected = {"inner": inner | None, "folder": Folder, "number": int, "mode": typing.Literal["Database"]}
    assert typing.get_type_hints(outer, names) == expected
    assert typing.get_type_hints(inner, names) == {"last": names["Last"], "outer": outer}


def test_what_nothing_but_an_annotation_needs_is_not_imported(script, monkeypatch):
    monkeypatch.setattr(script, "Folder", Fraction)
    found = Series((Outer,), "it").named()
    monkeypatch.delitem(sys.modules, "fractions")
    assert "Folder" in found
    assert "Folder" not in MainModule([], [], found)._names
    assert "fractions" not in sys.modules


def test_classes_that_come_anyway_are_sent_once(script):
    assert Series((Outer, Inner, Last), "it").named().keys() == {"typing", "Folder"}


def test_a_text_counts_also_where_other_annotations_are_none(script):
    variables = {"__name__": "__main__"}
    exec(compile('class Quoted:\n    number: int\n    last: "Last"', "", "exec", dont_inherit=True), variables)
    assert "Last" in Series((variables["Quoted"],), "it").named()
