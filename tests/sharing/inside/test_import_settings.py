"""What modules set when they are imported holds for all trials of a lane."""

import os
import sys
import tempfile
import warnings

import numpy as np
import pytest

import cotune
from cotune.script import settings
from cotune.sharing.inside.import_settings import ImportSettings

MODULE = """
import logging, multiprocessing, os, sys, time, warnings
import numpy as np
import torch

os.environ["SET_BY_OUR_MODULE"] = "1"
os.environ["TZ"] = "Asia/Tokyo"
time.tzset()
del os.environ["OF_THE_DRIVER"]
sys.path.insert(0, "first of our module")
sys.path.append("last of our module")
torch.set_default_dtype(torch.float64)
torch.use_deterministic_algorithms(True)
torch.set_grad_enabled(False)
np.seterr(over="raise")
logging.root.setLevel(logging.INFO)
logging.root.addHandler(logging.NullHandler())
multiprocessing.set_start_method("spawn", force=True)
sys.setrecursionlimit(4321)
warnings.filterwarnings("error", "of the module")
"""


@pytest.mark.parametrize("residents", [1, 2])
def test_what_a_module_sets_when_it_is_imported_holds_for_later_trials(tmp_path, monkeypatch, residents):
    (tmp_path / "settings_of_ours.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("OF_THE_DRIVER", "2")

    def train(config):
        import settings_of_ours

        found = settings_of_ours
        try:
            found.warnings.warn("of the module", stacklevel=1)
            warned = "shown"
        except UserWarning:
            warned = "raised"
        for step in range(3):
            made = {
                "type": str(found.torch.ones(1).dtype),
                "deterministic": found.torch.are_deterministic_algorithms_enabled(),
                "grad": found.torch.is_grad_enabled(),
                "over": found.np.geterr()["over"],
                "depth": found.sys.getrecursionlimit(),
                "warned": warned,
                "logs": f"{found.logging.root.level}, {type(found.logging.root.handlers[-1]).__name__}",
                "start": found.multiprocessing.get_start_method(),
                "environment": f"{found.os.environ.get('SET_BY_OUR_MODULE')}, {found.os.environ.get('OF_THE_DRIVER')}",
                "hour": found.time.localtime(0).tm_hour,
                "path": f"{found.sys.path[0]}, {found.sys.path[-1]}",
            }
            cotune.report({"loss": step, **made})
        # What a trial sets itself is its own.
        found.torch.set_default_dtype(found.torch.float16)
        del found.sys.path[0], found.os.environ["SET_BY_OUR_MODULE"]

    results = cotune.run(
        train,
        {"x": cotune.uniform(0, 1)},
        metric="loss",
        trials=4,
        lanes=1,
        residents=residents,
        devices=["cpu:0@2GiB"],
        storage=tmp_path / "runs",
    )
    numerics = ["torch.float64", True, False, "raise"]
    process = [4321, "raised", "20, NullHandler", "spawn", "1, None", 9, "first of our module, last of our module"]
    assert [[*trial.metrics.values()][1:] for trial in results] == [numerics + process] * 4


def test_the_file_that_a_module_logs_to_stays_open_for_later_trials(tmp_path, monkeypatch):
    path = tmp_path / "log"
    text = f"import logging\nlogging.root.addHandler(logging.FileHandler({str(path)!r}, 'w'))\n"
    (tmp_path / "logging_of_ours.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    def train(config):
        import logging

        import logging_of_ours  # noqa: F401

        logging.warning(cotune.trial_id())
        cotune.report({"loss": 0.0})

    run = {"metric": "loss", "trials": 3, "lanes": 1, "devices": ["cpu:0@2GiB"], "storage": tmp_path / "runs"}
    cotune.run(train, {"x": cotune.uniform(0, 1)}, **run)
    assert path.read_text().split() == ["0", "1", "2"]


def test_filters_that_a_module_adds_within_catch_warnings_go_with_it(tmp_path, monkeypatch):
    (tmp_path / "noisy_of_ours.py").write_text("import warnings\nwarnings.filterwarnings('error', 'noise')\n")
    monkeypatch.syspath_prepend(tmp_path)

    def train(config):
        with warnings.catch_warnings():
            import noisy_of_ours  # noqa: F401
        cotune.report({"loss": sum(one[0] == "error" for one in warnings.filters)})

    run = {"metric": "loss", "trials": 3, "lanes": 1, "devices": ["cpu:0@2GiB"], "storage": tmp_path / "runs"}
    results = cotune.run(train, {"x": cotune.uniform(0, 1)}, **run)
    assert len({trial.metrics["loss"] for trial in results}) == 1


def test_a_trial_that_imports_torch_keeps_what_it_has_set_itself(tmp_path, monkeypatch):
    (tmp_path / "limit_of_ours.py").write_text("import sys\nsys.setrecursionlimit(4444)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)

    def train(config):
        import limit_of_ours  # noqa: F401

        sys.setrecursionlimit(5555)
        name = "to" + "rch"
        __import__(name)
        cotune.report({"loss": sys.getrecursionlimit()})

    run = {"metric": "loss", "trials": 2, "lanes": 1, "devices": ["cpu:0@2GiB"], "storage": tmp_path / "runs"}
    results = cotune.run(train, {"x": cotune.uniform(0, 1)}, **run)
    assert [trial.metrics["loss"] for trial in results] == [5555, 5555]


def test_what_was_set_before_an_import_is_none_of_its_doing():
    settings, limit, filters = ImportSettings(), sys.getrecursionlimit(), list(warnings.filters)
    with np.errstate(over="raise", under="ignore"):
        with settings.noted():
            np.seterr(under="warn")
            sys.setrecursionlimit(limit + 7)
            warnings.filterwarnings("ignore", "nothing of the kind")
        sys.setrecursionlimit(limit)
        warnings.filters[:] = filters
    with np.errstate(over="warn", under="ignore"):
        settings.apply()
        settings.apply()
        assert (np.geterr()["over"], np.geterr()["under"]) == ("warn", "warn")
    assert sys.getrecursionlimit() == limit + 7
    assert len(warnings.filters) == len(filters) + 1
    sys.setrecursionlimit(limit)
    warnings.filters[:] = filters


def test_what_the_script_has_set_outlasts_modules_that_it_has_imported_before(monkeypatch):
    monkeypatch.setattr(settings, "_come", {"errors of numpy"})
    imported, depth = ImportSettings(), sys.getrecursionlimit()
    with np.errstate(over="raise"):
        with imported.known(), imported.noted():
            np.seterr(over="ignore")
            # Of this nothing has come: the module's holds.
            sys.setrecursionlimit(depth + 1)
        assert np.geterr()["over"] == "raise"
        sys.setrecursionlimit(depth)
        imported.apply()
        assert (np.geterr()["over"], sys.getrecursionlimit()) == ("raise", depth + 1)
        sys.setrecursionlimit(depth)


def test_a_variable_that_a_module_removes_stays_away_though_a_trial_sets_it_before_the_next_import(monkeypatch):
    settings = ImportSettings()
    monkeypatch.setenv("OF_THE_DRIVER", "1")
    monkeypatch.setenv("OF_A_MODULE", "0")
    with settings.noted():
        del os.environ["OF_THE_DRIVER"]
    os.environ["OF_THE_DRIVER"] = "of the trial"
    with settings.noted():
        os.environ["OF_A_MODULE"] = "1"
    # A later trial begins with what the lane has found.
    monkeypatch.setenv("OF_THE_DRIVER", "1")
    monkeypatch.setenv("OF_A_MODULE", "0")
    settings.apply()
    assert os.environ["OF_A_MODULE"] == "1"
    assert "OF_THE_DRIVER" not in os.environ


def test_what_is_looked_up_first_stays_first(monkeypatch):
    settings = ImportSettings()
    monkeypatch.setattr(sys, "path", ["home"])
    for name in ("one", "two"):
        with settings.noted():
            sys.path[:] = [f"first {name}", *sys.path, f"last {name}"]
    set_by_imports, sys.path = sys.path, ["home"]
    settings.apply()
    settings.apply()
    assert sys.path == set_by_imports == ["first two", "first one", "home", "last one", "last two"]


def test_the_directory_of_temporary_files_that_a_module_asks_for_is_no_setting_of_its(monkeypatch):
    """It comes from the environment, which may be the trial's own."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    settings = ImportSettings()
    with settings.noted():
        assert tempfile.gettempdir()
    tempfile.tempdir = None
    settings.apply()
    assert tempfile.tempdir is None
