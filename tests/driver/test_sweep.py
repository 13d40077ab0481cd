"""The driver's loop with a simulated body: when trials wait for estimates, and what is made of them."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import replace

import pytest

from cotune.demand import GIB, MIB, Estimate
from cotune.driver.calibration import FEW
from cotune.driver.estimates import FAILURES
from cotune.driver.options import SweepOptions
from cotune.driver.profile import Profile
from cotune.driver.sweep import Sweep, _switching_often
from cotune.engines.simulated import SimulatedEngine, Work
from cotune.engines.simulated.engine import devices
from cotune.engines.simulated.model import LastAct
from cotune.errors import RunError
from cotune.packer import (
    AllTrialsAdded,
    DeviceFound,
    DeviceLost,
    OpenLane,
    Packer,
    PackerOptions,
    TrialAdded,
    TrialEnded,
)
from cotune.packer.policies import Fifo
from cotune.paths import RunFolder
from cotune.record import EventLog, Records
from cotune.search.proposer import Suggestion, Verdict
from cotune.trial import Estimated, TrialState

ESTIMATE_TAKES = 0.5


class Proposer:
    """Proposes trials in order, as many as it is asked for."""

    judges = False
    waiting = ()

    def __init__(self, widths):
        self.widths = widths
        self.proposed = 0
        self._answers = []

    def ask(self, count=1):
        for _ in range(count):
            self._answers.append(Suggestion(self.proposed, {"width": self.widths[self.proposed]}))
            self.proposed += 1

    def answers(self):
        answers, self._answers = self._answers, []
        return answers

    def drop_asks(self): ...

    def tell(self, trial, state, values, error): ...

    def config(self, params):
        return dict(params)

    def features(self, params):
        return {}


def work(spec):
    """What tensors hold and a fifth of it, and 20 MiB; ten iterations a second for a quarter of an hour or more."""
    tensors = spec.config["width"] * MIB
    return Work(9000, 0.1, persistent=tensors + 20 * MIB, ephemeral=tensors // 5, busy=0.1)


class Body(SimulatedEngine):
    """Estimates what tensors hold, in half a second; or fails to, or cannot."""

    def __init__(self, lanes, can_estimate, fails, events):
        super().__init__(devices(1, 8 * GIB, max_width=lanes), work)
        self.can_estimate = can_estimate
        self.fails = fails
        self.asked = []
        self.on_record = []
        self._events = events

    def execute(self, instruction, spec=None):
        if spec is not None:
            lines = [json.loads(line) for line in self._events.read_text().splitlines()]
            self.on_record.append([line["event"] for line in lines if line.get("trial") == spec.trial])
        super().execute(instruction, spec)

    def estimate(self, trial, config):
        self.asked.append(trial)
        tensors = config["width"] * MIB
        found = None if self.fails else Estimate(tensors, 0, 10**9)
        self.at(self.now() + ESTIMATE_TAKES, Estimated(trial, found, "it raised" if self.fails else "", ESTIMATE_TAKES))


class Judge(Proposer):
    """Judges an attempt's only report when the next attempt makes its own: the trial should have stopped."""

    judges = True

    def report(self, trial, attempt, step, value):
        if attempt > 0:
            self._answers += [Verdict(trial, attempt - 1, stop=True), Verdict(trial, attempt, stop=False)]


class Watched(Packer):
    """Notes what it is told, and how many wait then."""

    def __init__(self, options):
        super().__init__(options)
        self.heard = []
        self.waited = []

    def handle(self, *events):
        out = super().handle(*events)
        self.heard += events
        self.waited.append(self.waiting)
        return out

    def before_the_first_end(self):
        """What was expected of trials that came while none was over, and how many waited at most."""
        ends = [number for number, event in enumerate(self.heard) if isinstance(event, TrialEnded)]
        heard = self.heard[: ends[0]]
        return [event.expected for event in heard if isinstance(event, TrialAdded)], max(self.waited[: ends[0]])


class Timeless(Profile):
    """Does not keep how long trials took by the real clock, of which their virtual one knows nothing."""

    def learn(self, features, demand, seconds, estimate=None):
        super().learn(features, demand, None, estimate)


