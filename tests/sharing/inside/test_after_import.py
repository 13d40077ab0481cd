"""Doing something once a module is there."""

from __future__ import annotations

import sys
import threading

import pytest

from cotune.sharing.inside.after_import import after_import

SLOW = """
import threading
goes_on = threading.Event()
goes_on.wait(60)
whole = True
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A name, and what the module of that name is made of."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    return write


def test_a_module_that_is_there_is_told_at_once():
    heard = []
    after_import("json", heard.append)
    assert heard == [sys.modules["json"]]


def test_one_that_comes_later_is_told_once_all_of_it_is_there(module):
    name, heard = module("comes_later", "whole = True"), []
    after_import(name, lambda module: heard.append(module.whole))
    assert not heard
    __import__(name)
    assert heard == [True]


def test_one_that_another_thread_is_importing_is_waited_for_and_told_once(module):
    name, heard = module("being_imported", SLOW), []
    importing = threading.Thread(target=__import__, args=(name,), daemon=True)
    importing.start()
    while importing.is_alive() and not hasattr(sys.modules.get(name), "goes_on"):
        pass
    finders = len(sys.meta_path)
    waiting = threading.Thread(target=after_import, args=(name, lambda module: heard.append(module.whole)), daemon=True)
    waiting.start()
    while waiting.is_alive() and len(sys.meta_path) == finders:
        pass
    sys.modules[name].goes_on.set()
    importing.join(60)
    waiting.join(60)
    assert heard == [True]


def test_one_that_cannot_be_imported_is_told_when_it_can(module):
    name, heard = module("fails_once", "raise OSError(5)"), []
    after_import(name, heard.append)
    with pytest.raises(OSError, match="5"):
        __import__(name)
    module(name, "")
    sys.path_importer_cache.clear()
    __import__(name)
    assert heard == [sys.modules[name]]
