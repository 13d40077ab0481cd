"""Jobs from a table with a header, such as published scheduler traces."""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
import statistics
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, zip_longest
from pathlib import Path

from cotune.demand import MIB, format_bytes
from cotune.errors import InputError
from cotune.simulation.workload import Job, Workload, features

# Our name first, then the names that published traces use.
NAMES = {
    "seconds": (
        *("seconds", "duration", "duration_s", "runtime", "run_time", "jct_s", "time_total_s", "elapsed", "elapsedraw"),
    ),
    "peak_mib": ("peak_mib", "peak_mem_mb"),
    "arrival": ("arrival", "arrival_time", "submit", "submit_time", "submitted_time", "creation_time", "time"),
    "start": ("start", "start_time", "scheduled_time"),
    "end": ("end", "end_time", "deletion_time"),
    "kind": ("kind", "model", "model_name", "application"),
    "name": ("name", "job_id", "jobid", "job_name", "job", "task_id", "trial_id", "id", "number"),
    "gpus": (
        *("gpus", "num_gpu", "num_gpus", "n_gpus", "ngpus", "gpu_num", "gpu_count", "gpu_request", "requested_gpus"),
        *("scale_factor", "plan_gpu"),
    ),
    "instances": ("instances", "num_inst", "inst_num", "worker_num", "node_num"),
}
_READ = {
    *(called for name, names in NAMES.items() if name != "name" for called in names),
    *("iterations", "step_seconds", "persistent_mib", "ephemeral_mib", "busy", "startup", "priority", "gpu_milli"),
}
TIMES = ("arrival", "start", "end")
LENGTHS = ("seconds", "step_seconds", "startup")
# Larger numbers are in another unit than the one assumed: three thousand years, ten terabytes.
MOST_SECONDS = 1e11
MOST_MIB = 1e7
# A column in percent of a GPU, where the others count GPUs.
_PERCENT = "plan_gpu"
# Beginnings of columns of hyperparameters, as in the tables of Optuna's studies and of Ray Tune's results.
_PARAMETERS = ("params_", "config/")
_NOTHING = ("none", "null", "nan", "na", "n/a", "\\n", "unknown")
_STEPS = 100
# A duration as pandas, Python and Slurm write it.
_SPAN = re.compile(r"(?:(\d+)(?: days?(?:,? |$)|-(?=\d)))?(?:(\d+):(\d\d):(\d\d(?:\.\d+)?))?")


def from_csv(path: Path) -> Workload:
    """Jobs from a table, one per row; columns that are not named here are ignored.

    How long a job takes alone is `iterations` and `step_seconds`, or `seconds` (with `iterations`, if there), or the
    time from `start` to `end`; what it needs is `persistent_mib` and `ephemeral_mib`, or `peak_mib` and perhaps one of
    these, or nothing.
    `name`, `busy`, `startup`, `arrival`, `kind`, `priority`, and hyperparameters as `params_...` are optional. Times
    are seconds, or dates in ISO 8601, and begin with the first arrival; without `arrival`, jobs arrive at their
    `start`, and without either at the beginning. `NAMES` has further names for these columns.
    Jobs of no GPU or of several (`gpus`, of each of its `instances`), and those that took no time or have no end, are
    left out; a job of part of a GPU uses no more than that part. The file may be compressed with gzip.

    Raises:
        InputError: The file cannot be read, or a column or a number in it is wrong.
    """
    header, single, jobs = None, 0, []
    count = 0
    forms: dict[str, bool] = {}
    for row in _ends_of_trials(_rows(path)):
        header = header or _checked(path, row)
        count += 1
        row.check_times(forms)
        if 0 < _gpus(row) <= 1:
            single += 1
            if (job := _job(row)) is not None:
                jobs.append(job)
    if header is None or not jobs:
        raise InputError(f"{path} has no job of one GPU that takes time", hint="give one with jobs of one GPU")
    unknown = sum(1 for job in jobs if math.isnan(job.arrival))
    first = min((job.arrival for job in jobs if not math.isnan(job.arrival)), default=0.0)
    jobs = [replace(job, arrival=0.0 if math.isnan(job.arrival) else job.arrival - first) for job in jobs]
    note = f"from {path}"
    if single < count:
        note += f", without {count - single} jobs of no GPU or of several"
    if len(jobs) < single:
        note += f", without {single - len(jobs)} that took no time or have no end"
    if unknown == len(jobs):
        note += "; all are there from the beginning, since nothing says when they come"
    elif unknown:
        note += f"; {unknown} that do not say when they come are there from the beginning"
    if not header.has("arrival") and header.has("start"):
        note += "; they arrive when they started there"
    jobs, remark = _with_memory(jobs, header)
    note += remark
    return Workload(path.stem, jobs, note)


