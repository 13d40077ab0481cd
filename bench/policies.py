"""Policies on workloads, all simulated: the production brain, the simulated body, a virtual clock.

python bench/policies.py [--seeds 3] [--data DIR] [--million] [--out policies.json]

`--data` (or COTUNE_DATA) names a folder with Gavel's `gavel_minimize_makespan.trace.tsv` and `gavel_pairs_1gpu.csv`
and Tiresias's `tiresias_60_job.csv`; without it those rows are left out. The figures printed in papers that this is
held against come from their workloads, which are not published job by job: see the notes below the table.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from _common import Bystanders, describe, machine, write_json
from _gavel import from_gavel

from cotune.demand import GIB
from cotune.engines.simulated import Costs
from cotune.packer import POLICIES
from cotune.simulation import GENERATORS, Job, Setting, Workload, lower_bounds, make_workload, simulate
from cotune.simulation.configurations import configuration_bound
from cotune.simulation.generators import ASHA_RUNGS
from cotune.simulation.models import MODELS

PUBLISHED = ("salus-100", "salus-light", "salus-compute", "tiresias-60", "asha")
# Where the sets that fit a device at once make a stronger bound than volumes do.
MEMORY_BOUND = ("salus-100", "tiresias-60")
SCIPY = importlib.util.find_spec("scipy") is not None
EXCLUSIVE = {"policy": "fifo", "lanes": 1}


@dataclass(frozen=True, slots=True)
class Row:
    """Means over seeds; seconds."""

    makespan: float
    completion: float
    waiting: float
    utilisation: float
    fill: float
    ratio: float
    out_of_memory: float


Make = Callable[[int], Workload]


def play(
    make: Make, seeds: int, strictly: bool = False, policy: str | None = None, error: float | None = 0.0, **where: Any
) -> Row:
    """Plays a workload with each seed.

    Args:
        make: Makes the workload from a seed.
        seeds: How many seeds there are.
        strictly: Whether to compare with the best mix of sets, too, which takes its time.
        policy: Orders waiting trials; None for the workload's own.
        error: How far predictions are off; None for what is learnt only.
        where: Fields of the workload to play it with, such as its devices and lanes.
    """
    rows = []
    for seed in range(seeds):
        workload = replace(make(seed), **where)
        outcome = simulate(workload, Setting(policy=policy, error=error, seed=seed, keep=False))
        figures = outcome.figures
        bound = configuration_bound(workload, outcome.ran) if strictly else lower_bounds(workload, outcome.ran).best
        rows.append(
            (
                figures.makespan,
                figures.completion,
                figures.waiting,
                figures.utilisation,
                figures.fill,
                figures.makespan / bound,
                float(figures.out_of_memory),
            )
        )
    return Row(*(statistics.fmean(column) for column in zip(*rows, strict=True)))


def generated(name: str) -> Make:
    return lambda seed: make_workload(name, seed)


def show(name: str, policy: str, row: Row) -> None:
    print(
        f"| {name} | {policy} | {row.makespan / 60:.0f} | {row.completion / 60:.1f} | {row.waiting / 60:.1f} | "
        f"{row.utilisation:.2f} | {row.fill:.2f} | {row.ratio:.3f} | {row.out_of_memory:.0f} |",
        flush=True,
    )


def header(title: str) -> None:
    print(f"\n{title}\n")
    print("| workload | policy | makespan min | completion min | waiting min | used | memory | over bound | OOM |")
    print("|---|---|---|---|---|---|---|---|---|")


def table(makes: dict[str, Make], devices: int, seeds: int) -> dict[str, dict[str, Row]]:
    header(f"{devices} device(s), exact predictions, mean of {seeds} seed(s)")
    found: dict[str, dict[str, Row]] = {}
    for name, make in makes.items():
        rows = found[name] = {"exclusive": play(make, seeds, devices=devices, **EXCLUSIVE)}
        show(name, "exclusive", rows["exclusive"])
        for policy in POLICIES:
            rows[policy] = play(make, seeds, devices=devices, policy=policy)
            show(name, policy, rows[policy])
    return found


# ---- the figures to reach


Check = tuple[str, float, float, bool]


def checks(one: dict[str, dict[str, Row]], seeds: int) -> list[Check]:
    """What was asked for, what was reached, and whether that is enough."""
    found: list[Check] = []

    def at_least(text: str, goal: float, value: float) -> None:
        found.append((f"{text} >= {goal}", goal, value, value >= goal))

    def at_most(text: str, goal: float, value: float) -> None:
        found.append((f"{text} <= {goal}", goal, value, value <= goal))

    mix = generated("salus-100")
    fifo = play(mix, seeds, **EXCLUSIVE)
    turns = play(mix, seeds, policy="srtf", lanes=1, residents=32)
    packed = play(mix, seeds, policy="srtf", residents=8)
    best = statistics.fmean(in_turn(mix(seed).jobs) / shortest_first(mix(seed).jobs) for seed in range(seeds))
    at_least(
        "salus-100: completion, exclusive FIFO over SRTF by turns in one lane", 3.19, fifo.completion / turns.completion
    )
    found.append(("  (the best that any order in one lane can reach on these jobs)", best, best, True))
    at_least("salus-100: completion, exclusive FIFO over SRTF in lanes", 3.19, fifo.completion / packed.completion)
    at_most("salus-100: makespan, SRTF by turns over exclusive FIFO", 1.02, turns.makespan / fifo.makespan)
    at_most("salus-100: makespan, SRTF in lanes over exclusive FIFO", 1.02, packed.makespan / fifo.makespan)
    for policy in ("pack", "makespan"):
        for name, goal in (("salus-light", 2.38), ("salus-compute", 1.07)):
            gain = one[name]["exclusive"].makespan / one[name][policy].makespan
            at_least(f"{name}: makespan, exclusive over {policy}", goal, gain)
    for error, goal in ((0.0, 1.05), (0.5, 1.15)):
        for devices in (1, 4):
            for name in PUBLISHED:
                strictly = SCIPY and name in MEMORY_BOUND
                row = play(generated(name), seeds, strictly, devices=devices, error=error)
                at_most(f"{name}, {devices} device(s), error {error:.0%}: makespan over bound", goal, row.ratio)
    return found


def in_turn(jobs: Any) -> float:
    """Mean completion of jobs that are all there, one after another."""
    total = time = 0.0
    for job in jobs:
        time += job.seconds
        total += time
    return total / len(jobs)


def shortest_first(jobs: Any) -> float:
    return in_turn(sorted(jobs, key=lambda job: job.seconds))


# ---- what order does to a stopping rule

# How long a trial takes, by its quality, 0 being the best.
LENGTHS: dict[str, Callable[[float], float]] = {
    "by noise alone": lambda quality: 1 + quality / 50,
    "the longer the worse": lambda quality: 0.25 * 16**quality,
    "the longer the better": lambda quality: 0.25 * 16 ** (1 - quality),
}


def judged(length: Callable[[float], float]) -> Make:
    """Trials under ASHA, whose length and size go with their quality."""

    def make(seed: int) -> Workload:
        dice, jobs = random.Random(seed), []
        for _ in range(243):
            quality = dice.random()
            size = length(quality)
            values = tuple(quality / 2 + 1 / rung + dice.gauss(0, 0.1 / rung**0.5) for rung in ASHA_RUNGS)
            rungs = tuple(rung * 10 for rung in ASHA_RUNGS)
            held, within = int(0.1 * size * GIB), int(0.4 * size * GIB)
            jobs.append(Job(270, 0.5 * size, held, within, dice.uniform(0.3, 0.9), 3.0, rungs=rungs, values=values))
        return Workload("judged", jobs, "")

    return make


def orders(seeds: int) -> list[dict[str, Any]]:
    """How much is run, and for how long, where the order of trials may go with their quality."""
    print("\n| under ASHA, trials are longer | devices | policy | iterations, of whole trials | makespan min |")
    print("|---|---|---|---|---|")
    rows = []
    for what, length in LENGTHS.items():
        for devices in (1, 4):
            for policy in ("fifo", "makespan"):
                played = [
                    simulate(
                        replace(judged(length)(seed), devices=devices), Setting(seed=seed, keep=False, policy=policy)
                    )
                    for seed in range(seeds)
                ]
                whole = statistics.fmean(sum(outcome.ran) / 270 for outcome in played)
                makespan = statistics.fmean(outcome.figures.makespan for outcome in played)
                rows.append({"what": what, "devices": devices, "policy": policy, "whole": whole, "makespan": makespan})
                print(f"| {what} | {devices} | {policy} | {whole:.0f} | {makespan / 60:.0f} |", flush=True)
    return rows


# ---- published traces


def traces(folder: Path) -> dict[str, Make]:
    found: dict[str, Make] = {}
    trace, pairs = folder / "gavel_minimize_makespan.trace.tsv", folder / "gavel_pairs_1gpu.csv"
    if trace.exists() and pairs.exists():
        for gpu in ("v100", "p100"):
            found[f"gavel-{gpu}"] = lambda seed, gpu=gpu: from_gavel(trace, pairs, gpu)  # type: ignore[misc]
    jobs = folder / "tiresias_60_job.csv"
    if jobs.exists():
        found["tiresias-trace"] = lambda seed: tiresias_trace(jobs)
    return found


def tiresias_trace(path: Path) -> Workload:
    """The jobs of one GPU in Tiresias's simulator; memory and load of its models at their middle batch size."""
    sizes = {model.name: model for model in MODELS if model.batch == 50}
    with open(path, newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["num_gpu"] == "1"]
    jobs = []
    for row in rows:
        model, count = sizes[row["model_name"]], int(row["iterations"])
        step = float(row["duration"]) / count
        arrival = float(row["submit_time"])
        jobs.append(Job(count, step, model.persistent, model.ephemeral, model.busy, arrival=arrival, kind=model.name))
    return Workload("tiresias-trace", jobs, "Tiresias's 60 jobs, those of one GPU")


