"""Imports point down only, and importing cotune stays cheap."""

import ast
import json
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import cotune

PACKAGE = Path(cotune.__file__).parent

# Lowest first. A line holds siblings, which do not import each other; within a group everything may.
LAYERS = [
    [
        {
            "errors",
            "demand",
            "plain",
            "trial",
            "paths",
            "metrics",
            "session",
            "trainable",
            "used_code",
            "stopping",
            "process_wide",
        }
    ],
    [{"script"}],
    [{"packer"}, {"sharing"}, {"search"}],
    [{"results", "accuracy", "record", "_arguments"}],
    [{"engines"}, {"dashboard"}],
    [{"driver"}, {"simulation"}, {"ray_tune"}],
    [{"_run", "_load", "optuna_study"}],
    [{"__init__"}],
    [{"testing"}, {"cli", "__main__"}],
]
PLACE = {
    part: (level, number)
    for level, groups in enumerate(LAYERS)
    for number, group in enumerate(groups)
    for part in group
}
# What needs no more than these is written down apart, because tools rely on it.
NOUNS = {"errors", "demand", "plain", "trial"}

PUBLIC = {
    "AshaPromote",
    "CotuneError",
    "DeviceError",
    "InputError",
    "LaneDied",
    "MetricError",
    "NoReport",
    "NoResult",
    "NotPicklable",
    "Results",
    "RunError",
    "RunNameInUse",
    "SpaceError",
    "StorageError",
    "TrialError",
    "TrialFailed",
    "TrialOverdue",
    "TrialResult",
    "TrialStopped",
    "TrialTooLarge",
    "UnknownMetric",
    "checkpoint",
    "choice",
    "colocate",
    "device",
    "load",
    "lograndint",
    "loguniform",
    "micro_batches",
    "optimize",
    "qloguniform",
    "qrandint",
    "quniform",
    "randint",
    "report",
    "restore",
    "run",
    "shared",
    "trial_id",
    "uniform",
}


