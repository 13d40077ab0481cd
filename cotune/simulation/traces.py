"""Workloads from finished runs."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from cotune.demand import Demand, format_bytes
from cotune.engines.simulated import Costs
from cotune.errors import InputError
from cotune.packer import POLICIES
from cotune.packer.interference import speed_of_each
from cotune.paths import RunFolder
from cotune.simulation.history import History, Past, Stretch, read_history
from cotune.simulation.workload import Job, Workload
from cotune.trial import TrialState

_STEPS = 100


def from_run(folder: RunFolder, busy: float | None = None) -> Workload:
    """The finished trials of a run as they went: trials that were stopped end where they did, with the same durations.

    What a trial takes alone is its run time without pauses and wasted work, less the slowdown by its neighbours
    according to the simulated body's model. The device use of each trial is the median of what was measured; if nothing
    was, as on a GPU, it is its part of the lanes the run had.

    Args:
        folder: The run's folder.
        busy: Share of a device's time that a trial uses alone, if that is known better.

    Raises:
        StorageError: The run cannot be read.
        InputError: No trial of it ran to an end.
    """
    history = read_history(folder)
    crowds, lanes = _crowds(history.trials.values())
    ended = [trial for trial in history.trials.values() if trial.state is not None]
    measured = [trial.demand for trial in ended if trial.demand is not None]
    usual = Demand(_median(demand.persistent for demand in measured), _median(demand.ephemeral for demand in measured))
    known = [demand.busy for demand in measured if demand.busy is not None]
    most = max((crowd.most for crowd in crowds.values()), default=1)
    share = busy or (min(1.0, statistics.median(known)) if known else 1 / most)
    # The mean speed over time is not the speed beside the mean number of lanes: one that is alone is not slowed at all.
    devices = {name: crowd.weighed(lambda count: speed_of_each([share] * count)) for name, crowd in crowds.items()}
    ran = sorted(((counted, trial) for trial in ended if (counted := trial.counted())), key=lambda it: it[0][0].start)
    jobs = []
    for counted, trial in ran:
        seconds = sum(_alone(it, devices[it.device], lanes[it.device, it.lane], trial.turns) for it in counted)
        demand = trial.demand or usual
        job = Job(_STEPS, seconds / _STEPS, demand.persistent, demand.ephemeral, busy=share)
        was_stopped = trial.state is TrialState.STOPPED
        jobs.append(replace(job, priority=trial.priority, features=trial.features, stopped=was_stopped))
    if not jobs:
        raise InputError(f"no trial of {folder.path} has run to its end", hint="choose a run with finished trials")
    largest = max(history.hardware, key=lambda device: device.capacity)
    return Workload(
        folder.path.name,
        jobs,
        _note(folder.path.name, history, [trial.state for _, trial in ran], share),
        capacity=largest.capacity,
        context=largest.context if history.context is None else history.context,
        devices=len(history.hardware),
        lanes=largest.lanes,
        max_width=largest.max_width,
        idle_width=largest.idle_width,
        costs=replace(Costs(), open=history.opening),
        judged=any(trial.state is TrialState.STOPPED for trial in ended),
        policy=history.policy if history.policy in POLICIES else "",
        residents=history.residents,
        max_slowdown=history.max_slowdown,
    )


def _note(run: str, history: History, states: Sequence[TrialState | None], share: float) -> str:
    """What is left out of a run, and what is assumed of it.

    Args:
        run: Its name.
        history: Its history.
        states: How the trials ended that are left in.
        share: Share of a device that each uses alone.
    """
    note = f"{len(states)} trials of {run}"
    if len(states) < len(history.trials):
        note += f", without {len(history.trials) - len(states)} that did not run to an end"
    if stopped := states.count(TrialState.STOPPED):
        note += f", {stopped} of which were stopped and end where they did"
    if failed := states.count(TrialState.FAILED):
        note += f", {failed} of which failed and are as long as they ran"
    note += f"; each uses {share:.0%} of a device alone"
    if history.policy and history.policy not in POLICIES:
        note += f"; its policy {history.policy!r} is not known here"
    sizes = {device.capacity for device in history.hardware}
    if len(sizes) > 1:
        note += f"; its devices differ, all are taken to be like the largest: {format_bytes(max(sizes))}"
    return note


def _alone(stretch: Stretch, device: _Crowd, lane: _Crowd, turns: float | None) -> float:
    """Seconds the stretch would have taken alone.

    Args:
        stretch: Where and when the trial ran.
        device: How fast lanes ran there.
        lane: How many trials ran in its lane.
        turns: Share of the stretch for which the trial had the turn; None for an even one.
    """
    speed, residents = (crowd.mean(stretch.start, stretch.end) for crowd in (device, lane))
    if residents == 1 or turns is None:
        turns = 1 / residents
    return (stretch.end - stretch.start) * turns * speed


def _median(counts: Iterable[int]) -> int:
    return int(statistics.median([*counts] or [0]))


class _Crowd:
    """How many trials, or lanes, were running at any time, from the spans in which they did.

    Args:
        spans: Their begins and ends.
        weigh: What is made of a number of them before the mean over time is taken.
    """

    def __init__(self, spans: Iterable[tuple[float, float]], weigh: Callable[[int], float] = float) -> None:
        self._spans = list(spans)
        self._times: list[float] = []
        self._sums: list[float] = []
        self._weights: list[float] = []
        self.most = 1
        count, total, before = 0, 0.0, 0.0
        changes = [change for start, end in self._spans for change in ((start, 1), (end, -1))]
        for time, change in sorted(changes):
            total += weigh(count) * (time - before)
            count, before = count + change, time
            self._times.append(time)
            self._sums.append(total)
            self._weights.append(weigh(count))
            self.most = max(self.most, count)

    def weighed(self, weigh: Callable[[int], float]) -> _Crowd:
        """The same spans, otherwise weighed."""
        return _Crowd(self._spans, weigh)

    def mean(self, start: float, end: float) -> float:
        return (self._until(end) - self._until(start)) / (end - start)

    def _until(self, time: float) -> float:
        at = bisect_right(self._times, time) - 1
        return self._sums[at] + self._weights[at] * (time - self._times[at])


def _crowds(trials: Iterable[Past]) -> tuple[dict[str, _Crowd], dict[tuple[str, int], _Crowd]]:
    """Running lanes of each device over time, and running trials of each lane: residents of a lane take turns."""
    by_lane: defaultdict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for trial in trials:
        for attempt in trial.attempts:
            for stretch in attempt.stretches:
                by_lane[stretch.device, stretch.lane].append((stretch.start, stretch.end))
    by_device: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for (device, _), spans in by_lane.items():
        by_device[device] += _merged(spans)
    return (
        {device: _Crowd(spans) for device, spans in by_device.items()},
        {lane: _Crowd(spans) for lane, spans in by_lane.items()},
    )


def _merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found
