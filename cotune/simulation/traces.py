"""Workloads from a finished run, and from published traces."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from cotune.demand import GIB, MIB
from cotune.errors import InputError
from cotune.packer.interference import shared_speed
from cotune.paths import RunFolder
from cotune.record import Record, read_run
from cotune.simulation.table import lines, number_in, rows
from cotune.simulation.workload import Job, Workload
from cotune.trial import TrialState

_STEPS = 100


def from_run(folder: RunFolder, busy: float | None = None) -> Workload:
    """The trials of a run as they went: when they were killed they are killed again, what they took they take again.

    What a trial takes alone is what it took, less what those beside it have slowed it down by the simulated body's
    measure. What it uses of a device is not in the events: without `busy` it is taken to be its part of the width the
    run had.

    Args:
        folder: Of the run.
        busy: Share of a device's time that a trial uses alone.

    Raises:
        StorageError: The run cannot be read.
        InputError: No trial of it ran to an end.
    """
    records = [r for r in read_run(folder).records if r.start is not None and r.end is not None and r.end > r.start]
    if not records:
        raise InputError(f"no trial of {folder.path} has run", hint="choose a run with finished trials")
    measured = [record.demand for record in records if record.demand is not None]
    persistent = int(statistics.median([demand.persistent for demand in measured] or [0]))
    ephemeral = int(statistics.median([demand.ephemeral for demand in measured] or [0]))
    crowds = _crowds(records)
    share = busy or 1 / max(crowd.most for crowd in crowds.values())
    jobs = []
    for record in sorted(records, key=lambda record: record.start or 0.0):
        if record.state is TrialState.INTERRUPTED or record.start is None or record.end is None:
            continue
        demand = record.demand
        sizes = (demand.persistent, demand.ephemeral) if demand else (persistent, ephemeral)
        beside = crowds[record.device or ""].mean(record.start, record.end)
        seconds = (record.end - record.start) * (shared_speed(beside * share) if beside > 1 else 1.0)
        jobs.append(Job(_STEPS, seconds / _STEPS, *sizes, busy=share))
    largest = max(job.peak for job in jobs)
    note = f"{len(jobs)} trials of {folder.path.name}; each uses {share:.0%} of a device alone"
    return Workload(folder.path.name, jobs, note, capacity=16 * max(largest, MIB), context=0)


class _Crowd:
    """How many trials ran on a device at any time, from their starts and ends."""

    def __init__(self, spans: Iterable[tuple[float, float]]) -> None:
        self._times: list[float] = []
        self._sums: list[float] = []
        self._counts: list[int] = []
        self.most = 1
        count, total, before = 0, 0.0, 0.0
        changes = [change for start, end in spans for change in ((start, 1), (end, -1))]
        for time, change in sorted(changes):
            total += count * (time - before)
            count, before = count + change, time
            self._times.append(time)
            self._sums.append(total)
            self._counts.append(count)
            self.most = max(self.most, count)

    def mean(self, start: float, end: float) -> float:
        return (self._until(end) - self._until(start)) / (end - start)

    def _until(self, time: float) -> float:
        at = bisect_right(self._times, time) - 1
        return self._sums[at] + self._counts[at] * (time - self._times[at])


def _crowds(records: Sequence[Record]) -> dict[str, _Crowd]:
    spans: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for record in records:
        spans[record.device or ""].append((record.start or 0.0, record.end or 0.0))
    return {device: _Crowd(them) for device, them in spans.items()}


def from_gavel(trace: Path, pairs: Path, gpu: str = "v100") -> Workload:
    """Gavel's makespan trace (OSDI'20), with the measured throughputs of single jobs and pairs on one kind of GPU.

    What a job uses of the device follows from how much the pairs it is in were slowed down. Its memory is not in the
    trace: any two fit and no three, as in Gavel. Jobs of several GPUs are left out.

    Args:
        trace: `minimize_makespan.trace`, tab-separated.
        pairs: A table of gpu, job_a, job_b, and steps a second alone and together.
        gpu: Which.
    """
    alone, busy = _from_pairs(pairs, gpu)
    jobs = []
    for row in lines(trace):
        fields = row.split("\t")
        if len(fields) < 8 or fields[0] not in alone or fields[6] != "1":
            continue
        steps, name = int(fields[5]), fields[0]
        seconds = steps / alone[name]
        jobs.append(Job(_STEPS, seconds / _STEPS, 0, 6 * GIB, busy[name], 0.0, float(fields[-1]), name))
    if not jobs:
        raise InputError(f"{trace} has no job of one GPU that {pairs} knows", hint="give Gavel's files")
    note = (
        f"Gavel, OSDI'20, minimize_makespan.trace on a {gpu}: {len(jobs)} jobs; memory assumed: two fit, three do not"
    )
    return Workload(f"gavel-{gpu}", jobs, note, context=256 * MIB)


def _from_pairs(path: Path, gpu: str) -> tuple[dict[str, float], dict[str, float]]:
    """Steps a second of each job alone, and its share of the device's time by the slope over its pairs."""
    alone: dict[str, float] = {}
    kept: defaultdict[str, list[float]] = defaultdict(list)
    columns = ("gpu", "job_a", "job_b", "iso_a_steps_s", "co_a_steps_s", "iso_b_steps_s", "co_b_steps_s")
    for number, row in enumerate(rows(path, columns), start=2):
        if row["gpu"] == gpu:
            one, other = number_in(path, number, row, "iso_a_steps_s"), number_in(path, number, row, "iso_b_steps_s")
            alone[row["job_a"]] = one
            a, b = number_in(path, number, row, "co_a_steps_s"), number_in(path, number, row, "co_b_steps_s")
            if a > 0 and b > 0:
                kept[row["job_a"]].append((a / one + b / other) / 2)
    shares = {name: _load(statistics.median(kept[name])) / 2 if kept[name] else 1.0 for name in alone}
    return {name: rate for name, rate in alone.items() if rate > 0}, shares


def _load(kept: float) -> float:
    """The sum of busy shares at which trials keep this part of their speed."""
    return next((load / 64 for load in range(1, 128) if shared_speed(load / 64) <= kept), 2.0)
