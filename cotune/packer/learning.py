"""What the progress of trials teaches: their demands, the width that pays, which trials may run beside each other."""

from __future__ import annotations

from functools import partial

from cotune.demand import Demand
from cotune.packer import events as ev
from cotune.packer.company import Company
from cotune.packer.grants import Grants
from cotune.packer.interference import speed_there
from cotune.packer.ledger import Ledger
from cotune.packer.line import Line
from cotune.packer.policies import Policy
from cotune.packer.predictor import Predictor
from cotune.packer.state import Device, Lane
from cotune.packer.trial import Trial
from cotune.packer.width import WINDOW

PROBE_ITERATIONS = 2
# After this many seconds without an iteration, other trials no longer wait for a probe's result.
PROBE_SECONDS = 20.0
# Factor by which a probe is assumed to grow at most beyond what it holds then.
PROBE_GROWTH = 4


class Learning:
    """Updates what is known of a trial, and of others through it.

    Args:
        policy: Is told how long trials run.
        ledger: Holds the devices.
        line: The trials that would use another lane.
        predictor: Is told the measured demands.
        grants: Is told what several micro-batches at once bring.
        company: Is told how fast trials are.
    """

    def __init__(
        self, policy: Policy, ledger: Ledger, line: Line, predictor: Predictor, grants: Grants, company: Company
    ) -> None:
        self._policy = policy
        self._ledger = ledger
        self._line = line
        self._predictor = predictor
        self._grants = grants
        self._company = company

    def progressed(self, trial: Trial, lane: Lane, event: ev.IterationsDone) -> None:
        """A running trial has made progress."""
        device = lane.device
        before = _placing(trial, lane)
        is_first = trial.progress.iterations == 0
        if not lane.unanswered:
            trial.had = lane.asked
        if event.count and not lane.has_iterated:
            lane.has_iterated, lane.is_stalled = True, False
            device.width.changed(event.time)
        trial.progress.add(event.count, event.seconds, speed_there(trial, device), event.busy)
        self._ledger.stirred[device] = None
        self._policy.ran(trial.id, trial.group, event.seconds)
        if event.count:
            trial.longest = max(trial.longest, event.seconds / event.count)
        self._grants.ran(trial, event)
        if event.concurrency == 1:
            self._company.ran(trial, device, event.count, event.seconds)
            if not is_first:
                # The first iterations include the trial's set-up.
                self._time(trial, device, event.count, event.seconds)
        self._measured(trial, event)
        if trial.progress.iterations >= PROBE_ITERATIONS or trial.demand is not None:
            self.believe(trial, lane)
        self._review(device)
        if _placing(trial, lane) != before:
            self._ledger.touch(device)

    def stalled(self, trial: Trial, lane: Lane, event: ev.LaneQuiet) -> None:
        """A trial has made no iteration for a while.

        Other trials wait for its first measurement: forever if it hangs, and to its end if it has no iterations. So
        after a while one more lane is tried, and each unmeasured trial of the kind, running ones included, is assumed
        to need an equal share of the device, unless this trial holds much of that already. The assumption holds until
        one of them is measured, or runs out of memory with it.
        """
        device = lane.device
        if event.seconds < PROBE_SECONDS:
            return
        if not lane.has_iterated and not lane.is_stalled:
            # The width is judged without this lane, or it would not be judged while the trial loads, or hangs.
            lane.is_stalled = True
            device.width.changed(event.time)
        before = trial.expected, trial.beside, device.width.width
        self._company.protection.stalled(trial)
        if trial.progress.iterations < PROBE_ITERATIONS and not trial.wants_all and not lane.closing:
            self._share_out(trial, device, event.held - lane.base)
        if (trial.expected, trial.beside, device.width.width) != before:
            self._ledger.touch(device)

    def failed(self, trial: Trial, lane: Lane) -> None:
        """An attempt has failed; it may have shown too little for others to start beside the next attempt."""
        device = lane.device
        if trial.demand is None and not trial.wants_all:
            if device.active == 1 and trial.progress.seconds > WINDOW:
                device.width.guess(trial.progress.busy)
            self._share_out(trial, device, trial.seen.peak if trial.seen else 0)

    def _share_out(self, trial: Trial, device: Device, held: int) -> None:
        """Assumes an equal share for each unmeasured trial of the kind, unless this trial holds much of it already."""
        device.width.widen()
        share = device.capacity // device.width.width - device.context - device.shared
        if trial.is_probe and device.width.width > 1 and PROBE_GROWTH * max(0, held) < share:
            self._predictor.model(trial).assume(Demand(share, 0))
            self._predictor.appraise(trial)

    def believe(self, trial: Trial, lane: Lane, is_over: bool = False) -> None:
        """Takes the measurements so far as the trial's demand, and acts on it."""
        before, model = trial.grown(trial.demand) if trial.demand else None, self._predictor.model(trial)
        if before is None and trial.seen is not None:
            trial.early = trial.seen.peak
        trial.later = 0 if is_over or not trial.early else self._predictor.later(trial)
        trial.believe(trial.seen)
        if trial.demand is None:
            return
        if before is None and not trial.out_of_memories:
            self._predictor.judge_hint(trial, trial.demand.peak)
        demand = trial.grown(trial.demand)
        if before is None or demand.peak != before.peak or is_over:
            # At its end the peak is no longer a guess.
            model.observe_demand(trial.id, trial.features, demand)
        if lane.device.active == 1 and len(lane.residents) == 1:
            lane.device.width.guess(trial.demand.busy)
        self._ledger.ensure_need(lane)

    def ended(self, trial: Trial, lane: Lane, *, stopped: bool) -> None:
        """An attempt has ended in the lane, or was stopped; its measurements are final."""
        self.believe(trial, lane, is_over=not stopped)
        if not stopped and trial.demand is not None and trial.early:
            self._predictor.model(trial).growth.observe(trial.id, trial.early, trial.demand.peak, is_all=True)
        made = trial.progress
        if made.alone_seconds:
            model = self._predictor.model(trial)
            model.observe_pace(trial.id, trial.features, made.pace)
            # A trial that went on from a checkpoint has made more iterations than were seen.
            if not stopped and trial.attempts == 1:
                model.observe_steps(trial.id, trial.features, made.iterations)
                if trial.seconds_hint is not None:
                    model.observe_expected(trial.seconds_hint, made.alone_seconds)
        self._company.ended(trial, stopped)
        if made.iterations == 1:
            # There is no later iteration to measure, and all trials of its kind include their set-up.
            device = lane.device
            self._time(trial, device, 1, made.seconds)
            self._review(device)

    def left(self, lane: Lane) -> None:
        """A trial has left the lane; if the width was reduced, this may end a lane too many."""
        lane.is_stalled = lane.is_stalled and bool(lane.residents)
        if not lane.residents and lane.device.active >= lane.device.width.width:
            lane.device.width.changed(self._ledger.now)

    def _time(self, trial: Trial, device: Device, count: int, seconds: float) -> None:
        """Tells the device's width control how long iterations took there."""
        usual = partial(self._predictor.usual_pace, trial)
        device.width.measured(trial.id, count, seconds, device.iterating, self._ledger.now, usual)

    def _review(self, device: Device) -> None:
        """Reviews the width, but tries no wider if the new lanes would come up when all is nearly done."""
        line, width = self._line, device.width.width
        left = None if line.is_open else line.lasts(width)
        is_ending = left is not None and left / len(self._ledger.devices) < (device.start_seconds or 0.0)
        device.width.review(len(device.computing), (bool(line) or line.is_open) and not is_ending, device.is_idle)
        if device.width.width > width:
            # Even warm lanes must make an iteration before the new width is judged.
            for lane in device.idle:
                lane.has_iterated = False

    def _measured(self, trial: Trial, event: ev.IterationsDone) -> None:
        """Keeps the largest of all measurements."""
        before = trial.seen or Demand(0, 0)
        persistent, peak = before.persistent, before.peak
        # Bytes of several micro-batches at once, and the workspaces they leave, are not what the trial needs.
        if event.concurrency == 1:
            persistent = max(persistent, event.persistent)
            peak = max(peak, event.persistent + event.ephemeral)
        busy = trial.progress.busy
        trial.seen = Demand(persistent, peak - persistent, before.busy if busy is None else busy)


def _placing(trial: Trial, lane: Lane) -> tuple[object, ...]:
    """What progress may change of all that decides which trials fit on the device."""
    return trial.demand, trial.measured, lane.asked, trial.beside, lane.device.width.width, lane.has_iterated
