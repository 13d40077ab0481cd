"""Jobs from a table with a header, such as the traces that schedulers are published with."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from cotune.demand import MIB
from cotune.errors import InputError
from cotune.simulation.workload import Job, Workload

# Ours first; the others are what published traces call the same.
NAMES = {
    "seconds": ("seconds", "duration", "duration_s", "runtime", "jct_s"),
    "peak_mib": ("peak_mib", "peak_mem_mb", "memory_mib", "memory_mb"),
    "arrival": ("arrival", "arrival_time", "submit_time"),
    "kind": ("kind", "model", "model_name"),
    "gpus": ("gpus", "num_gpu", "num_gpus"),
}
_STEPS = 100


def from_csv(path: Path) -> Workload:
    """Jobs from a table, one a row; columns that are not named here are ignored.

    How long a job takes alone is `iterations` and `step_seconds`, or `seconds` (with `iterations`, if there); what it
    needs is `persistent_mib` and `ephemeral_mib`, or `peak_mib`, or nothing. `busy`, `startup`, `arrival`, `kind`,
    `priority` may be there. `NAMES` has further names for these. Jobs of several GPUs (`gpus`) are left out.

    Raises:
        InputError: The file cannot be read, or a column or a number in it is wrong.
    """
    found = rows(path)
    is_long = any(name in found[0] for name in NAMES["seconds"])
    needed = () if is_long else ("iterations", "step_seconds")
    if any(name not in found[0] for name in needed):
        raise InputError(
            f"{path} does not say how long jobs take: it has {', '.join(found[0])}",
            hint="name a column seconds, or two iterations and step_seconds",
        )
    jobs = [
        _job(path, number, row)
        for number, row in enumerate(found, start=2)
        if _number(path, number, row, "gpus", 1.0) <= 1
    ]
    if not jobs:
        raise InputError(f"every job of {path} wants several GPUs", hint="give one with jobs of one GPU")
    note = f"from {path}"
    if len(jobs) < len(found):
        note += f", without {len(found) - len(jobs)} jobs of several GPUs"
    if not any(job.peak for job in jobs):
        note += "; no memory is given, so only lanes are limited"
    return Workload(path.stem, jobs, note)


def _job(path: Path, number: int, row: Mapping[str, str]) -> Job:
    def get(name: str, default: float = 0.0) -> float:
        return _number(path, number, row, name, default)

    iterations = int(get("iterations", _STEPS))
    seconds = get("seconds", iterations * get("step_seconds"))
    if iterations < 1 or seconds <= 0:
        raise InputError(f"line {number} of {path} is a trial that takes no time", hint="give it an iteration")
    persistent, ephemeral = get("persistent_mib"), get("ephemeral_mib")
    if not persistent + ephemeral:
        ephemeral = get("peak_mib")
    return Job(
        iterations,
        seconds / iterations,
        int(persistent * MIB),
        int(ephemeral * MIB),
        get("busy", 0.9),
        get("startup"),
        get("arrival"),
        _cell(row, "kind")[1],
        priority=get("priority"),
    )


def _cell(row: Mapping[str, str], name: str) -> tuple[str, str]:
    """What the column is called here, and what is in it; nothing if there is none."""
    called = next((other for other in NAMES.get(name, (name,)) if row.get(other)), name)
    return called, row.get(called) or ""


def _number(path: Path, number: int, row: Mapping[str, str], name: str, default: float) -> float:
    called, text = _cell(row, name)
    return number_in(path, number, row, called) if text else default


def number_in(path: Path, number: int, row: Mapping[str, str], name: str) -> float:
    """A cell as a number, 0 or more.

    Raises:
        InputError: It is none.
    """
    try:
        value = float(row[name])
    except (TypeError, ValueError):
        value = -1.0
    if not 0 <= value < float("inf"):
        raise InputError(f"line {number} of {path}: {name} is {row[name]!r}", hint="write a number, 0 or more")
    return value


def rows(path: Path, columns: Sequence[str] = ()) -> list[dict[str, str]]:
    """The rows of a table by column, those named being there.

    Raises:
        InputError: It cannot be read, has no rows, or lacks a column.
    """
    found = [{name: text for name, text in row.items() if name} for row in csv.DictReader(lines(path))]
    missing = [name for name in columns if found and name not in found[0]]
    if missing or not found:
        what = f"{path} lacks the columns {', '.join(missing)}" if missing else f"{path} has no rows"
        raise InputError(what, hint=f"the first line must name {', '.join(columns or ('seconds', 'peak_mib'))}")
    return found


def lines(path: Path) -> list[str]:
    """The lines of a text file.

    Raises:
        InputError: It cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}", hint="check the path") from error
