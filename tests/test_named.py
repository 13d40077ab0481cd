"""What annotations name reaches another process with the function or class."""

from __future__ import annotations

import dataclasses
import pickle
import sys
import typing
from pathlib import Path as Folder

import numpy as np

from cotune import by_value, named
from cotune.sharing.inside.main_module import MainModule
from cotune.sharing.inside.script_classes import ScriptClasses


class Rate:
    pass


Rates = list[Rate]
data = np.zeros(3)


def test_a_function_takes_along_the_types_that_its_annotations_name():
    def train(rates: Rates, folder, array: np.ndarray, rest: data):
        """Folder data"""

    train.__annotations__ |= {"folder": "typing.Optional['Folder']", "return": "not a type"}
    assert named.by_function(train) == {"Rates": Rates, "typing": typing, "Folder": Folder, "np": np}
    assert pickle.loads(by_value.dumps(train)).__globals__["Rates"] == Rates


def test_a_function_takes_along_what_classes_that_it_makes_name():
    def train():
        @dataclasses.dataclass
        class Settings:
            """data"""

            rate: Rate

            def method(self):
                class Inner:
                    folder: Folder

                return Inner

        return Settings

    assert named.by_function(train) == {"Rate": Rate, "Folder": Folder}
    assert pickle.loads(by_value.dumps(train)).__globals__["Rate"] is Rate


def test_the_main_module_knows_what_annotations_of_the_scripts_classes_name(monkeypatch):
    class Settings:
        rate: OfTheScript  # noqa: F821

    main = sys.modules["__main__"]
    Settings.__module__ = Rate.__module__ = "__main__"
    monkeypatch.setattr(main, "OfTheScript", Rate, raising=False)
    blob = by_value.dumps(Settings)
    monkeypatch.undo()
    here, there = ScriptClasses(inherits=False), ScriptClasses(inherits=False)
    here.leave()
    there.enter()
    made = pickle.loads(blob)
    shown = MainModule(print, there.now())
    shown.enter()
    assert typing.get_type_hints(made)["rate"].__name__ == "Rate"
    shown.leave()
    here.enter()
    assert not hasattr(main, "OfTheScript")
