"""Each trial has classes of the script of its own."""

import enum
import pickle

import pytest

from cotune.script import by_value
from cotune.sharing.inside import script_classes
from cotune.sharing.inside.script_classes import ScriptClasses

SCALE = {"by": 1.0}


def script_class():
    """A class that another process cannot import."""

    class Scaled:
        __slots__ = ("value",)
        kind = "as in the script"

        def scaled(self):
            return SCALE["by"]

    return Scaled


@pytest.fixture(autouse=True)
def lane(monkeypatch):
    """What is known before any trial is put back."""
    monkeypatch.setattr(script_classes, "_of_shared", {})
    before = ScriptClasses(inherits=False)
    before.leave()
    yield
    before.enter()


def begin(*, inherits):
    trial = ScriptClasses(inherits=inherits)
    trial.enter()
    return trial


def test_trials_beside_each_other_have_different_ones_with_globals_of_their_own():
    blob = by_value.dumps(script_class())
    begin(inherits=False).leave()
    one = pickle.loads(blob)
    begin(inherits=False).leave()
    other = pickle.loads(blob)
    assert one is not other
    one.scaled.__globals__["SCALE"]["by"] = 2.0
    assert (one().scaled(), other().scaled()) == (2.0, 1.0)


def test_what_reaches_a_trial_later_is_of_its_classes_and_does_not_set_them_back():
    cls = script_class()
    first, later = by_value.dumps(cls), by_value.dumps(cls())
    one = begin(inherits=False)
    mine = pickle.loads(first)
    mine.kind = "changed by the trial"
    one.leave()
    other = begin(inherits=False)
    pickle.loads(first)
    other.leave()
    one.enter()
    assert type(pickle.loads(later)) is mine
    assert mine.kind == "changed by the trial"


def test_those_of_shared_objects_are_set_anew_for_a_trial_that_is_alone():
    blob = by_value.dumps(script_class())
    first = begin(inherits=False)
    cls = pickle.loads(blob)
    shared, method = cls(), cls.scaled
    first.share()
    shared.value = 7
    cls.kind, cls.cache = "changed by the trial", [1]
    # Others that have classes of their own come and go.
    begin(inherits=False)
    assert pickle.loads(blob) is not cls
    begin(inherits=True)
    assert pickle.loads(blob) is cls
    assert isinstance(shared, cls)
    assert (cls.kind, hasattr(cls, "cache"), shared.value) == ("as in the script", False, 7)
    assert cls.scaled is not method


def test_enums_keep_their_members():
    class Colour(enum.Enum):
        RED = 1

    blob = by_value.dumps(Colour)
    first = begin(inherits=False)
    found = pickle.loads(blob)
    first.share()
    begin(inherits=True)
    assert pickle.loads(blob) is found
    assert [member.name for member in found] == ["RED"]
