"""How a study is pickled for objectives that refer to it."""

import sys
from types import ModuleType

import optuna
import pytest

from cotune.search.study_pickling import globals_of


@pytest.fixture
def module(monkeypatch):
    """One with many globals."""
    made = ModuleType("many_of_ours")
    vars(made).update({f"number_{number}": number for number in range(1000)})
    monkeypatch.setitem(sys.modules, "many_of_ours", made)
    return made


def test_another_thread_may_import_while_the_globals_are_looked_through(module, grown_at_collections):
    module.study = study = optuna.create_study()
    for names in (sys.modules, vars(module)):
        with grown_at_collections(names, ModuleType("came")):
            assert globals_of(study) == [("many_of_ours", "study")]