def module_name(path: Path) -> str:
    parts = ("cotune", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def part_of(module: str) -> str:
    """The first name below cotune: what the layers are made of."""
    return module.split(".")[1] if "." in module else "__init__"


class Imports(ast.NodeVisitor):
    """The cotune modules a module imports, apart from those for type checkers only."""

    def __init__(self, module: str, is_package: bool) -> None:
        self.everywhere: set[str] = set()
        self.at_import: set[str] = set()
        self._base = module.split(".") if is_package else module.split(".")[:-1]
        self._depth = 0

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.orelse:
                self.visit(child)
        else:
            self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1

    visit_AsyncFunctionDef = visit_Lambda = visit_FunctionDef

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            above = self._base[: len(self._base) - node.level + 1]
            base = ".".join([*above, node.module] if node.module else above)
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            self._add(inner if inner in MODULES else base)

    def _add(self, module: str) -> None:
        if module == "cotune" or module.startswith("cotune."):
            self.everywhere.add(module)
            if not self._depth:
                self.at_import.add(module)


def imports_of(module: str) -> Imports:
    path = MODULES[module]
    found = Imports(module, path.name == "__init__.py")
    found.visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


def run_python(code: str) -> object:
    """What a fresh interpreter prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=PACKAGE.parent,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("module", MODULES)
def test_every_module_has_a_layer(module):
    assert part_of(module) in PLACE, f"{module} has no layer yet: give it one in LAYERS"


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down_only(module):
    level, group = PLACE[part_of(module)]
    wrong = []
    for other in sorted(imports_of(module).everywhere):
        if PLACE[part_of(other)][0] >= level and PLACE[part_of(other)] != (level, group):
            wrong.append(other)
    assert not wrong, f"{module} imports {wrong}"


@pytest.mark.parametrize("module", [name for name in MODULES if part_of(name) == "packer"])
def test_the_packer_imports_nothing_but_the_nouns(module):
    wrong = {part_of(other) for other in imports_of(module).everywhere} - NOUNS - {"packer"}
    assert not wrong, f"{module} imports {sorted(wrong)}"


def test_no_two_modules_import_each_other_in_a_circle():
    # A package's __init__ is not counted as imported by its own submodules: it is loading already.
    graph = {module: imports_of(module).at_import for module in MODULES}
    done: set[str] = set()

    def walk(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " imports ".join([*path[path.index(module) :], module])
        if module not in done:
            for other in sorted(graph.get(module, ())):
                walk(other, (*path, module))
            done.add(module)

    for module in graph:
        walk(module, ())


def test_a_lane_on_ray_imports_no_brain():
    # Each is a process that starts anew, while a trial waits.
    loaded: set[str] = set()
    waiting = {"cotune.ray_tune.lane"}
    while waiting:
        module = waiting.pop()
        loaded.add(module)
        above = {module.rpartition(".")[0]} & MODULES.keys()
        waiting |= (imports_of(module).at_import | above) - loaded
    assert "cotune.sharing.inside.host" in loaded
    assert not {module for module in loaded if part_of(module) in ("packer", "engines")}


def test_what_runs_in_a_lane_needs_nothing_of_the_drivers_side():
    script = {"by_value", "compiler_settings", "installed", "named", "settings", "torch_flags"}
    sharing = {"cpu", "cuda", "delays", "lane_options", "memory", "page", "raised", "wire"}
    inside = {module for module in MODULES if module.startswith("cotune.sharing.inside")}
    needed = {other for module in inside for other in imports_of(module).everywhere} - inside
    for part, names in {"script": script, "sharing": sharing}.items():
        assert {module for module in needed if part_of(module) == part} == {f"cotune.{part}.{name}" for name in names}


def test_importing_cotune_loads_no_heavy_module():
    heavy = ["torch", "ray", "optuna", "numpy", "rich", "cloudpickle", "pandas", "pynvml", "sklearn"]
    assert run_python(f"import sys, json, cotune; print(json.dumps([m for m in {heavy} if m in sys.modules]))") == []


def test_importing_the_packer_loads_neither_torch_nor_optuna():
    heavy = ["torch", "ray", "optuna", "rich", "cloudpickle", "pynvml", "multiprocessing"]
    show = f"print(json.dumps([m for m in {heavy} if m in sys.modules]))"
    assert run_python(f"import sys, json; from cotune.packer import Packer; {show}") == []


def test_what_a_trainable_calls_loads_no_heavy_module():
    heavy = ["torch", "ray", "optuna", "numpy", "rich", "cloudpickle"]
    code = (
        "import sys, json, cotune; cotune.report, cotune.checkpoint, cotune.restore, cotune.trial_id(); "
        f"assert cotune.device() == 'cpu'; print(json.dumps([m for m in {heavy} if m in sys.modules]))"
    )
    assert run_python(code) == []


def test_the_public_names_are_these():
    assert set(cotune.__all__) == PUBLIC


def test_the_public_names_are_sorted_and_named_once():
    assert cotune.__all__ == sorted(set(cotune.__all__))


def test_the_public_names_are_those_that_are_loaded_lazily():
    assert set(cotune._HOME) == set(cotune.__all__)


def test_the_public_names_are_those_that_type_checkers_see():
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    seen = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert seen - {"Any"} == set(cotune.__all__)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_resolves(name):
    value = getattr(cotune, name)
    home = cotune._HOME[name]
    assert getattr(import_module(home), name) is value
    # The package imports this one on demand, and says so if Ray is another than it knows.
    assert value.__module__ == ("cotune.ray_tune.scheduler" if name == "colocate" else home)
    assert value.__doc__


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'cotune' has no attribute 'tune'"):
        cotune.tune  # noqa: B018


def test_dir_lists_the_public_names_before_they_are_loaded():
    assert set(run_python("import json, cotune; print(json.dumps(dir(cotune)))")) >= PUBLIC


def test_the_package_is_pickled_by_its_name():
    # Where dill pickles a function of a lane's script, the package is among its variables.
    assert pickle.loads(pickle.dumps(cotune)) is cotune
