"""Jobs from a table with a header, such as the traces that schedulers are published with."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from cotune.demand import MIB
from cotune.errors import InputError
from cotune.simulation.workload import Job, Workload

# Ours first; the others are what published traces call the same.
NAMES = {
    "seconds": ("seconds", "duration", "duration_s", "runtime", "jct_s"),
    "peak_mib": ("peak_mib", "peak_mem_mb", "memory_mib", "memory_mb"),
    "arrival": ("arrival", "arrival_time", "submit_time", "submitted_time"),
    "start": ("start", "start_time"),
    "end": ("end", "end_time"),
    "kind": ("kind", "model", "model_name"),
    "gpus": ("gpus", "num_gpu", "num_gpus", "gpu_num", "plan_gpu"),
    "instances": ("instances", "num_inst", "inst_num"),
}
TIMES = ("arrival", "start", "end")
# Of a GPU, where others say how many.
_PERCENT = "plan_gpu"
_NOTHING = ("none", "null", "nan", "na", "n/a", "\\n")
_STEPS = 100


def from_csv(path: Path) -> Workload:
    """Jobs from a table, one a row; columns that are not named here are ignored.

    How long a job takes alone is `iterations` and `step_seconds`, or `seconds` (with `iterations`, if there), or what
    is between `start` and `end`; what it needs is `persistent_mib` and `ephemeral_mib`, or `peak_mib`, or nothing.
    `busy`, `startup`, `arrival`, `kind`, `priority` may be there. Times are seconds, or dates as ISO 8601 has them, and
    begin with the first arrival; without `arrival`, jobs arrive at their `start`. `NAMES` has further names for these.
    Jobs of no GPU or of several (`gpus`, of each of its `instances`), and those that took no time or have no end, are
    left out; one of a part of a GPU uses no more than that.

    Raises:
        InputError: The file cannot be read, or a column or a number in it is wrong.
    """
    found = rows(path)
    known = {name for name in ("seconds", "start", "end", "iterations", "step_seconds") if found[0].has(name)}
    if not ("seconds" in known or {"start", "end"} <= known or {"iterations", "step_seconds"} <= known):
        raise InputError(
            f"{path} does not say how long jobs take: it has {', '.join(found[0].cells)[:400]}",
            hint="the first line must name the columns: seconds, or iterations and step_seconds, or start and end",
        )
    single = [row for row in found if 0 < _gpus(row) <= 1]
    jobs = [job for row in single if (job := _job(row)) is not None]
    if not jobs:
        raise InputError(f"{path} has no job of one GPU that takes time", hint="give one with jobs of one GPU")
    first = min(job.arrival for job in jobs)
    jobs = [replace(job, arrival=job.arrival - first) for job in jobs]
    note = f"from {path}"
    if len(single) < len(found):
        note += f", without {len(found) - len(single)} jobs of no GPU or of several"
    if len(jobs) < len(single):
        note += f", without {len(single) - len(jobs)} that took no time or have no end"
    if not found[0].has("arrival") and found[0].has("start"):
        note += "; they arrive when they started there"
    if not any(job.peak for job in jobs):
        note += "; no memory is given, so only lanes are limited"
    return Workload(path.stem, jobs, note)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table.

    Attributes:
        where: Which, for errors.
        cells: By column.
    """

    where: str
    cells: Mapping[str, str]

    def has(self, name: str) -> bool:
        """Whether there is such a column, whatever it is called."""
        return any(other in self.cells for other in NAMES.get(name, (name,)))

    def cell(self, name: str) -> tuple[str, str]:
        """What the column is called here, and what is in it; nothing if there is none."""
        called = next((other for other in NAMES.get(name, (name,)) if self.cells.get(other)), name)
        return called, self.cells.get(called) or ""

    def get(self, name: str, default: float = 0.0) -> float:
        """A number, or a date as one; the default if there is nothing.

        Raises:
            InputError: It is none.
        """
        called, text = self.cell(name)
        if name in TIMES and ((text[:4].isdecimal() and text[4:5] == "-") or set(text) & set("/:")):
            return self._date(called, text)
        return self.number(called) if text else default

    def number(self, column: str) -> float:
        """A cell as a number, 0 or more.

        Raises:
            InputError: It is none.
        """
        text = self.cells[column]
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value < float("inf"):
            raise InputError(f"{self.where}: {column} is {text!r}", hint="write a number, 0 or more")
        return value

    def _date(self, column: str, text: str) -> float:
        try:
            date = datetime.fromisoformat(text)
        except ValueError:
            raise InputError(
                f"{self.where}: {column} is {text!r}", hint="write seconds, or a date such as 2026-01-31 09:30:00"
            ) from None
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def _job(row: Row) -> Job | None:
    """The job of a row; None if it took no time."""
    get = row.get
    iterations = int(get("iterations", _STEPS))
    ran = get("end") - get("start") if row.cell("start")[1] and row.cell("end")[1] else 0.0
    seconds = get("seconds", iterations * get("step_seconds") or ran)
    if iterations < 1 or seconds <= 0:
        return None
    persistent, ephemeral = get("persistent_mib"), get("ephemeral_mib")
    if not persistent + ephemeral:
        ephemeral = get("peak_mib")
    return Job(
        iterations,
        seconds / iterations,
        int(persistent * MIB),
        int(ephemeral * MIB),
        get("busy", min(0.9, _gpus(row))),
        get("startup"),
        get("arrival", get("start")),
        row.cell("kind")[1],
        priority=get("priority"),
    )


def _gpus(row: Row) -> float:
    """How many a job has: one if the table does not speak of them, none if only the cell is empty."""
    if not row.has("gpus"):
        return 1.0
    return row.get("gpus") / (100 if row.cell("gpus")[0] == _PERCENT else 1) * row.get("instances", 1.0)


def rows(path: Path, columns: Sequence[str] = ()) -> list[Row]:
    """The rows of a table, the columns that are named being there.

    Raises:
        InputError: It cannot be read, has no rows, or lacks a column.
    """
    text = lines(path)
    delimiter = max(",\t;", key=text[0].count) if text else ","
    found = [
        Row(f"line {number} of {path}", {_plain(name): _content(cell) for name, cell in row.items() if name})
        for number, row in enumerate(csv.DictReader(text, delimiter=delimiter), start=2)
    ]
    missing = [name for name in columns if found and name not in found[0].cells]
    if missing or not found:
        what = f"{path} lacks the columns {', '.join(missing)}" if missing else f"{path} has no rows"
        raise InputError(what, hint=f"the first line must name {', '.join(columns or ('seconds', 'peak_mib'))}")
    return found


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "_")


def _content(cell: str | None) -> str:
    """What is in a cell, nothing being written in several ways."""
    text = (cell or "").strip()
    return "" if text.lower() in _NOTHING else text


def lines(path: Path) -> list[str]:
    """The lines of a text file.

    Raises:
        InputError: It cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}", hint="check the path, and that it is a text") from error
