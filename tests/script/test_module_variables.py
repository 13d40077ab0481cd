"""Variables that the caller sets in the trainable's module reach trials."""

import importlib
import pickle
import sys
import threading

import pytest

from cotune.errors import NotPicklable
from cotune.script.module_variables import with_variables
from cotune.script.pickling import pack

SOURCE = """
SCALE, OTHER, UNUSED, CACHE = 1, 1, None, None

def train(config):
    return Scaled().of(config)

class Scaled:
    def of(self, config):
        return SCALE * config * OTHER

def main(pack, unused):
    global SCALE, UNUSED
    SCALE, UNUSED = 8, unused
    return pack(train)

def without(pack):
    fill()
    return pack(train)

def fill():
    global OTHER
    OTHER = 5
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    # Each test has its own: another process would find that of the first test first.
    name = f"sets_its_own_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module(name)
    del sys.modules[name]


def test_what_the_caller_has_set_for_the_trainable_or_what_it_uses_is_set_wherever_that_is_loaded(module):
    packed = module.main(pack, threading.Lock())
    module.SCALE = 1
    assert pickle.loads(packed.blob) is module.train, "its module is the one that others import"
    assert (module.train(3), module.SCALE) == (24, 8)


def test_it_is_set_anew_for_every_trial(module):
    packed = module.main(pack, None)
    pickle.loads(packed.blob)
    module.SCALE = 0
    pickle.loads(packed.blob)
    assert module.SCALE == 8


def test_what_others_have_set_stays_what_an_import_makes_it(module):
    assert module.without(with_variables) is module.train


def test_what_was_set_and_cannot_travel_is_named(module):
    module.Scaled.of.__code__ = (lambda self, config: UNUSED).__code__  # noqa: F821
    with pytest.raises(NotPicklable, match=r"'_thread\.lock' object"):
        module.main(pack, threading.Lock())
