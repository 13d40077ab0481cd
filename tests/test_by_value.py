"""Objects of a script reach another process and come back without changing the classes there."""

import pickle
import traceback
from collections import ChainMap
from types import CodeType

import pytest

from cotune import by_value


def test_an_object_that_comes_back_is_of_the_class_it_was_and_leaves_it_as_it_is():
    class Item:
        kind = "made here"

        def method(self):
            return self

    Item.kind, method = "changed since", Item.method
    blob = by_value.dumps(Item())
    Item.kind = "changed later"
    assert type(pickle.loads(blob)) is Item
    assert (Item.kind, Item.method) == ("changed later", method)


def test_functions_keep_the_file_they_are_in(monkeypatch):
    """Which cloudpickle leaves out since 3.1.3."""

    def without_file(code):
        make, args = reduced(code)
        return make, (*args[:10], "<dynamic-code>", *args[11:])

    def fails():
        raise ZeroDivisionError("there")

    table = by_value.Pickler.dispatch_table
    reduced = table[CodeType]
    monkeypatch.setattr(by_value.Pickler, "dispatch_table", ChainMap({CodeType: without_file}, table))
    with pytest.raises(ZeroDivisionError) as raised:
        pickle.loads(by_value.dumps(fails))()
    assert 'raise ZeroDivisionError("there")' in "".join(traceback.format_exception(raised.value))
