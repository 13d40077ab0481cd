"""Seeded workloads, shaped like published ones.

None is the published list of jobs, which the papers do not print; each workload's note says what is taken from the
paper and what is assumed. The workloads were written down before any policy was run on them.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from statistics import NormalDist

from cotune.demand import GIB, MIB
from cotune.errors import InputError
from cotune.simulation.models import MODELS, Model
from cotune.simulation.workload import Job, Workload

ASHA_RUNGS = (1, 3, 9, 27)
# Salus, section 5.1: with SRTF, jobs took 53.4 minutes on average, 217 at the 95th percentile, 306.0 in all; with FIFO,
# 170.6 on average and 303.4 in all.
SALUS_SPREAD = 2.35
SALUS_LONGEST = 36.0
SALUS_FIFO = 170.6 / 303.4


def make_workload(name: str, seed: int = 0, jobs: int | None = None) -> Workload:
    """The generated workload of that name.

    Args:
        name: One of `GENERATORS`.
        seed: The same seed gives the same jobs.
        jobs: How many, if other than published.

    Raises:
        InputError: There is no such workload.
    """
    if name not in GENERATORS:
        raise InputError(f"{name!r} is not a workload", hint=f"choose one of {', '.join(GENERATORS)}")
    if jobs is not None and jobs < 1:
        raise InputError(f"{jobs} jobs are no workload", hint="give one job or more")
    generator, count = GENERATORS[name]
    return generator(random.Random(seed), jobs or count)


def _of(model: Model, seconds: float, arrival: float = 0.0) -> Job:
    """A job of a measured model that takes about `seconds`, start-up included."""
    iterations = max(2, round((seconds - model.startup) / model.step_seconds))
    return Job(
        iterations,
        model.step_seconds,
        model.persistent,
        model.ephemeral,
        model.busy,
        model.startup,
        arrival,
        model.name,
        {"batch": float(model.batch)},
    )


def salus_100(dice: random.Random, count: int) -> Workload:
    """The mix of training jobs on one GPU."""
    models = dice.sample(MODELS * -(-count // len(MODELS)), count)
    # Quantiles instead of draws: a hundred draws seldom have the averages to be met.
    shape = NormalDist(0, SALUS_SPREAD)
    lengths = [min(SALUS_LONGEST, math.exp(shape.inv_cdf((n + 0.5) / count))) for n in range(count)]
    left = 303.4 * 60 * count / 100 - sum(model.startup for model in models)
    unit = left / sum(lengths)
    jobs = [_of(model, model.startup + unit * length) for model, length in zip(models, lengths, strict=True)]
    orders = [dice.sample(jobs, count) for _ in range(200)]
    return Workload(
        "salus-100",
        min(orders, key=lambda order: abs(_mean_completion(order) - SALUS_FIFO)),
        "Salus, MLSys'20, section 5.1: 100 jobs of 33 measured model and batch pairs, 303 minutes in all. Assumed: "
        "all there at the beginning; log-normal training times up to a longest one, whose spread (sigma 2.35) and "
        "longest (36 medians) give the mean and the 95th percentile printed for SRTF, in an order that gives the mean "
        "printed for FIFO. So the gain of SRTF over FIFO tests the brain, not the shape.",
    )


def _mean_completion(jobs: Sequence[Job]) -> float:
    """Mean completion time of jobs that run one after the other, as a share of the time they take in all."""
    ends = list(itertools.accumulate(job.seconds for job in jobs))
    return sum(ends) / len(ends) / ends[-1]


def salus_light(dice: random.Random, count: int) -> Workload:
    """Exploration with a model too light for the GPU."""
    jobs = []
    for _ in range(count):
        batch, depth = dice.choice((8, 16, 32, 64)), dice.uniform(0.5, 2.0)
        busy = dice.uniform(0.25, 0.45)
        features = {"batch": float(batch), "depth": depth}
        ephemeral = int(depth * batch * 12 * MIB)
        step = 0.02 * depth * (0.5 + batch / 64)
        jobs.append(Job(3000, step, int(depth * 60 * MIB), ephemeral, busy, 5.0, 0.0, "superres", features))
    return Workload(
        "salus-light",
        jobs,
        "Salus, MLSys'20, section 5.2: 300 trials of a super-resolution network, light. Assumed: each uses 25 to 45% "
        "of the GPU alone, takes 0.3 to 1.8 GiB and 30 seconds to 3 minutes.",
    )


def salus_compute(dice: random.Random, count: int) -> Workload:
    """Exploration with a model that fills the GPU."""
    models = [model for model in MODELS if model.name == "resnet50"]
    jobs = [_of(dice.choice(models), dice.uniform(60, 180)) for _ in range(count)]
    return Workload(
        "salus-compute",
        jobs,
        "Salus, MLSys'20, section 5.2: 300 trials of ResNet-50, measured at three batch sizes. Assumed: 1 to 3 "
        "minutes each.",
    )


def tiresias(dice: random.Random, count: int) -> Workload:
    """Jobs that arrive one after another: most short, some very long."""
    jobs, time = [], 0.0
    for _ in range(count):
        time += dice.expovariate(1 / 30)
        seconds = 120 + dice.expovariate(1 / 15) if dice.random() < 0.85 else 120 * dice.paretovariate(1.1)
        jobs.append(_of(dice.choice(MODELS), min(seconds, 1800.0), time))
    return Workload(
        "tiresias-60",
        jobs,
        "Tiresias, NSDI'19, its simulator's 60 jobs: one every 30 seconds, most of 2 minutes, the longest of 30; "
        "models as in Salus. Left out: jobs of several GPUs.",
    )


def asha(dice: random.Random, count: int) -> Workload:
    """A search in which most trials are killed early."""
    jobs = []
    for _ in range(count):
        width, batch = 2 ** dice.uniform(6, 10), 2 ** dice.randint(5, 8)
        quality = dice.random()
        step = 0.5 * (width / 256) * (batch / 64) ** 0.5
        ephemeral = int((0.2 + 0.6 * batch / 256) * (width / 256) * GIB)
        features = {"width": width, "batch": float(batch)}
        values = tuple(quality / 2 + 1 / rung + dice.gauss(0, 0.1 / math.sqrt(rung)) for rung in ASHA_RUNGS)
        rungs = tuple(rung * 10 for rung in ASHA_RUNGS)
        busy = dice.uniform(0.3, 0.9)
        persistent = int(0.05 * (width / 256) ** 2 * GIB)
        jobs.append(Job(270, step, persistent, ephemeral, busy, 3.0, 0.0, "asha", features, rungs, values))
    return Workload(
        "asha",
        jobs,
        "ASHA, MLSys'20: rungs at 10, 30, 90 and 270 iterations, the best third goes on; values are a hidden quality "
        "with noise that falls with the iterations. All figures assumed.",
    )


def hpo(dice: random.Random, count: int) -> Workload:
    """Very many short trials, to measure the speed of cotune itself."""
    jobs = []
    for _ in range(count):
        width = 2 ** dice.uniform(0, 3)
        sizes = int(width * 0.3 * GIB), int(width * 0.4 * GIB)
        jobs.append(Job(10, 1.0 + width, *sizes, 0.3, 0.0, 0.0, "hpo", {"width": width}))
    return Workload("hpo", jobs, "All figures assumed.", capacity=80 * GIB)


_Generator = Callable[[random.Random, int], Workload]
GENERATORS: dict[str, tuple[_Generator, int]] = {
    "salus-100": (salus_100, 100),
    "salus-light": (salus_light, 300),
    "salus-compute": (salus_compute, 300),
    "tiresias-60": (tiresias, 60),
    "asha": (asha, 243),
    "hpo": (hpo, 10_000),
}
