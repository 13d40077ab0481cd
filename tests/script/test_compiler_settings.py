"""Settings of torch's compiler."""

import sys

import pytest

from cotune.script.compiler_settings import CONFIGS, compiler_settings


@pytest.mark.parametrize("module", CONFIGS)
def test_the_compiler_is_not_loaded_for_a_setting_of_its_own(module, monkeypatch):
    monkeypatch.delitem(sys.modules, module, raising=False)
    get, put = compiler_settings()[module]
    put({"deterministic": True})
    assert get() == {}
    assert module not in sys.modules
