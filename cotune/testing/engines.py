"""The contract of every body, as a pytest class.

A body's tests subclass `EngineConformance` and give it an `engine` fixture:

    class TestMyEngine(EngineConformance):
        @pytest.fixture
        def engine(self, tmp_path):
            with EngineUnderTest(MyEngine(behave, ...), tmp_path) as under_test:
                yield under_test

where `behave` is the trainable in `cotune.testing`, whose config says what it does.
"""

from __future__ import annotations

import threading
import time

from cotune.demand import MIB
from cotune.packer import (
    CloseLane,
    GiveTurn,
    GrantChanged,
    GrantTrial,
    IterationsDone,
    LaneHolds,
    LaneLost,
    LaneQuiet,
    LaneResized,
    ParkTrial,
    PauseTrial,
    ResizeLane,
    ResumeTrial,
    StopTrial,
    TrialEnded,
    TrialParked,
    TrialPaused,
)
from cotune.testing.harness import PATIENCE, EngineUnderTest
from cotune.trial import Outcome, Question, Report


class EngineConformance:
    """The contract of `Engine`."""

    def test_a_lane_says_when_it_is_ready_and_what_it_costs(self, engine: EngineUnderTest) -> None:
        assert engine.devices[0].capacity > 0
        assert engine.open().context >= 0

    def test_reports_arrive_in_order_and_then_the_end(self, engine: EngineUnderTest) -> None:
        engine.open()
        engine.begin(0, reports=5)
        reports, ended = engine.collect(0)
        assert [report.step for report in reports] == list(range(5))
        assert [report.value for report in reports] == [0.0, 1.0, 2.0, 3.0, 4.0]
        assert ended.outcome is Outcome.DONE

    def test_a_lane_takes_one_trial_after_another(self, engine: EngineUnderTest) -> None:
        engine.open()
        for trial in range(3):
            engine.begin(trial, reports=2)
            assert engine.collect(trial)[1].outcome is Outcome.DONE

    def test_two_residents_of_a_lane_both_finish(self, engine: EngineUnderTest) -> None:
        engine.open()
        engine.begin(0, reports=50)
        engine.begin(1, reports=50)
        ends = {engine.wait(TrialEnded).trial for _ in range(2)}
        assert ends == {0, 1}

    def test_a_trial_does_not_report_again_before_the_verdict_on_the_one_before(self, engine: EngineUnderTest) -> None:
        engine.open()
        engine.begin(0, reports=100)
        seen: list[Report] = []
        while len(seen) < 1:
            seen += [item for item in engine.engine.poll(1.0) if isinstance(item, Report)]
        assert len(seen) == 1
        engine.engine.verdict(0, 0)
        while len(seen) < 2:
            seen += [item for item in engine.engine.poll(1.0) if isinstance(item, Report)]
        assert len(seen) == 2

    def test_a_stopped_trial_ends_at_its_next_boundary(self, engine: EngineUnderTest) -> None:
        engine.open()
        engine.begin(0, reports=10**6)
        engine.wait(Report)
        engine.execute(StopTrial(0))
        assert engine.wait(TrialEnded).outcome is Outcome.STOPPED

    def test_a_trial_that_raises_fails_with_what_it_raised(self, engine: EngineUnderTest) -> None:
        engine.open()
        engine.begin(0, raises="no such luck")
        ended = engine.collect(0)[1]
        assert ended.outcome is Outcome.FAILED
        assert "no such luck" in ended.detail

    def test_measured_peaks_match_what_a_trial_takes(self, engine: EngineUnderTest) -> None:
        engine.open()
        engine.begin(0, reports=3, hold=100 * MIB, peak=50 * MIB)
        progress = engine.wait(IterationsDone, lambda event: event.trial == 0 and event.persistent > 50 * MIB)
        assert abs(progress.persistent - 100 * MIB) < 10 * MIB
        peak = progress.persistent + engine.wait(IterationsDone, lambda event: event.count > 0).ephemeral
        assert abs(peak - 150 * MIB) < 15 * MIB

    def test_a_trial_beyond_its_quota_runs_out_of_memory_and_the_lane_goes_on(self, engine: EngineUnderTest) -> None:
        context = engine.open(quota=256 * MIB).context
        engine.begin(0, hold=1024 * MIB)
        ended = engine.collect(0)[1]
        assert ended.outcome is Outcome.OUT_OF_MEMORY
        assert ended.needed is None or ended.needed >= 1000 * MIB - context
        engine.begin(1, reports=2, hold=8 * MIB)
        assert engine.collect(1)[1].outcome is Outcome.DONE

    def test_a_larger_quota_lets_the_same_trial_through(self, engine: EngineUnderTest) -> None:
        engine.open(quota=192 * MIB)
        engine.execute(ResizeLane(1, 1024 * MIB))
        assert engine.wait(LaneResized).quota == 1024 * MIB
        engine.begin(0, reports=2, hold=350 * MIB)
        assert engine.collect(0)[1].outcome is Outcome.DONE

    def test_a_trial_says_that_it_splits_its_batches(self, engine: EngineUnderTest) -> None:
        engine.open()
        engine.begin(0, reports=3)
        assert engine.wait(IterationsDone, lambda event: event.trial == 0).splits == 0
        engine.collect(0)
        engine.begin(1, reports=3, splits=4)
        progress = engine.wait(IterationsDone, lambda event: event.trial == 1)
        assert (progress.splits, progress.concurrency) == (4, 1)

    def test_a_grant_holds_from_the_next_boundary_on_until_it_is_taken_back(self, engine: EngineUnderTest) -> None:
        engine.open()
        engine.begin(0, reports=10**6, splits=4)
        engine.wait(IterationsDone)
        for concurrency in (3, 1):
            engine.execute(GrantTrial(0, concurrency))
            changed = engine.wait(GrantChanged)
            assert (changed.trial, changed.concurrency, changed.ran_out) == (0, concurrency, 0)
            assert engine.wait(IterationsDone).concurrency == concurrency

    def test_a_grant_that_memory_does_not_hold_is_given_back_and_the_trial_goes_on(
        self, engine: EngineUnderTest
    ) -> None:
        engine.open()
        engine.begin(0, reports=10**6, splits=8, bursts=2)
        engine.wait(IterationsDone)
        engine.execute(GrantTrial(0, 4))
        assert engine.wait(GrantChanged).concurrency == 4
        back = engine.wait(GrantChanged)
        assert (back.concurrency, back.ran_out) == (1, 4)
        engine.execute(GrantTrial(0, 2))
        assert engine.wait(GrantChanged).concurrency == 2
        assert engine.wait(IterationsDone, lambda event: event.concurrency == 2).trial == 0

    def test_a_grant_to_a_trial_that_is_over_is_nothing(self, engine: EngineUnderTest) -> None:
        engine.open()
        engine.begin(0, reports=2, splits=2)
        engine.collect(0)
        engine.execute(GrantTrial(0, 2))
        engine.begin(1, reports=2, splits=2)
        assert engine.collect(1)[1].outcome is Outcome.DONE
        assert not [item for item in engine.heard if isinstance(item, GrantChanged)]

    def test_a_paused_trial_waits_at_a_boundary_and_others_run_in_its_lane(self, engine: EngineUnderTest) -> None:
        engine.open()
        engine.begin(0, reports=10**6, hold=64 * MIB, splits=2)
        engine.wait(IterationsDone, lambda event: event.persistent > 32 * MIB)
        paused = engine.pause()
        assert (paused.trial, paused.saved) == (0, False)
        assert abs(paused.persistent - 64 * MIB) < 10 * MIB
        engine.begin(1, reports=20)
        assert engine.collect(1)[1].outcome is Outcome.DONE
        assert not [item for item in engine.listen(0.5) if getattr(item, "trial", None) == 0]

    def test_a_paused_trial_goes_on_where_it_was(self, engine: EngineUnderTest) -> None:
        engine.open()
        engine.begin(0, reports=40)
        engine.wait(Report)
        engine.pause()
        engine.execute(ResumeTrial(0))
        reports, ended = engine.collect(0)
        assert reports[-1].step == 39
        assert [report.attempt for report in reports] == [0] * len(reports)
        assert ended.outcome is Outcome.DONE

    def test_a_paused_trial_that_goes_on_can_be_paused_at_once_again(self, engine: EngineUnderTest) -> None:
        engine.open()
        engine.begin(0, reports=10**6)
        engine.wait(Report)
        engine.execute(PauseTrial(0))
        for _ in range(20):
            engine.wait(TrialPaused)
            engine.execute(ResumeTrial(0))
            engine.execute(PauseTrial(0))
        assert engine.wait(TrialPaused).trial == 0

    def test_a_grant_that_comes_while_a_trial_waits_is_void(self, engine: EngineUnderTest) -> None:
        engine.open()
        engine.begin(0, reports=40, splits=2)
        engine.wait(IterationsDone)
        engine.pause()
        engine.execute(GrantTrial(0, 2))
        engine.execute(ResumeTrial(0))
        said: object = None
        while not isinstance(said, TrialEnded):
            said = engine.wait(object, lambda item: isinstance(item, (IterationsDone, GrantChanged, TrialEnded)))
            assert not isinstance(said, GrantChanged)
            assert not isinstance(said, IterationsDone) or said.concurrency == 1

    def test_a_paused_trial_says_that_it_has_a_checkpoint(self, engine: EngineUnderTest) -> None:
        engine.open()
        engine.begin(0, reports=10**6, checkpoints=True)
        engine.wait(Report)
        engine.wait(Report)
        assert engine.pause().saved

    def test_a_paused_trial_can_be_stopped(self, engine: EngineUnderTest) -> None:
        engine.open()
        engine.begin(0, reports=10**6)
        engine.wait(Report)
        engine.pause()
        engine.execute(StopTrial(0))
        assert engine.wait(TrialEnded).outcome is Outcome.STOPPED

    def test_a_trial_that_ends_before_it_could_pause_just_ends(self, engine: EngineUnderTest) -> None:
        engine.open()
        engine.begin(0, reports=1)
        engine.collect(0)
        for instruction in (PauseTrial(0), ParkTrial(0), ResumeTrial(0)):
            engine.execute(instruction)
        engine.begin(1, reports=2)
        assert engine.collect(1)[1].outcome is Outcome.DONE

    def test_a_parked_trial_says_what_that_has_freed_and_goes_on(self, engine: EngineUnderTest) -> None:
        engine.open()
        engine.begin(0, reports=40)
        engine.wait(Report)
        paused = engine.pause()
        engine.execute(ParkTrial(0))
        assert engine.wait(TrialParked).moved == paused.movable
        engine.execute(ResumeTrial(0))
        assert engine.collect(0)[1].outcome is Outcome.DONE

    def test_a_lane_is_lost_with_those_that_are_paused_in_it(self, engine: EngineUnderTest) -> None:
        engine.open()
        engine.begin(0, reports=10**6)
        engine.wait(Report)
        engine.pause()
        engine.execute(CloseLane(1, kill=True))
        lost = engine.wait(LaneLost)
        assert (lost.lane, lost.holder) == (1, None)

    def test_whoever_is_given_every_turn_lets_the_others_finish_in_the_end(self, engine: EngineUnderTest) -> None:
        engine.open()
        engine.begin(0, reports=5)
        engine.begin(1, reports=5)
        engine.execute(GiveTurn(1, 1))
        assert {engine.wait(TrialEnded).outcome for _ in range(2)} == {Outcome.DONE}

    def test_a_closed_lane_is_lost_and_others_go_on(self, engine: EngineUnderTest) -> None:
        engine.open(1)
        engine.open(2)
        engine.execute(CloseLane(1))
        assert engine.wait(LaneLost).lane == 1
        engine.begin(0, lane=2)
        assert engine.collect(0)[1].outcome is Outcome.DONE

    def test_a_killed_lane_names_who_had_the_turn(self, engine: EngineUnderTest) -> None:
        engine.open()
        engine.begin(7, hangs=True)
        engine.wait(LaneQuiet, lambda event: event.holder == 7)
        engine.execute(CloseLane(1, kill=True))
        lost = engine.wait(LaneLost)
        assert (lost.lane, lost.holder) == (1, 7)

    def test_a_lane_where_no_boundary_is_reached_says_what_it_holds_by_now(self, engine: EngineUnderTest) -> None:
        engine.open()
        engine.begin(0, reports=0, hold=200 * MIB, hangs=True)
        assert engine.wait(LaneQuiet, lambda event: event.held > 200 * MIB).held < 400 * MIB

    def test_a_lane_that_dies_is_lost_after_all_it_had_said(self, engine: EngineUnderTest) -> None:
        engine.open()
        engine.begin(0, reports=2, dies=True)
        lost = engine.wait(LaneLost, lambda event: event.lane == 1)
        assert lost.holder == 0
        assert lost.detail

    def test_a_trial_starts_again_from_its_checkpoint(self, engine: EngineUnderTest) -> None:
        engine.open()
        engine.begin(0, reports=3, checkpoints=True, dies=True)
        engine.wait(LaneLost)
        engine.open(2)
        engine.begin(0, lane=2, reports=3, checkpoints=True)
        reports, ended = engine.collect(0)
        assert [report.step for report in reports] == [2]
        assert ended.outcome is Outcome.DONE

    def test_what_an_ended_trial_held_is_free_for_the_next(self, engine: EngineUnderTest) -> None:
        engine.open(quota=400 * MIB)
        for trial in range(3):
            engine.begin(trial, reports=2, hold=300 * MIB)
            assert engine.collect(trial)[1].outcome is Outcome.DONE
        residues = [event.residue for event in engine.heard if isinstance(event, LaneHolds)]
        assert all(residue < 64 * MIB for residue in residues)


