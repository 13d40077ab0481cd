"""How attempts end: which trials are over, and which are tried again, with what was learnt."""

from __future__ import annotations

from collections.abc import Callable

from cotune.demand import MIB, Demand, format_bytes
from cotune.errors import first_line
from cotune.packer import events as ev
from cotune.packer import instructions as do
from cotune.packer.fitting import Fitting
from cotune.packer.ledger import Ledger
from cotune.packer.line import Line
from cotune.packer.options import PackerOptions
from cotune.packer.predictor import Predictor
from cotune.packer.state import Lane
from cotune.packer.trial import Progress, Trial, padded
from cotune.trial import Outcome

# A trial fails when this many lane processes have died under it.
MOST_LANE_DEATHS = 3
# A trial fails when it was lost this often together with a device, a node or a process that forks lanes.
MOST_LOSSES = 8
# From this many such losses on, the trial may be the cause and runs alone, so that it takes no others with it.
SUSPICIOUS = MOST_LOSSES // 2
# Bytes added after an out-of-memory that cannot say how much was missing: a CPU lane gets that far beyond its quota,
# and many demands are small beside that.
UNKNOWN = 128 * MIB


class Endings:
    """Decides what becomes of trials whose attempt is over.

    Args:
        options: When to stop trying again.
        ledger: Holds the devices, and takes the instructions.
        line: Where trials wait for the next attempt.
        predictor: Learns from trials.
        fitting: Knows what the largest device can hold.
        forget: Called with each trial that is over for good; returns its measured slowdown.
    """

    def __init__(
        self,
        options: PackerOptions,
        ledger: Ledger,
        line: Line,
        predictor: Predictor,
        fitting: Fitting,
        forget: Callable[[Trial], float | None],
    ) -> None:
        self._max_failures = options.max_failures
        self._iteration_timeout = options.iteration_timeout
        self._ledger = ledger
        self._line = line
        self._predictor = predictor
        self._fitting = fitting
        self._forget = forget

    def attempt(self, trial: Trial, lane: Lane, granted: int, was_paused: bool, event: ev.TrialEnded) -> None:
        """An attempt has ended, and the trial has left its lane.

        Args:
            trial: The trial.
            lane: The lane it was in.
            granted: Micro-batches it was granted there.
            was_paused: The attempt ended after the trial was told to make room; an error on its way out is no failure.
            event: How the attempt ended.
        """
        if event.outcome is Outcome.DONE:
            self.conclude(trial, Outcome.DONE)
        elif was_paused or event.outcome is Outcome.STOPPED or trial.withdrawn:
            self.retry(trial, "its room was needed while it was paused")
        elif event.outcome is Outcome.OUT_OF_MEMORY and granted > 1:
            # It says nothing about the trial's own demand.
            trial.refused = granted if not trial.refused else min(trial.refused, granted)
            self.retry(trial, f"out of memory with {granted} micro-batches at once: goes on without")
        elif event.outcome is Outcome.OUT_OF_MEMORY:
            self._out_of_memory(trial, lane, event.needed, event.detail)
        else:
            self._failed(trial, event.error, event.detail, event.final)

    def lane_lost(self, trial: Trial, lane: Lane, was_paused: bool, event: ev.LaneLost) -> None:
        """A trial was lost with its lane."""
        if trial.id == lane.killed_for and not trial.withdrawn:
            limit = self._iteration_timeout
            known = f"iteration_timeout={limit:g}, " if limit is not None else ""
            reason = f"no iteration boundary in time ({known}longest before: {trial.longest:.1f} s)"
            self._failed(trial, "TrialOverdue", reason)
        elif lane.closing or trial.withdrawn:
            self.retry(trial, "its lane was closed")
        elif was_paused or not lane.ready:
            self.retry(trial, f"its lane is gone: {event.detail}")
        elif event.refused is not None and trial.id == event.holder:
            del lane.residents[trial.id]
            self._out_of_memory(trial, lane, event.refused or None, event.detail)
        elif event.with_others or event.refused is not None:
            self._lost_with_others(trial, event.detail)
        else:
            self._survived_crash(trial, event.detail or "its lane process died")

    def device_lost(self, trial: Trial, device: str, was_paused: bool) -> None:
        """A trial was lost with its device. Devices do fail, but a trial may be the cause, and could take them all."""
        if was_paused:
            self.retry(trial, f"{device} is gone")
        else:
            self._lost_with_others(trial, f"{device} is gone")

    def _lost_with_others(self, trial: Trial, reason: str) -> None:
        trial.losses += 1
        trial.alone = trial.alone or trial.losses >= SUSPICIOUS
        if trial.losses >= MOST_LOSSES and not trial.withdrawn:
            reason = f"{MOST_LOSSES} times all that ran beside it was lost with it; last: {reason}"
            self.conclude(trial, Outcome.FAILED, "LaneDied", reason)
        else:
            self.retry(trial, reason)

    def retry(self, trial: Trial, reason: str, *, failed: bool = False, died: bool = False) -> None:
        """Has the trial wait for another attempt: in line, unless it is held."""
        if trial.withdrawn:
            self.conclude(trial, Outcome.STOPPED, reason="withdrawn")
            return
        trial.progress, trial.since = Progress(), self._ledger.now
        if not trial.held:
            self._line.join(trial)
        self._ledger.out.append(do.RetryTrial(trial.id, reason, failed, died))

    def conclude(self, trial: Trial, outcome: Outcome, error: str = "", reason: str = "") -> None:
        """Ends the trial for good."""
        self._line.leave(trial)
        slowdown, seconds = self._forget(trial), trial.progress.seconds
        measures = do.Measures(
            trial.seen,
            trial.expected.peak if trial.expected is not None else None,
            seconds or None,
            trial.expected_seconds,
            slowdown,
            trial.progress.alone_seconds / seconds if seconds else 1.0,
        )
        self._ledger.out.append(do.ConcludeTrial(trial.id, outcome, error, reason, measures))

    def _failed(self, trial: Trial, error: str, reason: str, final: bool = False) -> None:
        trial.failures += 1
        if final or trial.failures > self._max_failures:
            self.conclude(trial, Outcome.FAILED, error, reason)
        else:
            self.retry(trial, reason, failed=True)

    def _out_of_memory(self, trial: Trial, lane: Lane, needed: int | None, detail: str) -> None:
        others = sum(other.demand.persistent for other in lane.residents.values() if other.demand)
        had = max(0, min(trial.had, lane.asked) - lane.base - others)
        # Other programs may have taken memory that was meant for the lane.
        is_short = lane.device.taken > lane.device.capacity and needed is not None
        least = 0 if is_short else had
        told = self._raise_floor(trial, needed, least)
        # A system that refuses memory may not say how much was asked for.
        needs = "" if needed is None else f"it needs {format_bytes(max(needed, least))} or more; "
        figures = (
            f"out of memory: {needs}it had {format_bytes(had)} in a lane of {format_bytes(lane.asked)}; "
            f"the largest device leaves {format_bytes(max(0, self._fitting.largest_room))} to one trial"
        )
        if self._had_most(trial, lane) or (needed or 0) > self._fitting.largest:
            # It may be something else than memory that the system refuses, such as a thread.
            last = first_line(detail)
            self.conclude(trial, Outcome.FAILED, "TrialTooLarge", f"{figures}; last: {last}" if last else figures)
        else:
            self._expect_more(trial, needed, told)
            self.retry(trial, figures)

    def _raise_floor(self, trial: Trial, needed: int | None, least: int) -> int:
        """Raises the least that a trial is assumed to need.

        Args:
            trial: The trial.
            needed: As in `TrialEnded`.
            least: What it had, if that was what it was promised.

        Returns:
            The peak that its siblings are told of.
        """
        # The refused allocation need not be the last the trial would have made.
        guess = max(least + least // 2, (needed or 0) * 5 // 4)
        if needed is None:
            guess += UNKNOWN
        told = guess
        if needed is not None and guess > self._fitting.largest_room:
            # What it lacked may fit beside others, before it has to run alone.
            told = max(least, needed)
            guess = padded(told)
        floor = max(trial.floor, guess)
        if trial.demand is None and trial.out_of_memories == 0:
            self._predictor.judge_hint(trial, floor)
        trial.floor, trial.lacked = floor, max(trial.lacked, least, needed or 0)
        return told

    def _had_most(self, trial: Trial, lane: Lane) -> bool:
        """Whether a trial that ran out of memory in the lane has had the most room of any device to itself."""
        whole = lane.asked >= lane.device.capacity and self._fitting.is_whole(lane.device.capacity)
        if not (trial.had_all and whole and lane.is_empty and (trial.alone or not lane.residue)):
            return False
        trial.outgrown = max(trial.outgrown, lane.device.room)
        return trial.outgrown >= self._fitting.largest_room

    def _expect_more(self, trial: Trial, needed: int | None, told: int) -> None:
        """Corrects what is expected of a trial that ran out of memory, and of its siblings, and what room it gets.

        Args:
            trial: The trial, its `floor` raised.
            needed: As in `TrialEnded`.
            told: The peak that its siblings are told of.
        """
        model = self._predictor.model(trial)
        expected = trial.demand or trial.hint or model.demand(trial.features)
        if expected is None and trial.expected is not None:
            # The only estimate was an assumption: probe the trial.
            model.refute()
            return
        if trial.early:
            model.growth.observe(trial.id, trial.early, needed or trial.floor, is_all=False)
        trial.out_of_memories += 1
        tries = 1 if needed is not None else 2
        trial.alone = trial.alone or trial.out_of_memories > tries or expected is None
        known = trial.demand or trial.hint
        if known is None and expected is not None:
            # Not what the model itself had predicted: it would learn from its own margins, more with each such end.
            model.observe_peak(trial.id, trial.features, told)
        else:
            model.observe_demand(trial.id, trial.features, trial.with_floor(known or Demand(0, 0)))

    def _survived_crash(self, trial: Trial, detail: str) -> None:
        trial.lane_deaths += 1
        # The cause may be a neighbour, or memory: native code often crashes when an allocation fails.
        trial.alone = trial.alone or trial.lane_deaths >= 2
        if trial.lane_deaths >= MOST_LANE_DEATHS:
            self.conclude(trial, Outcome.FAILED, "LaneDied", f"three lane processes died under it; last: {detail}")
        else:
            self.retry(trial, detail, died=True)
