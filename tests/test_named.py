"""What annotations of the script's classes name reaches another process with them."""

from __future__ import annotations

import pickle
import sqlite3
import sys
import typing
from pathlib import Path as Folder

import pytest

from cotune import by_value, named
from cotune.sharing.inside.main_module import MainModule
from cotune.sharing.inside.script_classes import ScriptClasses


class Outer:
    inner: typing.Optional["Inner"]  # noqa: UP037, UP045
    folder: Folder
    text: "not a type"  # noqa: F722
    database: Database
    number: int
    mode: typing.Literal["Last"]


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


def test_names_are_found_in_texts_within_texts(script):
    assert named.named_by(Outer) == {"typing": typing, "Inner": Inner, "Folder": Folder, "Database": Database}


@pytest.mark.parametrize("trainable", [Outer, (Outer, Inner), (Last, Inner, Outer)])
def test_the_main_module_knows_what_annotations_of_the_scripts_classes_name(script, monkeypatch, trainable):
    blob = by_value.dumps(trainable)
    monkeypatch.undo()
    here, there = ScriptClasses(inherits=False), ScriptClasses(inherits=False)
    here.leave()
    there.enter()
    pickle.loads(blob)
    shown = MainModule(print, there.now())
    shown.enter()
    outer = script.Outer
    assert typing.get_type_hints(script.Inner) == {"last": script.Last, "outer": outer}
    assert not hasattr(script, "Database"), "it holds what cannot travel, which nobody has asked for"
    del outer.__annotations__["database"], outer.__annotations__["text"]
    mode = {"mode": typing.Literal["Last"]}
    assert typing.get_type_hints(outer) == {"inner": script.Inner | None, "folder": Folder, "number": int} | mode
    assert outer is not Outer
    shown.leave()
    here.enter()
    assert not hasattr(script, "Inner")