class _OnlyHere:
    """An object that can be pickled but not unpickled."""

    def __reduce__(self) -> tuple[type[int], tuple[str]]:
        return int, ("no number",)


class RealEngineConformance(EngineConformance):
    """Further tests for bodies that really run trials: trials ask questions, and `poll()` waits in real time.

    Used like `EngineConformance`.
    """

    def test_a_question_waits_for_its_answer(self, engine: EngineUnderTest) -> None:
        engine.open()
        engine.begin(3, asks=2, reports=0)
        for number in range(2):
            question = engine.wait(Question)
            assert (question.trial, question.attempt, question.payload) == (3, 0, str(number).encode())
            engine.engine.answer(3, 0, str(10 + number).encode())
        reports, ended = engine.collect(3)
        assert [report.value for report in reports] == [21.0]
        assert ended.outcome is Outcome.DONE

    def test_whoever_waits_for_an_answer_lets_residents_run_and_is_not_quiet(self, engine: EngineUnderTest) -> None:
        engine.open()
        engine.begin(0, asks=1)
        engine.wait(Question)
        engine.begin(1, reports=20)
        assert engine.collect(1)[1].outcome is Outcome.DONE
        assert not [item for item in engine.listen(2.0) if isinstance(item, LaneQuiet)]
        engine.engine.answer(0, 0, b"1")
        assert engine.collect(0)[1].outcome is Outcome.DONE

    def test_a_trial_that_waits_for_an_answer_can_be_stopped(self, engine: EngineUnderTest) -> None:
        engine.open()
        engine.begin(0, asks=1)
        engine.wait(Question)
        engine.execute(StopTrial(0))
        assert engine.wait(TrialEnded).outcome is Outcome.STOPPED
        engine.engine.answer(0, 0, b"1")
        engine.begin(1)
        assert engine.collect(1)[1].outcome is Outcome.DONE

    def test_a_config_that_cannot_travel_fails_its_trial_and_no_other(self, engine: EngineUnderTest) -> None:
        engine.open()
        engine.begin(0, asks=1)
        engine.wait(Question)
        for trial, value in ((1, threading.Lock()), (2, _OnlyHere())):
            engine.begin(trial, value=value)
            ended = engine.wait(TrialEnded)
            assert (ended.trial, ended.outcome, ended.error) == (trial, Outcome.FAILED, "NotPicklable")
        engine.engine.answer(0, 0, b"1")
        assert engine.collect(0)[1].outcome is Outcome.DONE

    def test_wake_ends_a_poll_that_waits(self, engine: EngineUnderTest) -> None:
        engine.open()
        engine.engine.poll(0.0)
        engine.engine.wake()
        began = time.monotonic()
        engine.engine.poll(PATIENCE)
        assert time.monotonic() - began < PATIENCE / 2