@pytest.fixture
def sweep(tmp_path):
    def run(widths, lanes, can_estimate=True, fails=False, profile=None):
        folder = RunFolder(tmp_path / str(len(list(tmp_path.iterdir()))))
        folder.create()
        proposer, body = Proposer(widths), Body(lanes, can_estimate, fails, folder.events)
        packer = Watched(PackerOptions(width=None if profile else lanes))
        log = EventLog(folder.events)
        options = SweepOptions("train", "", len(widths), None, False, is_blind=True)
        records = Records(folder, log, "", 0)
        Sweep(proposer, proposer, packer, body, records, None, options, profile).run()
        log.close()
        assert {record.state for record in records.values()} == {TrialState.DONE}
        events = [json.loads(line) for line in folder.events.read_text().splitlines()]
        return packer, body, [event for event in events if event["event"] == "retry"]

    return run


def test_of_two_sweeps_in_two_threads_neither_leaves_its_switch_interval_behind():
    before = sys.getswitchinterval()
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        first.enter_context(_switching_often())
        second.enter_context(_switching_often())
        first.close()
        assert sys.getswitchinterval() < before
    assert sys.getswitchinterval() == before


def test_the_packer_hears_once_that_all_trials_were_added_after_the_last_of_them(sweep):
    packer, _, _ = sweep([1000] * 10, lanes=4)
    added = [type(event) for event in packer.heard if isinstance(event, TrialAdded | AllTrialsAdded)]
    assert added == [TrialAdded] * 10 + [AllTrialsAdded]


def test_a_trial_is_on_record_before_it_starts(sweep):
    _, body, _ = sweep([1000] * 5, lanes=2, can_estimate=False)
    assert body.on_record == [["trial", "start"]] * 5


def test_running_trials_calibrate_the_estimates_of_those_that_come(sweep):
    packer, _, retries = sweep([1000] * 10, lanes=4)
    expected, _ = packer.before_the_first_end()
    assert expected[0].peak == 1.5 * 1000 * MIB + 256 * MIB
    assert expected[-1].peak == pytest.approx(1220 * MIB, rel=0.01)
    assert not retries


def test_as_long_as_little_is_known_of_estimates_one_trial_waits_at_most(sweep):
    # With one lane no more than one trial is measured before the first is over.
    packer, _, _ = sweep([100] * (FEW + 60), lanes=1)
    expected, waited = packer.before_the_first_end()
    assert (len(expected), waited) == (2, 1)
    assert max(packer.waited) > 10, "later they are asked for ahead"


def test_where_large_trials_come_after_small_ones_estimates_save_probes_and_retries(sweep):
    widths = [50, 60, 55, 70, 1500, 80, 1600, 60, 1700]
    packer, _, retries = sweep(widths, lanes=4)
    assert all(event.expected for event in packer.heard if isinstance(event, TrialAdded))
    assert not retries
    packer, _, retries = sweep(widths, lanes=4, can_estimate=False)
    assert not any(event.expected for event in packer.heard if isinstance(event, TrialAdded))
    assert retries


def test_where_estimates_fail_all_trials_run_as_ever(sweep):
    packer, body, _ = sweep([100] * 8, lanes=2, fails=True)
    assert len(body.asked) == FAILURES
    assert all(event.expected is None for event in packer.heard if isinstance(event, TrialAdded))


def test_a_sweep_begins_with_half_as_many_lanes_as_paid_in_the_one_before_on_such_a_device(sweep, tmp_path):
    def begun_with(lanes):
        profile = Timeless(tmp_path / "profile.json")
        packer, _, _ = sweep([100] * 60, lanes, can_estimate=False, profile=profile)
        profile.save()
        return next(event.width for event in packer.heard if isinstance(event, DeviceFound)), packer.proven_widths()

    assert begun_with(8) == (1, [(8 * GIB, 8, 8)])
    assert begun_with(8) == (4, [(8 * GIB, 8, 8)])
    assert begun_with(4)[0] == 1, "another device"
    assert begun_with(8)[0] == 4


def test_how_many_lanes_were_chosen_says_nothing_of_how_many_pay(sweep):
    packer, _, _ = sweep([100] * 20, lanes=4)
    assert packer.proven_widths() == []


def test_a_verdict_to_stop_counts_also_when_the_trial_has_started_again_since(tmp_path):
    def fails_once(spec):
        work = Work(1000, 1.0, persistent=MIB, report_at=(1,))
        return work if spec.attempt else replace(work, iterations=2, ending=LastAct.RAISES)

    folder = RunFolder(tmp_path / "run")
    folder.create()
    judge, log = Judge([1]), EventLog(folder.events)
    records = Records(folder, log, "min", 0)
    packer, body = Packer(PackerOptions(width=1, max_failures=1)), SimulatedEngine(devices(1, GIB), fails_once)
    Sweep(judge, judge, packer, body, records, None, SweepOptions("train", "loss", 1, None, False)).run()
    log.close()
    assert (records[0].state, records[0].attempts) == (TrialState.STOPPED, 2)


