"""The strongest lower bound: the best mix of sets of trials that devices can run at once, as a linear program.

At each moment a device runs some set of trials that fits its memory, each at the speed that the set's busy shares
leave, and no trial runs twice at once. The program gives shares of time to sets so that all the work gets done and no
trial gets more time than there is after its arrival. The least makespan for which this is possible is no more than
that of any schedule. This is the linear program of cutting stock (Gilmore and Gomory, Oper. Res. 9, 1961) with a
constraint per trial: there are too many sets to write down, and those that matter are found one by one, as knapsacks
over memory and load.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cotune.errors import InputError
from cotune.packer.interference import shared_speed
from cotune.simulation.bounds import lower_bounds, most_lanes
from cotune.simulation.workload import Workload

MEMORY_PARTS = 64
LOAD_PARTS = 32
# From any set beyond that, trials can be left out without loss: a device does most at a load of 1.875
# (`interference.shared_speed`), and no trial's share is above 1.
MOST_LOAD = 2.875
ROUNDS = 60
CLOSE = 0.003
# Trials longer than this part of the bound known so far are kept apart from similar trials.
LONG = 0.25
# With this many trials it takes a second or so.
FEW = 20

_Array = Any


def configuration_bound(workload: Workload, ran: Sequence[int] | None = None) -> float:
    """A lower bound of the makespan, in seconds, of lanes with one resident each.

    It is at least the best of `lower_bounds`, whose arguments it takes.

    Memory and load are rounded down to parts and speeds up, which lowers it by some percent. Takes seconds to minutes.

    Raises:
        InputError: scipy is not installed.
    """
    try:
        from scipy.optimize import linprog
    except ImportError as error:
        raise InputError("this bound needs scipy, which is not installed", hint="pip install scipy") from error
    best, devices = lower_bounds(workload, ran).best, workload.devices
    kinds = _Kinds(workload, ran, LONG * best)
    count = len(kinds.sizes)
    if not count:
        return best
    columns = kinds.singles()
    for _ in range(ROUNDS):
        sets = np.array(columns).T
        done, inside = sets[: 2 * count], sets[2 * count :]
        rows = np.block(
            [
                [-done, np.zeros((2 * count, 1))],
                [np.ones((1, len(columns))), np.array([[-float(devices)]])],
                [inside, -kinds.members[:, None]],
            ]
        )
        limits = np.concatenate([-kinds.work, [0.0], -kinds.arrivals])
        goal = np.zeros(len(columns) + 1)
        goal[-1] = 1.0
        found = linprog(goal, A_ub=rows, b_ub=limits, method="highs")
        if found.ineqlin is None:
            break
        prices = np.maximum(-found.ineqlin.marginals, 0.0)
        worth, fee, due = prices[: 2 * count], prices[2 * count], prices[2 * count + 1 :]
        value, new = kinds.dearest(worth, due)
        # With the fee raised to the dearest set's value, any prices are a solution of the dual.
        scale = devices * max(value, fee) + float(due @ kinds.members)
        if scale > 0:
            best = max(best, float(worth @ kinds.work + due @ kinds.arrivals) / scale)
        if value <= fee * (1.0 + CLOSE):
            break
        columns += new
    return best


def best_bound(workload: Workload, ran: Sequence[int] | None = None) -> float:
    """The best bound found quickly: `configuration_bound` for few trials and with scipy, otherwise `lower_bounds`.

    With several residents a lane, trials at once can be faster than `configuration_bound` assumes: the speed at a mean
    load may exceed the mean of speeds.
    """
    if len(workload.jobs) <= FEW and workload.residents == 1:
        with contextlib.suppress(InputError):
            return configuration_bound(workload, ran)
    return lower_bounds(workload, ran).best


class _Kinds:
    """Trials with the same memory and load, grouped.

    An item of a set is a kind that starts, numbered as the kind, or one that runs, numbered behind all that start.
    """

    def __init__(self, workload: Workload, ran: Sequence[int] | None, long: float) -> None:
        jobs = workload.jobs
        counts = ran if ran is not None else [job.iterations for job in jobs]
        found: defaultdict[tuple[int, int, int], list[float]] = defaultdict(lambda: [0.0] * 4)
        for number, (job, steps) in enumerate(zip(jobs, counts, strict=True)):
            if steps:
                size = min((job.peak + workload.context) * MEMORY_PARTS // workload.capacity, MEMORY_PARTS)
                seconds = job.startup + steps * job.step_seconds
                entry = found[int(size), int(job.busy * LOAD_PARTS), number if seconds > long else -1]
                entry[0] += job.startup
                entry[1] += steps * job.step_seconds
                entry[2] += 1
                entry[3] += job.arrival - jobs[0].arrival
        keys = sorted(found)
        self.sizes = [size for size, _, _ in keys]
        self.loads = [load for _, load, _ in keys]
        self.members = np.array([found[key][2] for key in keys])
        self.arrivals = np.array([found[key][3] for key in keys])
        self.work = np.array([found[key][0] for key in keys] + [found[key][1] for key in keys])
        self._copies = [min(int(found[key][2]), most_lanes(workload)) for key in keys]
        edges = range(int(0.5 * LOAD_PARTS), int(MOST_LOAD * LOAD_PARTS) + 1)
        # Each band has the speed at its lower edge, where the speed is highest.
        self._bands = [(load + 1, shared_speed(load / LOAD_PARTS)) for load in edges]
        self._bands.insert(0, (edges[0], 1.0))

    def singles(self) -> list[_Array]:
        """Each kind alone, starting and running."""
        return [self._column({item: 1}, 1.0) for item in range(2 * len(self.sizes))]

    def dearest(self, worth: _Array, due: _Array) -> tuple[float, list[_Array]]:
        """The worth of the best set, at the prices of work and of being in a set; and the best set of each band."""
        count = len(self.sizes)
        starting, running = worth[:count] - due, worth[count:] - due
        # Starting trials, and trials that do not use the device, do not slow a running trial down.
        idle = np.where(np.array(self.loads) == 0, running, 0.0)
        value, taken = self._fill(starting, idle, 0)
        totals = running + value[MEMORY_PARTS - np.array(self.sizes), 0]
        alone = int(totals.argmax())
        items = self._taken(taken, MEMORY_PARTS - self.sizes[alone], 0)
        items[count + alone] += 1
        best, new = float(totals[alone]), [self._column(items, 1.0)]
        seen = set()
        for load, speed in self._bands:
            value, taken = self._fill(starting, speed * worth[count:] - due, load)
            best = max(best, float(value[MEMORY_PARTS, load]))
            items = self._taken(taken, MEMORY_PARTS, load)
            name = tuple(sorted(items.items()))
            if name not in seen:
                seen.add(name)
                new.append(self._column(items, speed))
        return best, new

    def _fill(self, starting: _Array, running: _Array, most: int) -> tuple[_Array, list[tuple[int, _Array]]]:
        """A knapsack: the best sets for each memory and each load up to `most`, and how many of each item they take."""
        count = len(self.sizes)
        value = np.zeros((MEMORY_PARTS + 1, most + 1))
        taken: list[tuple[int, _Array]] = []
        for item, price in enumerate(np.concatenate([starting, running])):
            kind = item % count
            if price <= 1e-12:
                continue
            size, load = self.sizes[kind], self.loads[kind] if item >= count else 0
            before, copies = value.copy(), np.zeros(value.shape, dtype=np.int16)
            for number in range(1, self._copies[kind] + 1):
                down, right = number * size, number * load
                if down > MEMORY_PARTS or right > most:
                    break
                offer = before[: MEMORY_PARTS + 1 - down, : most + 1 - right] + number * price
                part, chosen = value[down:, right:], copies[down:, right:]
                better = offer > part
                part[better] = offer[better]
                chosen[better] = number
            taken.append((item, copies))
        return value, taken

    def _taken(self, taken: list[tuple[int, _Array]], memory: int, load: int) -> Counter[int]:
        """How many of each item are in the best set within this memory and load."""
        count = len(self.sizes)
        items: Counter[int] = Counter()
        for item, copies in reversed(taken):
            if number := int(copies[memory, load]):
                items[item] = number
                memory -= number * self.sizes[item % count]
                load -= number * self.loads[item % count] if item >= count else 0
        return items

    def _column(self, items: Mapping[int, int], speed: float) -> _Array:
        """What a set does for each kind in a second, starting and running, and how many of each it contains."""
        count = len(self.sizes)
        column = np.zeros(3 * count)
        for item, number in items.items():
            column[item] = number * (speed if item >= count else 1.0)
            column[2 * count + item % count] += number
        return column
