"""What came of a simulated workload, in figures."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from cotune.accuracy import LEAST_BYTES, LEAST_SECONDS, Accuracy
from cotune.packer import ConcludeTrial
from cotune.simulation.workload import Job
from cotune.trial import Outcome


@dataclass(frozen=True, slots=True)
class Segment:
    """One attempt at a trial, for drawing."""

    trial: int
    device: str
    lane: int
    start: float
    end: float
    how: str


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds, counts and shares.

    Attributes:
        makespan: From the first arrival to the last end.
        completion: From arrival to end, mean over trials that fit a device; `completion_p95` the 95th percentile.
        waiting: From arrival to the first start, mean; `waiting_p95` the 95th percentile.
        at_once: Trials that ran at once over all devices, averaged over the makespan; start-ups count.
        utilisation: Share of the devices' time that iterations used, lost ones included, each counted with what its
            trial uses of a device alone. Exceeds 1 if trials together do more than one at a time could.
        fill: Share of the devices' memory that running trials needed, without attempts that made no iteration.
        stopped: Trials that a stopping rule ended, or a pruner in the run that is played.
        failed: Trials that did not fit any device.
        out_of_memory: Attempts that ran out of memory.
    """

    trials: int
    makespan: float
    completion: float
    completion_p95: float
    waiting: float
    waiting_p95: float
    at_once: float
    utilisation: float
    fill: float
    stopped: int
    failed: int
    out_of_memory: int


@dataclass(frozen=True, slots=True)
class Played:
    """The result of a simulation.

    Attributes:
        figures: Summary figures.
        segments: Every attempt; empty if they were not kept.
        ran: Iterations that each trial had done at its end.
        events: Number of events that the brain handled.
        set_aside: Bytes set aside for trials over what they needed, as in `Results`.
        predicted_seconds: Predicted over actual run time, as in `Results`.
    """

    figures: Figures
    segments: Sequence[Segment]
    ran: Sequence[int]
    events: int
    set_aside: Accuracy | None = None
    predicted_seconds: Accuracy | None = None


class Notes:
    """Takes notes while a workload is played."""

    def __init__(self, jobs: Sequence[Job], capacity: int, devices: int, keep: bool) -> None:
        self.segments: list[Segment] = []
        self.ran = [0] * len(jobs)
        self.events = 0
        self._jobs = jobs
        self._capacity = capacity
        self._devices = devices
        self._keep = keep
        self._first: list[float | None] = [None] * len(jobs)
        self._end = [0.0] * len(jobs)
        self._open: dict[int, tuple[str, int, float]] = {}
        self._ran_for = 0.0
        self._used = 0.0
        self._held = 0.0
        self._out_of_memory = self._stopped = 0
        self._failed: set[int] = set()
        # Predicted and measured values, alternating.
        self._bytes = array("d")
        self._seconds = array("d")

    def started(self, trial: int, device: str, lane: int, time: float) -> None:
        if self._first[trial] is None:
            self._first[trial] = time
        self._open[trial] = device, lane, time
        self.ran[trial] = 0

    def progressed(self, trial: int, count: int, seconds: float) -> None:
        job = self._jobs[trial]
        self._held += seconds * job.ephemeral
        self.ran[trial] += count
        self._used += count * job.step_seconds * job.busy

    def left(self, trial: int, time: float, how: str) -> None:
        """An attempt is over."""
        if trial not in self._open:
            return
        device, lane, start = self._open.pop(trial)
        self._ran_for += time - start
        if self.ran[trial]:
            # Otherwise it was refused what it needed, in its first iteration at the latest.
            self._held += (time - start) * self._jobs[trial].persistent
        self._out_of_memory += how == Outcome.OUT_OF_MEMORY
        if self._keep:
            how = Outcome.STOPPED if self._was_stopped(trial, how) else how
            self.segments.append(Segment(trial, device, lane, start, time, how))

    def concluded(self, conclusion: ConcludeTrial, time: float) -> None:
        """A trial is over for good."""
        trial, outcome, measures = conclusion.trial, conclusion.outcome, conclusion.measures
        self.left(trial, time, outcome)
        self._end[trial] = time
        self._stopped += self._was_stopped(trial, outcome)
        if outcome is Outcome.FAILED:
            self._failed.add(trial)
        if measures.expected is not None and measures.demand is not None:
            self._bytes.extend((measures.expected, measures.demand.peak))
        expected, seconds = measures.expected_seconds, measures.seconds
        if expected is not None and seconds is not None and outcome is Outcome.DONE:
            self._seconds.extend((expected, seconds))

    def _was_stopped(self, trial: int, how: str) -> bool:
        """Whether a stopping rule ended it, here or in the run that is played."""
        return how == Outcome.STOPPED or (how == Outcome.DONE and self._jobs[trial].stopped)

    def played(self) -> Played:
        jobs = self._jobs
        fitting = [trial for trial in range(len(jobs)) if trial not in self._failed]
        completion = sorted(self._end[trial] - jobs[trial].arrival for trial in fitting)
        starts = ((self._first[trial], self._end[trial], jobs[trial]) for trial in fitting)
        waiting = sorted((end if first is None else first) - job.arrival for first, end, job in starts)
        begin = min((job.arrival for job in jobs), default=0.0)
        makespan = max(self._end, default=0.0) - begin
        there = max(makespan * self._devices, 1e-9)
        figures = Figures(
            len(jobs),
            makespan,
            _mean(completion),
            _percentile(completion),
            _mean(waiting),
            _percentile(waiting),
            self._ran_for / max(makespan, 1e-9),
            self._used / there,
            self._held / (there * self._capacity),
            self._stopped,
            len(self._failed),
            self._out_of_memory,
        )
        return Played(
            figures,
            self.segments,
            self.ran,
            self.events,
            Accuracy.of(zip(self._bytes[::2], self._bytes[1::2], strict=True), LEAST_BYTES),
            Accuracy.of(zip(self._seconds[::2], self._seconds[1::2], strict=True), LEAST_SECONDS),
        )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _percentile(ordered: Sequence[float]) -> float:
    """The 95th percentile: the smallest value that is no less than 95% of all."""
    return ordered[-(-19 * len(ordered) // 20) - 1] if ordered else 0.0
