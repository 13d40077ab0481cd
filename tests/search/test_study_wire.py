"""Exceptions on their way between a lane and the driver."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass

import pytest

from cotune.search.study_wire import decode_error, encode_error


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A module, and what makes it impossible to import."""
    text = "class Odd(LookupError): ...\nclass Worse(SyntaxError): ...\nclass Broken(OSError): ...\n"
    (tmp_path / "only_in_the_lane.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("only_in_the_lane")

    def leave() -> None:
        monkeypatch.undo()
        del sys.modules["only_in_the_lane"]

    yield module, leave
    sys.modules.pop("only_in_the_lane", None)


@pytest.mark.parametrize(("name", "base"), [("Odd", LookupError), ("Worse", Exception), ("Broken", OSError)])
def test_where_its_class_cannot_be_imported_an_error_arrives_as_one_of_python(elsewhere, name, base):
    module, leave = elsewhere
    blob = encode_error(getattr(module, name)("no such row"))
    assert type(decode_error(blob)) is getattr(module, name)
    leave()
    again = decode_error(blob)
    assert (type(again), str(again)) == (base, f"only_in_the_lane.{name}: no such row")


def test_an_error_keeps_its_class_where_an_attribute_cannot_be_imported(elsewhere):
    module, leave = elsewhere
    error = ValueError("bad")
    error.row = module.Odd("row")
    blob = encode_error(error)
    leave()
    assert repr(decode_error(blob)) == "ValueError('bad')"


def test_members_of_a_group_arrive_each_by_itself(elsewhere):
    class Coded(Exception):
        def __init__(self, code, text):
            super().__init__(f"{code}: {text}")

    module, leave = elsewhere
    coded = Coded(5, "five")
    coded.__cause__ = KeyError("why")
    blob = encode_error(ExceptionGroup("both", [coded, module.Odd("row")]))
    leave()
    again = decode_error(blob)
    assert (type(again), again.message) == (ExceptionGroup, "both")
    assert [str(one) for one in again.exceptions] == ["5: five", "only_in_the_lane.Odd: row"]
    assert repr(again.exceptions[0].__cause__) == "KeyError('why')"


def test_an_error_keeps_its_class_where_that_of_its_cause_cannot_be_imported(elsewhere):
    module, leave = elsewhere
    error = ValueError("bad")
    error.__cause__ = module.Odd("row")
    blob = encode_error(error)
    leave()
    again = decode_error(blob)
    assert repr(again) == "ValueError('bad')"
    assert repr(again.__cause__) == "LookupError('only_in_the_lane.Odd: row')"


def test_an_error_that_lets_nothing_be_set_keeps_its_class_and_its_cause():
    @dataclass(frozen=True)
    class Diverged(Exception):
        step: int

    try:
        try:
            raise KeyError("why")
        except KeyError as cause:
            raise Diverged(3) from cause
    except Diverged as error:
        again = decode_error(encode_error(error))
    assert (type(again), again.step, again.args) == (Diverged, 3, (3,))
    assert repr(again.__cause__) == "KeyError('why')"