def million(count: int = 1_000_000) -> dict[str, float]:
    """Simulates a million trials, and says how long that took."""
    workload = replace(make_workload("hpo", 0, count), devices=8, lanes=4, costs=Costs(start=0.0, progress=1))
    began = time.perf_counter()
    outcome = simulate(workload, Setting(keep=False, ahead=1000))
    taken = time.perf_counter() - began
    print(
        f"\n{count:,} trials on 8 devices: {taken:.0f} s ({1e6 * taken / count:.0f} us a trial, {outcome.events:,} "
        f"events), {outcome.figures.makespan / 86400:.1f} days simulated"
    )
    return {"trials": count, "seconds": taken, "events": outcome.events}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", type=Path, default=os.environ.get("COTUNE_DATA"))
    parser.add_argument("--million", action="store_true", help="simulate a million trials too")
    parser.add_argument("--out")
    options = parser.parse_args()
    facts, bystanders = machine(), Bystanders()
    bystanders.look()
    makes = {name: generated(name) for name in PUBLISHED}
    one, four = table(makes, 1, options.seeds), table(makes, 4, options.seeds)
    found = checks(one, options.seeds)
    print("\n| asked for | reached | |\n|---|---|---|")
    for text, _, value, ok in found:
        print(f"| {text} | {value:.3f} | {'' if ok else 'missed'} |")
    print()
    for name in PUBLISHED:
        print(f"- {name}: {GENERATORS[name][0].__doc__} {make_workload(name).note}")
    if options.data:
        table(traces(Path(options.data)), 1, 1)
        table(traces(Path(options.data)), 4, 1)
    by_order = orders(options.seeds)
    scale = million() if options.million else None
    facts["others_cores"] = bystanders.cores()
    print(f"\n{describe(facts)}")
    rows = {"1": one, "4": four}
    plain = {d: {n: {p: vars_of(r) for p, r in rs.items()} for n, rs in t.items()} for d, t in rows.items()}
    write_json(options.out, {"machine": facts, "tables": plain, "checks": found, "orders": by_order, "million": scale})
    return 0


def vars_of(row: Row) -> dict[str, float]:
    return {name: getattr(row, name) for name in Row.__slots__}


if __name__ == "__main__":
    sys.exit(main())
