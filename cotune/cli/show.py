"""`cotune show`: the results of a run, finished or not."""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cotune._load import load, runs_in
from cotune.errors import CotuneError, InputError, printable
from cotune.paths import storage_folder
from cotune.results import MEASURES, SHORT, Results, TrialResult, flat

MOST_RUNS = 20
MOST_FAILED = 5


def add_to(commands: Any) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "show",
        help="what a run has given",
        description="Shows the results of a run, finished or not; without a name, the latest runs.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="of the run")
    parser.add_argument("--storage", metavar="DIR", type=Path, help="where runs are; COTUNE_STORAGE or ~/cotune_runs")
    parser.add_argument("--trials", metavar="N", type=int, default=10, help="how many of the best to list (10)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.set_defaults(run_command=run_command)


def run_command(options: argparse.Namespace) -> None:
    """Prints a run's results; without a name, the list of runs."""
    if options.trials < 0:
        raise InputError(f"--trials {options.trials} is not a count", hint="give 0 or more")
    if options.name is None:
        _list(storage_folder(options.storage), options.json)
        return
    results = load(options.name, options.storage)
    if options.json:
        print(json.dumps(_finite(_plain(results)), indent=1, allow_nan=False))
        return
    print(results)
    ranked = _ranked(results)[: options.trials]
    if ranked:
        print("\n".join(_lines(results, ranked)))
    for trial in results.errors[:MOST_FAILED]:
        print(printable(trial.error.message, keep="\n\t") if trial.error else f"trial {trial.id} failed")
    if len(results.errors) > MOST_FAILED:
        print(f"and {len(results.errors) - MOST_FAILED} more have failed")


def _list(root: Path, as_json: bool) -> None:
    names = runs_in(root)
    if as_json:
        print(json.dumps(_finite([_summary(name, root) for name in names]), indent=1, allow_nan=False))
        return
    for name in names[:MOST_RUNS]:
        try:
            print(str(load(name, root)).splitlines()[0])
        except CotuneError as error:
            print(error.message if repr(name) in error.message else f"{name}: {error.message}")
    if len(names) > MOST_RUNS:
        print(f"and {len(names) - MOST_RUNS} more in {root}")
    if not names:
        print(f"no runs in {root}")


def _summary(name: str, root: Path) -> dict[str, Any]:
    """A run in short, or why it cannot be read."""
    try:
        results = load(name, root)
    except CotuneError as error:
        return {"name": name, "error": error.message}
    states = Counter(str(trial.state) for trial in results)
    return {name: part for name, part in _plain(results).items() if name != "trials"} | {"trials": states}


def _ranked(results: Results) -> list[TrialResult]:
    """The trials that have reported the metric, the best first; done trials before all others."""
    sign = 1.0 if results.mode == "min" else -1.0
    told = [(trial, trial.last(results.metric)) for trial in results]
    ended = [(trial, float(value)) for trial, value in told if isinstance(value, int | float)]
    return [trial for trial, _ in sorted(ended, key=lambda it: (it[0].state != "done", sign * it[1]))]


def _lines(results: Results, ranked: Sequence[TrialResult]) -> Iterator[str]:
    """A line for each ranked trial, with the parameters that are not the same in all trials."""
    configs = {trial.id: dict(flat(trial.config)) for trial in results}
    searched = [
        name for name in configs[ranked[0].id] if len({repr(config.get(name)) for config in configs.values()}) > 1
    ]
    wide = len(str(len(results)))
    for trial in ranked:
        told = [f"{name}={_short(configs[trial.id].get(name))}" for name in searched]
        value = f"{float(trial.last(results.metric)):.6g}"
        yield f"  {trial.id:>{wide}} {trial.state:<11} {results.metric}={value:<12} {' '.join(told)}".rstrip()


def _short(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else SHORT.repr(value)


def _finite(value: Any) -> Any:
    """Replaces numbers that JSON cannot express by None."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _plain(results: Results) -> dict[str, Any]:
    trials = [
        {
            **{name: getattr(trial, name) for name in ("id", "config", "metrics", *MEASURES)},
            "state": str(trial.state),
            "error": trial.error and trial.error.message,
            "folder": str(trial.folder),
        }
        for trial in results
    ]
    return {
        "name": results.name,
        "metric": results.metric,
        "mode": results.mode,
        "makespan": results.makespan,
        "trials": trials,
    }
