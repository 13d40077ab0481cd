"""`cotune simulate`: how a sweep would have gone on other devices or in another order."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from cotune._load import earlier_run
from cotune.demand import MIB, parse_bytes
from cotune.errors import InputError
from cotune.packer import POLICIES, Policy, make_policy
from cotune.simulation import (
    GENERATORS,
    Played,
    Setting,
    Workload,
    from_csv,
    from_run,
    make_workload,
    simulate,
)
from cotune.simulation.configurations import best_bound
from cotune.simulation.drawing import PLAIN, chrome_trace, gantt, summary

# Longer numbers are no counts, and Python converts no more than some thousand digits.
DIGITS = 20
_EPILOG = """\
examples:
  cotune simulate --run my-sweep --gpus 4
  cotune simulate --workload salus-100 --policy srtf --residents 32 --width 1
  cotune simulate --csv jobs.csv --gpus 2 --memory 24GiB --trace out.json
"""


def add_to(commands: Any) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "simulate",
        help="play a workload on imagined devices",
        description="Plays a workload through the scheduler that real runs use, on a virtual clock.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--run", metavar="NAME", help="the trials of a finished run, as they went")
    what.add_argument("--workload", metavar="NAME", help=f"a generated one: {', '.join(GENERATORS)}")
    what.add_argument("--csv", metavar="FILE", type=Path, help="a table of jobs (docs/scheduling.md)")
    parser.add_argument("--storage", metavar="DIR", type=Path, help="where runs are; COTUNE_STORAGE or ~/cotune_runs")
    parser.add_argument(
        "--gpus", "--devices", dest="devices", metavar="N", action=_Count, help="how many; those of --run, else 1"
    )
    parser.add_argument("--memory", metavar="SIZE", help="of a device, such as 16GiB; else as --run had it, or 16GiB")
    parser.add_argument(
        "--policy",
        metavar="NAME",
        help=f"{', '.join(POLICIES)}, or MODULE:CLASS of your own; that of --run, else makespan",
    )
    parser.add_argument("--width", metavar="N", action=_Count, help="lanes a device; those of --run, else found")
    parser.add_argument(
        "--residents", metavar="N", action=_Count, help="that may take turns in a lane; those of --run, else 1"
    )
    known = parser.add_mutually_exclusive_group()
    known.add_argument("--error", metavar="SHARE", type=float, default=0.0, help="of predictions, 0.5 for 50%%")
    known.add_argument("--learn", action="store_true", help="no predictions but what finished trials teach")
    parser.add_argument("--busy", metavar="SHARE", type=float, help="of a device, that a trial of --run uses alone")
    parser.add_argument("--jobs", metavar="N", type=int, help="how many jobs to generate")
    parser.add_argument("--seed", metavar="N", type=int, help="of --workload and of --error; else 0")
    parser.add_argument("--trace", metavar="FILE", type=Path, help="write a Chrome trace")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--gantt", action="store_true", help="draw the lanes")
    form.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.set_defaults(run_command=run_command)


class _Count(argparse.Action):
    """A count of 1 or more; the error names the option as the user wrote it."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, text: Any, option: str | None = None) -> None:
        count = int(text) if text.isascii() and text.isdecimal() and len(text) < DIGITS else 0
        if count < 1:
            raise InputError(f"{option} {text[:DIGITS]} is not a count", hint="give 1 or more")
        setattr(namespace, self.dest, count)


def run_command(options: argparse.Namespace) -> int:
    """Simulates the workload; prints what came of it, and draws or writes it if asked to."""
    _check(options)
    workload = _imagined(_workload(options), options)
    policy = _policy(options.policy if options.policy is not None else workload.policy or "makespan")
    setting = Setting(
        policy=policy,
        error=None if options.learn else options.error,
        seed=options.seed or 0,
        keep=bool(options.gantt or options.trace),
    )
    # A hundred thousand jobs take minutes.
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        ended = progress.add_task("trials", total=len(workload.jobs))
        played = simulate(workload, setting, lambda: progress.advance(ended))
    bound = best_bound(workload, played.ran)
    if options.json:
        print(json.dumps(_plain(workload, played, bound), indent=1))
    else:
        print(f"{workload.name} on {workload.devices} device(s), policy {policy.name}: {workload.note}")
        print(summary(played, bound))
    if options.gantt:
        drawn = gantt(played.segments, max(20, min(72, shutil.get_terminal_size((90, 24)).columns - 17)))
        print(drawn if _shows(drawn) else drawn.translate(PLAIN))
    if options.trace:
        _write(options.trace, json.dumps(chrome_trace(played.segments, workload.jobs)))
    return 0


def _shows(text: str) -> bool:
    """Whether the terminal can show all characters of a text."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _plain(workload: Workload, played: Played, bound: float) -> dict[str, Any]:
    accuracy = {"set_aside": played.set_aside, "predicted_seconds": played.predicted_seconds}
    known = {name: asdict(found) for name, found in accuracy.items() if found is not None}
    return {"workload": workload.name, "lower_bound": bound, **asdict(played.figures), **known}


def _check(options: argparse.Namespace) -> None:
    if not 0.0 <= options.error < 1.0:
        raise InputError(f"--error {options.error} is not a share", hint="give 0.5 for 50%")
    if options.busy is not None and not 0.0 < options.busy <= 1.0:
        raise InputError(f"--busy {options.busy} is not a share", hint="give 0.5 for 50%")
    for name, needed in (("jobs", "workload"), ("busy", "run"), ("storage", "run")):
        if getattr(options, name) is not None and getattr(options, needed) is None:
            raise InputError(f"--{name} says something of --{needed} only", hint=f"leave it out, or give --{needed}")
    if options.seed is not None and options.workload is None and not options.error:
        raise InputError("--seed says something of --workload and of --error only", hint="leave it out")
    if options.memory is not None and parse_bytes(options.memory) < MIB:
        raise InputError(f"--memory {options.memory} is less than 1 MiB", hint="write a unit, such as 16GiB")
    if options.trace is not None:
        if options.csv is not None and options.trace.exists() and options.trace.samefile(options.csv):
            raise InputError(f"--trace {options.trace} would overwrite --csv", hint="choose another --trace")
        # Checked before the simulation, which may take minutes.
        _write(options.trace, "", "a")


def _workload(options: argparse.Namespace) -> Workload:
    if options.run is not None:
        return from_run(earlier_run(options.run, options.storage), options.busy)
    if options.csv is not None:
        return from_csv(options.csv)
    return make_workload(options.workload, options.seed or 0, options.jobs)


def _imagined(workload: Workload, options: argparse.Namespace) -> Workload:
    """The workload on the devices, and in the lanes, that the options ask for."""
    asked = {
        "devices": options.devices,
        "capacity": None if options.memory is None else parse_bytes(options.memory),
        "lanes": options.width,
        "residents": options.residents,
    }
    return replace(workload, **{name: value for name, value in asked.items() if value is not None})


def _policy(name: str) -> Policy:
    """A policy by its name, or an object of a class in a module that can be imported from here."""
    module, colon, attribute = name.partition(":")
    if not colon:
        return make_policy(name)
    sys.path.insert(0, os.getcwd())
    try:
        return make_policy(getattr(importlib.import_module(module), attribute)())
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise InputError(
            f"--policy {name} cannot be made: {error}", hint="name a module on the path and a class without arguments"
        ) from error


def _write(path: Path, text: str, mode: str = "w") -> None:
    try:
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}", hint="choose another --trace") from error
