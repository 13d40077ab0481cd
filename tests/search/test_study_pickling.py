"""How a study is pickled for objectives that refer to it."""

import sys
from types import ModuleType

import cloudpickle
import optuna
import pytest
from optuna.storages import InMemoryStorage

from cotune.search.study_pickling import globals_of, study_as_proxy


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


class OwnStudy(optuna.Study):
    pass


class OwnStorage(InMemoryStorage):
    pass


def test_classes_derived_from_optunas_are_pickled_as_proxies_too():
    storage = OwnStorage()
    optuna.create_study(study_name="mine", storage=storage)
    study, other = OwnStudy("mine", storage), OwnStudy("mine", storage)
    with study_as_proxy(study):
        assert b"study_in_lane" in cloudpickle.dumps(study)
        assert b"storage_in_lane" in cloudpickle.dumps(storage)
        assert b"study_in_lane" not in cloudpickle.dumps(other)
    assert b"study_in_lane" not in cloudpickle.dumps(study)
    assert type(cloudpickle.loads(cloudpickle.dumps(storage))) is OwnStorage
