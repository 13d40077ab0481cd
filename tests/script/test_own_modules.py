"""What a call knows of the user's own modules."""

import importlib
import importlib.util
import inspect
import linecache
import sys
from types import ModuleType

import pytest

import cotune
from cotune.script import own_modules as module_under_test
from cotune.script.own_modules import Finder, own_modules


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A package of the user's with one module, of which `write` changes the value; both are loaded."""
    package = tmp_path / "project_of_ours"
    package.mkdir()

    def write(value):
        (package / "settings.py").write_text(f"VALUE = {value}  # {'x' * value}\n")

    (package / "__init__.py").write_text("")
    write(1)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("project_of_ours.settings")
    yield write
    forget()


def forget():
    for name in [name for name in sys.modules if name.startswith("project_of_ours")]:
        del sys.modules[name]


def test_a_module_is_found_as_it_was_whatever_became_of_its_file(project, tmp_path, monkeypatch):
    found = own_modules()
    project(2)
    monkeypatch.setattr(sys, "meta_path", [Finder(found), *sys.meta_path])
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(tmp_path)])
    forget()
    settings = importlib.import_module("project_of_ours.settings")
    assert (settings.VALUE, settings.__file__) == (1, str(tmp_path / "project_of_ours" / "settings.py"))
    assert sys.modules["project_of_ours"].__path__ == [str(tmp_path / "project_of_ours")]


def test_only_modules_of_the_users_own_that_are_loaded_are_kept(project):
    found = own_modules()
    assert {"project_of_ours", "project_of_ours.settings"} <= found.keys()
    assert not {"json", "pytest", "cotune", module_under_test.__name__} & found.keys()
    sys.modules["project_of_ours"].__spec__._initializing = True
    assert "project_of_ours" not in own_modules(), "it would call us again"


def test_another_thread_may_import_meanwhile(project, grown_at_collections):
    with grown_at_collections(sys.modules, ModuleType("came")):
        assert "project_of_ours.settings" in own_modules()


def test_tracebacks_and_sources_are_those_of_the_code(project, monkeypatch):
    found = own_modules()
    project(2)
    monkeypatch.setattr(sys, "meta_path", [Finder(found), *sys.meta_path])
    forget()
    settings = importlib.import_module("project_of_ours.settings")
    assert inspect.getsource(settings).startswith("VALUE = 1")
    linecache.checkcache()
    assert linecache.getline(settings.__file__, 1).startswith("VALUE = 1")


def test_whoever_asks_again_or_looks_elsewhere_gets_what_is_there(project, tmp_path, monkeypatch):
    found = own_modules()
    project(2)
    monkeypatch.setattr(sys, "meta_path", [Finder(found), *sys.meta_path])
    forget()
    settings = importlib.import_module("project_of_ours.settings")
    assert (settings.VALUE, importlib.reload(settings).VALUE) == (1, 2)
    forget()
    other = tmp_path / "other" / "project_of_ours"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("")
    (other / "settings.py").write_text("VALUE = 3\n")
    monkeypatch.setattr(sys, "meta_path", [Finder(found), *sys.meta_path])
    monkeypatch.syspath_prepend(other.parent)
    assert importlib.import_module("project_of_ours.settings").VALUE == 3


def test_whoever_only_looks_for_a_module_does_not_use_it_up(project, monkeypatch):
    found = own_modules()
    project(2)
    monkeypatch.setattr(sys, "meta_path", [Finder(found), *sys.meta_path])
    forget()
    assert importlib.util.find_spec("project_of_ours.settings") is not None
    assert importlib.import_module("project_of_ours.settings").VALUE == 1


def test_a_module_whose_file_has_not_changed_is_counts_as_loaded_too(project, monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [Finder(own_modules()), *sys.meta_path])
    forget()
    assert importlib.import_module("project_of_ours.settings").VALUE == 1
    project(2)
    forget()
    assert importlib.import_module("project_of_ours.settings").VALUE == 2, "edited since, by whoever loads it again"


def test_modules_that_put_off_their_import_are_left_alone(tmp_path, monkeypatch):
    (tmp_path / "put_off_of_ours.py").write_text("raise ImportError('an optional dependency')\n")
    monkeypatch.syspath_prepend(tmp_path)
    spec = importlib.util.find_spec("put_off_of_ours")
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "put_off_of_ours", module)
    spec.loader.exec_module(module)
    assert "put_off_of_ours" in own_modules()
    with pytest.raises(ImportError, match="optional"):
        module.anything  # noqa: B018


def test_all_trials_of_a_run_have_the_modules_as_they_were_when_it_began(project, tmp_path):
    def train(config):
        from project_of_ours import settings

        cotune.report({"loss": settings.VALUE})

    run = {"metric": "loss", "trials": 3, "lanes": 1, "devices": ["cpu:0@1GiB"], "storage": tmp_path / "runs"}
    results = cotune.run(train, {"x": cotune.uniform(0, 1)}, reuse=False, callbacks=[lambda ended: project(2)], **run)
    assert [trial.metrics["loss"] for trial in results] == [1, 1, 1]