def test_a_sweep_whose_last_device_is_lost_as_a_trial_ends_waits_for_the_next_device(tmp_path):
    class Flaky(SimulatedEngine):
        def poll(self, timeout):
            happened = super().poll(timeout)
            if any(isinstance(event, TrialEnded) and event.trial == 0 for event in happened):
                happened.append(DeviceLost(self.now(), "gpu 0"))
                self.at(self.now() + 60.0, DeviceFound(self.now() + 60.0, "gpu 0", GIB))
            return happened

    folder = RunFolder(tmp_path / "run")
    folder.create()
    proposer, log = Proposer([1, 1]), EventLog(folder.events)
    records = Records(folder, log, "", 0)
    packer, body = Packer(PackerOptions(width=1)), Flaky(devices(1, GIB), lambda spec: Work(2, 1.0, persistent=MIB))
    Sweep(proposer, proposer, packer, body, records, None, SweepOptions("train", "", 2, None, lockstep=True)).run()
    log.close()
    assert [record.state for record in records.values()] == [TrialState.DONE] * 2


@pytest.fixture
def ends(tmp_path):
    """The trials whose ends are on record once a sweep of three has ended with an error."""

    def of(body, packer, error, *callbacks):
        folder = RunFolder(tmp_path / "run")
        folder.create()
        proposer, log = Proposer([1] * 3), EventLog(folder.events)
        records = Records(folder, log, "", 0)
        options = SweepOptions("train", "", 3, None, lockstep=False, callbacks=callbacks)
        with pytest.raises(error):
            Sweep(proposer, proposer, packer, body, records, None, options).run()
        log.close()
        events = [json.loads(line) for line in folder.events.read_text().splitlines()]
        return [(event["trial"], event["state"]) for event in events if event["event"] == "end"]

    return of


class Full(SimulatedEngine):
    """Opens two lanes."""

    def execute(self, instruction, spec=None):
        if isinstance(instruction, OpenLane) and instruction.lane > 2:
            raise RunError("no more files", hint="raise ulimit -n")
        super().execute(instruction, spec)


def test_a_trial_that_ends_as_a_lane_cannot_be_opened_is_on_record(ends):
    body = Full(devices(1, GIB), lambda spec: Work(50, 1.0))
    assert ends(body, Packer(PackerOptions(width=1, reuse=False)), RunError) == [(0, "done"), (1, "done")]


class Late(Full):
    """Tells the ends of two trials together."""

    def poll(self, timeout):
        happened = super().poll(timeout)
        while sum(1 for event in happened if isinstance(event, TrialEnded)) == 1:
            happened += super().poll(timeout)
        return happened


def test_a_trial_whose_end_is_told_together_with_that_of_another_that_leads_to_an_error_is_on_record(ends):
    body = Late(devices(1, GIB), lambda spec: Work(50, 1.0))
    assert ends(body, Packer(PackerOptions(width=2, reuse=False)), RunError) == [(0, "done"), (1, "done")]


def test_a_trial_whose_end_is_told_together_with_that_of_another_for_which_a_callback_exits_is_on_record(ends):
    body = Late(devices(1, GIB), lambda spec: Work(50, 1.0))
    assert ends(body, Packer(PackerOptions(width=2)), SystemExit, sys.exit) == [(0, "done"), (1, "done")]


@pytest.mark.parametrize(("kind", "on_record"), [(SimulatedEngine, [(0, "done")]), (Late, [(0, "done"), (1, "done")])])
def test_a_trial_whose_end_leads_to_an_error_of_the_policy_is_on_record_once(ends, kind, on_record):
    class Breaks(Fifo):
        is_broken = False

        def ended(self, trial, group):
            self.is_broken = True

        def key(self, waiting):
            return (waiting.arrival / (not self.is_broken),)

    body = kind(devices(1, GIB), lambda spec: Work(50, 1.0))
    assert ends(body, Packer(PackerOptions(width=len(on_record), policy=Breaks())), ZeroDivisionError) == on_record
