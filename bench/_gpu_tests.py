"""What `gpu.py` does before it measures: looks whether all it needs is there, and runs the tests that need a GPU.

As a plugin of pytest's, which this module is too, it tells each outcome at once: to a file, and with its traceback to
whoever reads along. A run that is cut short has lost nothing but the tests it did not come to.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

from _common import ROOT, run_to_end

Found = dict[str, Any]
# Names that file to the plugin.
TOLD = "COTUNE_GPU_TESTS"
# One test; and what is left for the last one to end, once there is no time for another.
LONGEST, GRACE = 60, 80


def lacking(tests: bool) -> list[str]:
    """What does not work of what is needed, and why. torch is only looked for: to import it takes seconds."""
    found = []
    for name in ("cloudpickle", "numpy", "optuna", "pynvml", "rich", "cotune", "cotune.search.study_search"):
        try:
            importlib.import_module(name)
        except Exception as error:
            found.append(f"{name}: {error}")
    for name in ("torch", *("pytest", "pytest_timeout") * tests):
        if importlib.util.find_spec(name) is None:
            found.append(f"{name}: not installed")
    return found


def run_tests(seconds: float, told: Path) -> Found:
    """Runs them, the most important first; begins none after so many seconds.

    Returns:
        How many were collected; what passed, in how many seconds; what failed or was skipped, and why; `status`,
        pytest's own.
    """
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in path.read_text()]
    files.sort(key=lambda path: (path.name != "test_run_gpu.py", "ray_tune" in path.parts, path))
    # No plugins but these: some environments bring many, and every warning is an error here.
    plugins = ["-p", "pytest_timeout", "-p", "_gpu_tests", "--timeout", str(LONGEST), "--timeout-method", "signal"]
    how = ["-m", "gpu", "-v", "--no-summary", "--continue-on-collection-errors", "-W", "ignore::DeprecationWarning"]
    environ = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONUNBUFFERED": "1", TOLD: str(told)}
    environ["PYTHONPATH"] = os.pathsep.join((str(Path(__file__).parent), environ["PYTHONPATH"]))
    command = [sys.executable, "-m", "pytest", *plugins, *how, "--session-timeout", str(int(seconds)), *map(str, files)]
    status = run_to_end(command, seconds + GRACE, cwd=ROOT, env=environ)
    return {**outcomes(told), "status": status}


def outcomes(told: Path) -> Found:
    """What the plugin has told until now."""
    found: Found = {"collected": 0, "passed": {}, "failed": {}, "skipped": {}}
    for outcome, test, why in map(json.loads, told.read_text().splitlines() if told.exists() else []):
        if outcome == "collected":
            found["collected"] = why
        else:
            found[outcome].setdefault(test, why)
    # One that leaves something behind has passed before its fixtures fail.
    found["passed"] = {test: took for test, took in found["passed"].items() if test not in found["failed"]}
    return found


# ---- the plugin


def pytest_collection_finish(session: Any) -> None:
    _tell("collected", "", len(session.items))


def pytest_collectreport(report: Any) -> None:
    if report.failed:
        _show(report)


def pytest_runtest_logreport(report: Any) -> None:
    if report.failed:
        _show(report)
    elif report.skipped:
        _tell("skipped", report.nodeid, report.longrepr[2])
    elif report.when == "call":
        _tell("passed", report.nodeid, round(report.duration, 2))


def _show(report: Any) -> None:
    crash = getattr(report.longrepr, "reprcrash", None)
    _tell("failed", report.nodeid, (crash.message if crash else report.longreprtext)[:300])
    print("\n" + "\n".join([report.longreprtext, *(f"{title}\n{text}" for title, text in report.sections)]), flush=True)


def _tell(*what: object) -> None:
    with open(os.environ[TOLD], "a") as told:
        told.write(json.dumps(what) + "\n")
