"""Plays a workload: the production brain with the simulated body, on a virtual clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cotune.demand import Demand, format_bytes
from cotune.engines.simulated import Costs, SimulatedEngine, Work
from cotune.engines.simulated.engine import devices
from cotune.errors import InputError, RunError
from cotune.packer import (
    AllTrialsAdded,
    ConcludeTrial,
    Event,
    IterationsDone,
    Packer,
    PackerOptions,
    Policy,
    RetryTrial,
    StartTrial,
    TrialAdded,
    TrialEnded,
    TrialWithdrawn,
    make_policy,
)
from cotune.packer.trial import padded
from cotune.simulation.asha import AshaRule
from cotune.simulation.played import Notes, Played
from cotune.simulation.workload import Job, Workload
from cotune.trial import Report, TrialSpec

# This many take seconds, and two kilobytes each, before the first trial starts.
MAX_DEVICES = 100_000
_NOWHERE = Path()


@dataclass(frozen=True, slots=True)
class Setting:
    """How a workload is played.

    Attributes:
        policy: Name or object; None for the workload's, and for `makespan` if it has none.
        error: How far predictions of seconds and bytes are off, uniformly within plus and minus this share; None for no
            predictions except what the brain learns from features and finished trials.
        ahead: Most trials that may be proposed and not started.
        seed: Seed of the prediction errors.
        keep: Whether to keep every attempt, for drawing.
    """

    policy: str | Policy | None = None
    error: float | None = 0.0
    ahead: int = 10_000
    seed: int = 0
    keep: bool = True


def simulate(workload: Workload, setting: Setting | None = None, on_end: Callable[[], object] = lambda: None) -> Played:
    """Plays a workload to its end.

    Args:
        workload: The workload to play, with the devices and lanes to play it on.
        setting: How to play it.
        on_end: Called whenever a trial is over.

    Raises:
        InputError: The devices or the setting make no sense.
        RunError: Some trials never end, which would be a fault of the brain.
    """
    setting = setting or Setting()
    count, capacity = workload.devices, workload.capacity
    for what, value in (("devices", count), ("ahead", setting.ahead), ("capacity", capacity)):
        if value < 1:
            raise InputError(f"{what}={value} plays nothing", hint=f"give {what}=1 or more")
    if count > MAX_DEVICES:
        raise InputError(f"{count:,} devices are more than are imagined", hint=f"give {MAX_DEVICES:,} or fewer")
    if capacity < workload.context + padded(0):
        room, own = format_bytes(capacity), format_bytes(workload.context)
        raise InputError(f"a device of {room} holds no trial beside a lane's own {own}", hint="give more memory")
    return _Player(workload, setting, on_end).play()


class _Player:
    def __init__(self, workload: Workload, setting: Setting, on_end: Callable[[], object]) -> None:
        self._on_end = on_end
        self._jobs = workload.jobs
        self._setting = setting
        self._dice = random.Random(setting.seed)
        self._asha = AshaRule()
        count, capacity = workload.devices, workload.capacity
        found = devices(count, capacity, workload.context, workload.max_width, workload.idle_width)
        self._engine = SimulatedEngine(found, self._work, _told_by_time(workload.costs, self._jobs))
        options = PackerOptions(
            width=workload.lanes,
            residents=workload.residents,
            policy=make_policy(setting.policy or workload.policy or None),
            judged=workload.judged or any(job.rungs for job in self._jobs),
            max_slowdown=workload.max_slowdown,
        )
        self._packer = Packer(options)
        self._notes = Notes(self._jobs, capacity, count, setting.keep)
        self._next = 0
        self._coming = False
        self._attempts: dict[int, int] = {}

    def play(self) -> Played:
        # Trials that are there at the beginning are in line before the first device takes one.
        self._propose()
        self._feed(*self._engine.start())
        while self._packer.unfinished or self._next < len(self._jobs) or self._coming:
            happened = self._engine.poll(float("inf"))
            if not happened:
                stuck = self._packer.snapshot().first
                why = stuck.reason if stuck else "nothing happens any more"
                raise RunError(
                    f"{self._packer.unfinished} trials never end: {why}",
                    hint="this is a fault of the brain, or of the policy: report it with the workload",
                )
            for event in happened:
                if isinstance(event, Report):
                    self._judge(event)
                else:
                    self._take_in(event)
            self._propose()
        return self._notes.played()

    def _propose(self) -> None:
        """Adds the trials that have arrived, up to the limit, and schedules the next arrival."""
        jobs, packer, now = self._jobs, self._packer, self._engine.now()
        while arrived := self._arrived(now):
            self._feed(*arrived)
        if self._next < len(jobs) and not self._coming and packer.waiting < self._setting.ahead:
            number, job = self._next, jobs[self._next]
            self._next += 1
            self._coming = True
            self._engine.at(job.arrival, self._added(number, job, job.arrival))
        if packer.is_open and (self._coming or self._next == len(jobs)):
            # The remaining trials arrive in their own time, and not because there is room for them.
            self._feed(AllTrialsAdded(now))

    def _arrived(self, now: float) -> list[TrialAdded]:
        """The next trials, as many as the limit allows, if they have arrived."""
        arrived: list[TrialAdded] = []
        most = 0 if self._coming else self._setting.ahead - self._packer.waiting
        while len(arrived) < most and self._next < len(self._jobs) and self._jobs[self._next].arrival <= now:
            arrived.append(self._added(self._next, self._jobs[self._next], now))
            self._next += 1
        return arrived

    def _added(self, number: int, job: Job, time: float) -> TrialAdded:
        expected, seconds = None, None
        if self._setting.error is not None:
            expected = Demand(self._about(job.persistent), self._about(job.ephemeral), job.busy)
            seconds = job.seconds * self._factor()
        return TrialAdded(time, number, job.kind, job.features, job.priority, expected=expected, seconds=seconds)

    def _about(self, count: int) -> int:
        return int(count * self._factor())

    def _factor(self) -> float:
        error = self._setting.error or 0.0
        return self._dice.uniform(1 - error, 1 + error)

    def _take_in(self, event: Event) -> None:
        together: list[TrialAdded] = []
        if isinstance(event, TrialAdded):
            self._coming = False
            together = self._arrived(event.time)
        elif isinstance(event, IterationsDone):
            self._notes.progressed(event.trial, event.count, event.seconds)
        elif isinstance(event, TrialEnded):
            self._notes.left(event.trial, event.time, event.outcome)
        self._feed(event, *together)

    def _feed(self, *events: Event) -> None:
        self._notes.events += len(events)
        for instruction in self._packer.handle(*events):
            if isinstance(instruction, StartTrial):
                self._start(instruction)
            elif isinstance(instruction, ConcludeTrial):
                self._notes.concluded(instruction, self._engine.now())
                self._attempts.pop(instruction.trial, None)
                self._on_end()
            elif isinstance(instruction, RetryTrial):
                self._notes.left(instruction.trial, self._engine.now(), "retried")
            else:
                self._engine.execute(instruction)

    def _start(self, start: StartTrial) -> None:
        attempt = self._attempts.get(start.trial, 0)
        self._attempts[start.trial] = attempt + 1
        device = self._packer.device_of(start.trial) or ""
        self._notes.started(start.trial, device, start.lane, self._engine.now())
        self._engine.execute(start, TrialSpec(start.trial, attempt, {}, 0, _NOWHERE))

    def _judge(self, report: Report) -> None:
        job = self._jobs[report.trial]
        if self._asha.stops(report.step + 1, report.value) and report.step + 1 < job.iterations:
            self._feed(TrialWithdrawn(self._engine.now(), report.trial))
        self._engine.verdict(report.trial, report.attempt)

    def _work(self, spec: TrialSpec) -> Work:
        job = self._jobs[spec.trial]
        values = dict(zip(job.rungs, job.values, strict=True))
        return Work(
            job.iterations,
            job.step_seconds,
            job.startup,
            job.persistent,
            job.ephemeral,
            job.busy,
            report_at=job.rungs,
            value=lambda step: values[step + 1],
        )


def _told_by_time(costs: Costs, jobs: Sequence[Job]) -> Costs:
    """These costs, with trials that tell their progress by time, as lanes have them do.

    All together, they do so at most twice as often as if each did equally often in its life.
    """
    mean = sum(job.seconds for job in jobs) / max(1, len(jobs))
    return replace(costs, silence=min(costs.silence, mean / max(costs.progress, 1)))
