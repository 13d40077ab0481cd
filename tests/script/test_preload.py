"""What is imported ahead for a trainable, and that finding it out imports nothing."""

import importlib.util
import sys
import types

import pytest

from cotune.script.pickling import dumps
from cotune.script.preload import WORDS, modules_to_preload
from cotune.search.study_proxy import StudyObjective


@pytest.fixture
def without_torch(monkeypatch):
    """A process that has not loaded torch."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder on the import path, to which source files are written by their names."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(sources):
        for name, source in sources.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)

    return write


def preload(trainable):
    return modules_to_preload(dumps(trainable, "it"), trainable)


def test_what_a_lane_itself_needs_is_always_preloaded():
    assert {"numpy", "cloudpickle", "cotune.sharing.inside.lane_main"} <= set(preload(lambda config: 1))


def test_a_library_that_the_function_imports_is_preloaded():
    pytest.importorskip("sklearn.linear_model")

    def train(config):
        from sklearn.linear_model import LogisticRegression

        return LogisticRegression

    assert "sklearn.linear_model" in preload(train)


def test_a_library_that_an_inner_function_imports_is_preloaded():
    pytest.importorskip("sklearn.linear_model")

    def train(config):
        def inner():
            import sklearn.linear_model

            return sklearn.linear_model

        return inner()

    assert "sklearn" in preload(train)


def test_a_library_that_a_method_of_a_step_class_imports_is_preloaded_also_if_it_is_inherited():
    pytest.importorskip("sklearn.linear_model")

    class Steps:
        def setup(self, config):
            from sklearn.linear_model import LogisticRegression

            self.model = LogisticRegression()

        def step(self):
            return None

    class Derived(Steps):
        def step(self):
            return {}

    assert "sklearn.linear_model" in preload(Steps)
    assert "sklearn.linear_model" in preload(Derived)


def test_a_library_in_the_closure_is_preloaded():
    sklearn = pytest.importorskip("sklearn.linear_model")
    assert "sklearn.linear_model" in preload(lambda config: sklearn.LogisticRegression)


def test_torch_is_preloaded_without_its_compiler():
    pytest.importorskip("torch")

    def train(config):
        import torch

        return torch

    found = set(preload(train))
    assert {"torch", "torch.utils.data"} <= found
    assert "torch._dynamo" not in found


def test_an_objective_does_not_seem_to_use_the_compiler():
    torch = pytest.importorskip("torch")
    found = preload(StudyObjective(lambda trial: torch.zeros(1).item(), 1))
    assert "torch" in found
    assert "torch._dynamo" not in found


def test_the_compiler_is_preloaded_for_one_who_compiles_or_needs_what_comes_with_it():
    pytest.importorskip("torch")

    def compiles(config):
        import torch

        return torch.compile(torch.nn.Linear(1, 1))

    def distributes(config):
        import torch.distributed as dist

        return dist

    def differentiates(config):
        import torch

        return torch.func.grad(torch.sin)

    for train in (compiles, distributes, differentiates):
        assert "torch._dynamo" in preload(train)


def test_torch_is_preloaded_for_one_who_imports_only_a_part():
    pytest.importorskip("torch")

    def train(config):
        from torch.nn import Linear

        return Linear

    assert "torch" in preload(train)


def test_a_torch_that_the_driver_has_loaded_is_preloaded():
    pytest.importorskip("torch")
    assert "torch" in preload(lambda config: 1)


@pytest.mark.parametrize("name", ["torch", "pandas"])
def test_a_stand_in_for_a_library_is_not_preloaded(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))

    def train(config):
        import pandas
        import torch

        return pandas, torch

    assert name not in preload(train)


def test_without_torch_anywhere_it_is_not_preloaded(without_torch):
    def train(config):
        return config["x"]

    train.__module__ = "elsewhere"
    assert not [name for name in modules_to_preload(dumps(lambda config: 1, "it"), train) if name.startswith("torch")]


def test_modules_of_the_users_own_project_are_not_preloaded(project):
    project({"ownproject.py": "def train(config):\n    return config['x']\n"})
    import ownproject

    assert "ownproject" not in preload(ownproject.train)


def test_torch_is_preloaded_for_a_module_that_leads_to_it_though_nothing_is_loaded_yet(project, without_torch):
    near = "def load():\n    from torch import nn\n    return nn\n"
    project({"farhelper.py": "import nearhelper\n", "nearhelper.py": near})

    def train(config):
        import farhelper

        return farhelper

    assert "torch" in preload(train)
    assert not {"farhelper", "nearhelper", "torch"} & set(sys.modules)


def test_a_heavy_library_is_preloaded_by_the_part_that_a_module_will_import(project):
    project({"datahelper.py": "def load():\n    from sklearn.neural_network import MLPClassifier\n    import json\n"})

    def train(config):
        import datahelper

        return datahelper

    assert "sklearn.neural_network" in preload(train)
    assert not {"datahelper", "json"} & set(preload(train))


def test_torch_is_preloaded_for_a_package_any_part_of_which_imports_it(project, without_torch):
    project({"partspackage/__init__.py": "", "partspackage/deep/models.py": "import torch.nn as nn\n"})

    def train(config):
        from partspackage.deep import models

        return models

    assert "torch" in preload(train)


@pytest.mark.parametrize(
    ("needs", "expected"), [("torch>=2", True), ("torch; extra == 'all'", False), ("torchless", False)]
)
def test_torch_is_preloaded_for_an_installed_package_that_always_needs_it(
    tmp_path, monkeypatch, without_torch, needs, expected
):
    site = tmp_path / "site-packages"
    (site / "wheelthing-1.0.dist-info").mkdir(parents=True)
    (site / "wheelthing-1.0.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: wheelthing\nVersion: 1.0\nRequires-Dist: {needs}\n"
    )
    (site / "wheelthing.py").write_text("raise AssertionError('imported')\n")
    monkeypatch.syspath_prepend(str(site))

    def train(config):
        import wheelthing

        return wheelthing

    train.__module__ = "elsewhere"
    assert ("torch" in preload(train)) is expected


def test_a_project_whose_source_cannot_be_read_leads_nowhere(project, without_torch):
    project({"brokenhelper.py": "import torch\nthis is no python\n"})

    def train(config):
        import brokenhelper

        return brokenhelper

    train.__module__ = "elsewhere"
    assert "torch" not in preload(train)


def test_neither_ray_nor_optuna_nor_pytest_is_preloaded():
    import optuna

    def train(config):
        return optuna, pytest

    assert not [name for name in preload(train) if name.startswith(("ray", "optuna", "pytest", "_pytest"))]


def test_a_script_of_an_installed_package_is_not_preloaded(monkeypatch):
    script = types.ModuleType("__main__")
    script.__file__ = "/usr/lib/python3/site-packages/package/examples/script.py"
    monkeypatch.setitem(sys.modules, "__main__", script)

    def train(config):
        return sys.modules["__main__"]

    assert "__main__" not in preload(train)


def test_texts_that_a_trainable_brings_along_are_not_taken_for_modules(without_torch):
    texts = ["torch", *(f"word{n}" for n in range(WORDS))]

    def train(config):
        return texts

    assert "torch" not in preload(train)


def test_folders_of_a_package_that_hold_data_are_not_looked_through(project, without_torch):
    project({"datapackage/__init__.py": "", "datapackage/data/one/example.py": "import torch\n"})

    def train(config):
        import datapackage

        return datapackage

    assert "torch" not in preload(train)


def test_what_a_script_alone_imports_is_not_preloaded_also_if_it_is_run_as_a_module(
    project, without_torch, monkeypatch
):
    project({"script.py": "import torch\n"})
    script = types.ModuleType("__main__")
    script.__spec__ = importlib.util.find_spec("script")
    monkeypatch.setitem(sys.modules, "__main__", script)

    def train(config):
        return 0.5

    train.__module__ = "__main__"
    assert "torch" not in preload(train)


def test_pythons_own_tests_are_not_read_for_a_function_called_test(monkeypatch):
    def test():
        return 0.5

    def train(config):
        return test()

    read = []
    monkeypatch.setattr("cotune.script.preload._imports", lambda path: read.append(path) or set())
    preload(train)
    assert read == []