def _ends_of_trials(rows: Iterator[Row]) -> Iterable[Row]:
    """The last row of each trial, where Ray Tune has written one a report, each with the time since the beginning."""
    first = next(rows)
    rows = chain([first], rows)
    if not {"trial_id", "time_total_s"} <= first.cells.keys():
        return rows
    return {row.cells["trial_id"] or row.where: row for row in rows}.values()


def _with_memory(jobs: list[Job], header: Row) -> tuple[list[Job], str]:
    """Gives jobs without a memory figure the median of the others; also returns a remark about it for the note."""
    peaks = [job.peak for job in jobs if job.peak]
    if not peaks:
        sizes = ", ".join(name for name in header.cells if "mem" in name and name not in _READ)
        unread = f" ({sizes} is not read: call it peak_mib if it is MiB of the device)" if sizes else ""
        return jobs, f"; no memory is given{unread}, so only lanes are limited"
    if len(peaks) == len(jobs):
        return jobs, ""
    usual, silent = int(statistics.median(peaks)), len(jobs) - len(peaks)
    remark = f"; {silent} that do not say what they need take the median of the others, {format_bytes(usual)}"
    return [job if job.peak else replace(job, ephemeral=usual) for job in jobs], remark


def _checked(path: Path, row: Row) -> Row:
    """Returns the first row if its columns say how long jobs take; raises otherwise."""
    if all(row.has(name) for name in ("trial", "attempts", "expected_seconds")):
        raise InputError(
            f"{path} is a table of cotune's own results, which does not say what the devices were",
            hint="give the run itself: --run NAME",
        )
    known = {name for name in ("seconds", "start", "end", "iterations", "step_seconds") if row.has(name)}
    if not ("seconds" in known or {"start", "end"} <= known or {"iterations", "step_seconds"} <= known):
        raise InputError(
            f"{path} does not say how long jobs take: it has {', '.join(row.cells)[:400]}",
            hint="the first line must name the columns: seconds, or iterations and step_seconds, or start and end",
        )
    return row


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table.

    Attributes:
        where: Its line and file, for errors.
        cells: By column.
    """

    where: str
    cells: Mapping[str, str]

    def has(self, name: str) -> bool:
        """Whether there is such a column, under any of its names."""
        return any(other in self.cells for other in NAMES.get(name, (name,)))

    def cell(self, name: str) -> tuple[str, str]:
        """The column's name in this table, and the cell's text; empty if there is none."""
        called = next((other for other in NAMES.get(name, (name,)) if self.cells.get(other)), name)
        return called, self.cells.get(called) or ""

    def get(self, name: str, default: float = 0.0) -> float:
        """A cell as a number; dates and durations become seconds. Empty cells give the default.

        Raises:
            InputError: The cell is not a number, or cannot be in the unit assumed.
        """
        called, text = self.cell(name)
        if not text:
            return default
        if name in TIMES and _is_date(text):
            return self._date(called, text)
        if name in LENGTHS and (span := _SPAN.fullmatch(text)):
            days, hours, minutes, seconds = (float(part or 0) for part in span.groups())
            return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
        value = self._number(called, least=-math.inf if name == "priority" else 0.0)
        if name in TIMES + LENGTHS and value > MOST_SECONDS:
            raise self._wrong(called, "times are read as seconds: divide those that are milliseconds or microseconds")
        if name.endswith("_mib") and value > MOST_MIB:
            raise self._wrong(called, "sizes are read as MiB: divide those that are bytes by 1048576")
        if name == "busy" and value > 1:
            raise self._wrong(called, "write the share of the device's time that the job uses alone, 0.35 for 35%")
        return value

    def check_times(self, forms: dict[str, bool]) -> None:
        """Checks that times that are compared with each other are all dates, or all seconds.

        Args:
            forms: By what is compared, whether the rows so far have dates there; is updated.

        Raises:
            InputError: They are not.
        """
        arrival, start, end = (self.cell(name)[1] for name in TIMES)
        for what, texts in (("arrival and start", [arrival or start]), ("start and end", [start, end])):
            for text in texts:
                is_date = _is_date(text)
                # What is neither date nor number is wrong by itself, and reading it says so.
                is_time = is_date or isinstance(_value(text), float)
                if is_time and forms.setdefault(what, is_date) != is_date:
                    hint = "give all times that are compared as dates, or all as seconds"
                    raise InputError(f"{self.where}: of {what} some are dates, some seconds", hint=hint)

    def _number(self, column: str, least: float) -> float:
        """A cell as a finite number, `least` or more.

        Raises:
            InputError: It is not such a number.
        """
        try:
            value = float(self.cells[column])
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < least:
            is_time = any(column in NAMES[name] for name in TIMES)
            number = "a number" if least < 0 else "a number, 0 or more"
            raise self._wrong(column, f"write {'seconds, or a date' if is_time else number}")
        return value

    def _wrong(self, column: str, hint: str) -> InputError:
        return InputError(f"{self.where}: {column} is {self.cells[column]!r}", hint=hint)

    def _date(self, column: str, text: str) -> float:
        try:
            date = datetime.fromisoformat(text)
        except ValueError:
            raise self._wrong(column, "write seconds, or a date such as 2026-01-31 09:30:00") from None
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def _is_date(text: str) -> bool:
    return (text[:4].isdecimal() and text[4:5] == "-") or bool(set(text) & set("/:"))


def _job(row: Row) -> Job | None:
    """The job of a row; None if it took no time."""
    get = row.get
    iterations = int(get("iterations"))
    if iterations != get("iterations"):
        raise InputError(f"{row.where}: iterations is {row.cells['iterations']}", hint="write a whole number")
    ran = get("end") - get("start") if row.cell("start")[1] and row.cell("end")[1] else 0.0
    seconds = get("seconds", iterations * get("step_seconds") or ran)
    if seconds <= 0:
        return None
    if seconds > MOST_SECONDS:
        hint = "step_seconds is the time of one iteration"
        raise InputError(f"{row.where}: {iterations} iterations take {seconds:g} s", hint=hint)
    # Some tables have 0 where the number is not known.
    iterations = iterations or _STEPS
    persistent, ephemeral = get("persistent_mib"), get("ephemeral_mib")
    if not ephemeral:
        ephemeral = max(0.0, get("peak_mib") - persistent)
    elif not persistent:
        persistent = max(0.0, get("peak_mib") - ephemeral)
    return Job(
        iterations,
        seconds / iterations,
        int(persistent * MIB),
        int(ephemeral * MIB),
        get("busy", min(0.9, _gpus(row))),
        get("startup"),
        get("arrival", get("start", math.nan)),
        row.cell("kind")[1],
        features({name: _value(text) for name, text in row.cells.items() if name.startswith(_PARAMETERS) and text}),
        priority=get("priority"),
        name=row.cell("name")[1],
    )


def _value(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _gpus(row: Row) -> float:
    """How many GPUs a job has: one if the table has no such column, none if only the cell is empty."""
    count = 1.0
    if row.has("gpus"):
        count = row.get("gpus") / (100 if row.cell("gpus")[0] == _PERCENT else 1)
    return count * row.get("gpu_milli", 1000.0) / 1000 * row.get("instances", 1.0)


def _rows(path: Path) -> Iterator[Row]:
    """The rows of a table.

    Raises:
        InputError: The table cannot be read, or has no rows.
    """
    text = _read_text(path)
    delimiter = max(",\t;", key=text.lstrip().partition("\n")[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    count = 0
    try:
        filled = (cells for cells in reader if any(cell.strip() for cell in cells))
        names = [_plain(name) for name in next(filled, [])]
        twice = [name for name, times in Counter(names).items() if name in _READ and times > 1]
        if twice:
            raise InputError(f"{path} has the column {twice[0]} twice", hint="leave one of them out, or rename it")
        for count, cells in enumerate(filled, start=1):  # noqa: B007 - what is left of it says whether there was any
            where = f"line {reader.line_num} of {path}"
            if any(cell.strip() for cell in cells[len(names) :]):
                raise InputError(
                    f"{where} has {len(cells)} cells for {len(names)} columns",
                    hint="name every column in the first line; quote cells that have a separator inside",
                )
            found = {
                name: _content(cell) for name, cell in zip_longest(names, cells[: len(names)], fillvalue="") if name
            }
            yield Row(where, found)
    except csv.Error as error:
        raise InputError(f"line {reader.line_num} of {path}: {error}", hint="is a quote left open there?") from error
    if not count:
        raise InputError(f"{path} has no rows", hint="the first line must name seconds, peak_mib")


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "_")


def _content(cell: str) -> str:
    """The text of a cell; the various ways of writing nothing become empty."""
    text = cell.strip()
    return "" if text.lower() in _NOTHING else text


def _read_text(path: Path) -> str:
    """The contents of a text file, which may be compressed with gzip.

    Raises:
        InputError: It cannot be read.
    """
    try:
        content = path.read_bytes()
        if content.startswith(b"\x1f\x8b"):
            content = gzip.decompress(content)
        return content.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        hint = "check the path, and that it is a text in UTF-8"
        raise InputError(f"cannot read {path}: {error}", hint=hint) from error
