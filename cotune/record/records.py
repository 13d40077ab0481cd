"""The trials of a run, and the events that are written of them, which `read_run` reads back."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np

from cotune.packer import DeviceFound
from cotune.paths import RunFolder, TrialFolder
from cotune.record.events import EventLog
from cotune.record.record import Record, best_of, end_event, json_safe
from cotune.trial import Estimated, Report, TrialSpec, TrialState


class Records(Mapping[int, Record]):
    """The trials of a run by number, as the driver knows them.

    Args:
        folder: The run's folder, which has the trials' folders.
        log: The events file.
        mode: `min` or `max`; empty where only the search knows what is better.
        seed: The run's seed, from which every trial's seed is derived.
        earlier: Trials of the run that is resumed.

    Attributes:
        now: The time to write. The same for all that follows from one event: a lane's next trial starts when the
            last one ends.
        counts: Trials by the state to show.
        best: The done trial with the best last metric.
        have_reports: Whether any trial has ever reported.
        first_start: When the first trial of this session started, by the monotonic clock; 0 if none has.
        ended_seconds: How long the trials took that have ended in this session, all together.
    """

    def __init__(self, folder: RunFolder, log: EventLog, mode: str, seed: int, earlier: Sequence[Record] = ()) -> None:
        self.now = time.time()
        self.counts = dict.fromkeys(map(str, TrialState), 0)
        self.best = best_of(earlier, mode)
        self.have_reports = any(record.lines for record in earlier)
        self.first_start = self.ended_seconds = 0.0
        self._folder = folder
        self._log = log
        self._mode = mode
        self._seed = seed
        self._records = {record.trial: record for record in earlier}
        self._since: dict[int, float] = {}
        self._last_end = 0.0
        for record in earlier:
            self.counts[record.standing] += 1

    def __getitem__(self, trial: int) -> Record:
        return self._records[trial]

    def __iter__(self) -> Iterator[int]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    @property
    def name(self) -> str:
        """The run's name."""
        return self._folder.path.name

    @property
    def makespan(self) -> float:
        """Seconds from the first trial's start to the last trial's end, in this session."""
        return max(0.0, self._last_end - self.first_start) if self.first_start else 0.0

    def unfinished(self) -> Iterator[Record]:
        """Yields the trials without an end; records may change between items."""
        for record in list(self._records.values()):
            if not record.state.is_final:
                yield record

    def running(self) -> Iterator[tuple[Record, float]]:
        """Yields the running trials, and for how many seconds each has run."""
        now = time.monotonic()
        for trial, since in self._since.items():
            record = self._records[trial]
            if record.state is TrialState.RUNNING:
                yield record, now - since

    def flush(self) -> None:
        """Hands everything to the operating system."""
        self._log.flush()

    def device(self, found: DeviceFound, lanes: int | None) -> None:
        """Notes a new device, and its number of lanes if the user fixed it."""
        self._log.write(
            "device",
            self.now,
            device=found.device,
            capacity=found.capacity,
            context=found.context,
            max_width=found.max_width,
            idle_width=found.idle_width,
            lanes=lanes,
        )

    # ---- what happens to a trial, in the order it does

    def proposed(self, trial: int, params: dict[str, Any], config: dict[str, Any]) -> Record:
        """Takes in a new trial.

        Args:
            trial: The trial's number.
            params: Parameters by flat name.
            config: What the trainable is called with.
        """
        folder, seed = self._folder.trial(trial).path, seed_of(self._seed, trial)
        record = self._records[trial] = Record(trial, json_safe(params), config, seed, folder)
        self.counts[record.standing] += 1
        self._log.write("trial", time.time(), trial=trial, params=record.params, seed=seed)
        return record

    def ranked(self, trial: int, priority: float) -> None:
        """Notes a trial's priority, unless it is the usual one."""
        if priority:
            self._log.write("priority", time.time(), trial=trial, priority=priority)

    def estimated(self, told: Estimated) -> None:
        self._records[told.trial].estimate = told.estimate
        figures = astuple(told.estimate) if told.estimate else None
        seconds = round(told.seconds, 3)
        self._log.write(
            "estimate", time.time(), trial=told.trial, estimate=figures, seconds=seconds, reason=told.reason
        )

    def starts(self, trial: int, device: str | None, lane: int) -> TrialSpec:
        """Notes that an attempt begins; returns its spec for the body."""
        record, folder = self._records[trial], self._folder.trial(trial)
        reports = len(record.values)
        behind = min(reports, folder.reports_at_checkpoint()) if record.attempts else 0
        step = record.values[behind - 1][0] if behind else 0
        spec = TrialSpec(trial, record.attempts, record.config, record.seed, folder.path, reports=reports, step=step)
        record.starts(device, lane, self.now)
        self._since[trial] = time.monotonic()
        self._log.write("start", self.now, trial=trial, lane=lane, device=device)
        self._move(record, TrialState.RUNNING)
        return spec

    def lane_up(self, lane: int, context: int) -> None:
        """Notes that a lane's process is up and holds `context` bytes: the trials that waited for it start now."""
        self.first_start = self.first_start or time.monotonic()
        for trial in self._since:
            record = self._records[trial]
            if record.lane == lane:
                self._since[trial] = time.monotonic()
                record.lane_up(self.now)
                self._log.write("ready", self.now, trial=trial, context=context)

    def reported(self, report: Report) -> Record:
        record = self._records[report.trial]
        record.add(report)
        self.have_reports = True
        self._log.write_line(report.line)
        return record

    def withdrawn(self, record: Record, state: TrialState) -> None:
        """Notes that a trial is told to stop, and the state in which it will end."""
        if state is not TrialState.STOPPED:
            record.withdrawn = record.withdrawn or state
        elif record.withdrawn is not state:
            # Also of one that was interrupted: a later session must not go on with it.
            record.withdrawn = state
            self._log.write("stop", self.now, trial=record.trial)

    def pauses(self, record: Record) -> None:
        record.pauses(self.now)
        self._log.write("pause", self.now, trial=record.trial)
        self._move(record, TrialState.PAUSED)

    def goes_on(self, record: Record) -> None:
        record.goes_on(self.now)
        self._log.write("resume", self.now, trial=record.trial)
        self._move(record, TrialState.RUNNING)

    def retried(self, record: Record, reason: str, *, failed: bool = False, lane_died: bool = False) -> None:
        """Notes that a trial starts again; a paused one has only lost its room, and starts once it is promoted."""
        self._log.write("retry", self.now, trial=record.trial, reason=reason, failed=failed, lane_died=lane_died)
        record.failures += failed
        record.lane_deaths += lane_died
        if record.state is not TrialState.PAUSED:
            self._move(record, TrialState.WAITING)

    def ends(self, record: Record, state: TrialState) -> None:
        """Notes how a trial ended."""
        TrialFolder(record.folder).discard_torn()
        self._move(record, state)
        since = self._since.pop(record.trial, None)
        self._last_end = time.monotonic()
        record.lasted = None if since is None else self._last_end - since
        self.ended_seconds += record.lasted or 0.0
        if state is TrialState.DONE and self._mode:
            self.best = best_of([record, *([self.best] if self.best else [])], self._mode)
        if state is not TrialState.INTERRUPTED:
            self._log.write("end", self.now, **end_event(record))

    def put_off(self, record: Record) -> None:
        """Notes that a trial is left for a later session."""
        self._move(record, TrialState.INTERRUPTED)

    def _move(self, record: Record, state: TrialState) -> None:
        self.counts[record.standing] -= 1
        record.state = state
        self.counts[record.standing] += 1
        if state.is_final:
            record.goes_on(self.now)
            record.end = self.now


def seed_of(seed: int, trial: int) -> int:
    """A trial's seed, from the run's: independent streams, the same on every machine (numpy's SeedSequence)."""
    return int(np.random.SeedSequence([seed, trial]).generate_state(1)[0])
