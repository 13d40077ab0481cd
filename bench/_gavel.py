"""Gavel's makespan trace (OSDI'20), with the measured throughputs of single jobs and of pairs on one kind of GPU."""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from pathlib import Path

from cotune.demand import GIB, MIB
from cotune.errors import InputError
from cotune.packer.interference import shared_speed
from cotune.simulation import Job, Workload

STEPS = 100


def from_gavel(trace: Path, pairs: Path, gpu: str = "v100") -> Workload:
    """The jobs of one GPU in a trace.

    A job's device use follows from the slowdown in the pairs it is in. Its memory is not in the trace: any two jobs fit
    and no three, as in Gavel.

    Args:
        trace: `minimize_makespan.trace`, tab-separated.
        pairs: A table of gpu, job_a, job_b, and steps per second alone and together.
        gpu: The kind of GPU, as in the table.
    """
    alone, busy = _from_pairs(pairs, gpu)
    jobs = []
    for row in trace.read_text(encoding="utf-8").splitlines():
        fields = row.split("\t")
        if len(fields) < 8 or fields[0] not in alone or fields[6] != "1":
            continue
        steps, name = int(fields[5]), fields[0]
        seconds = steps / alone[name]
        jobs.append(Job(STEPS, seconds / STEPS, 0, 6 * GIB, busy[name], 0.0, float(fields[-1]), name))
    if not jobs:
        raise InputError(f"{trace} has no job of one GPU that {pairs} knows", hint="give Gavel's files")
    note = (
        f"Gavel, OSDI'20, minimize_makespan.trace on a {gpu}: {len(jobs)} jobs; memory assumed: two fit, three do not"
    )
    return Workload(f"gavel-{gpu}", jobs, note, context=256 * MIB)


def _from_pairs(path: Path, gpu: str) -> tuple[dict[str, float], dict[str, float]]:
    """Steps per second of each job alone, and its share of the device's time, from the speed kept in its pairs."""
    alone: dict[str, float] = {}
    kept: defaultdict[str, list[float]] = defaultdict(list)
    with open(path, newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["gpu"] == gpu]
    for row in rows:
        job = row["job_a"]
        alone[job] = one = float(row["iso_a_steps_s"])
        other, a, b = (float(row[column]) for column in ("iso_b_steps_s", "co_a_steps_s", "co_b_steps_s"))
        if a > 0 and b > 0:
            kept[job].append((a / one + b / other) / 2)
    shares = {name: _load(statistics.median(kept[name])) / 2 if kept[name] else 1.0 for name in alone}
    return {name: rate for name, rate in alone.items() if rate > 0}, shares


def _load(kept: float) -> float:
    """The sum of busy shares at which trials keep this share of their speed."""
    return next((load / 64 for load in range(1, 128) if shared_speed(load / 64) <= kept), 2.0)
