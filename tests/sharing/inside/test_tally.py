"""To which report a trial's checkpoints belong."""

from __future__ import annotations

import pytest

from cotune.sharing.inside import tally
from cotune.sharing.inside.habit import SavingHabit
from cotune.sharing.inside.tally import Tally


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(tally, "time", clock)
    return clock


def epoch(clock, own, *acts):
    """Lets an attempt save and report at these moments after the last; returns what was said of the report."""
    said = None
    for act, after in acts:
        clock.now += after
        if act == "save":
            own.saves(is_ahead=own.is_ahead)
            own.saved(clock.now)
        else:
            said = own.begins_report(clock.now)
            own.ends_report()
    return said


def test_what_is_saved_before_the_first_report_is_taken_for_its_own_as_long_as_nothing_is_known(clock):
    habit = SavingHabit()
    first, second = Tally(habit), Tally(habit)
    epoch(clock, first, ("save", 9.0))
    assert first.owes_report
    assert epoch(clock, first, ("report", 1.0)) == (10.0, False)
    assert (habit.saves_ahead, first.owes_report) == (True, False)
    # From then on it is known, also by other attempts.
    epoch(clock, second, ("report", 5.0), ("save", 1.0))
    assert second.owes_report


def test_a_checkpoint_of_initial_weights_is_found_out_by_the_first_report(clock):
    own = Tally(SavingHabit())
    epoch(clock, own, ("save", 1.0))
    assert epoch(clock, own, ("report", 9.0)) == (10.0, True)
    assert epoch(clock, own, ("save", 1.0), ("report", 9.0)) == (10.0, False)
    assert not own.owes_report


def test_what_is_done_before_a_checkpoint_is_asked_for_does_not_count(clock):
    own = Tally(SavingHabit())
    clock.now += 60.0
    own.restores()
    # Right after the restore, long before the report: behind what was restored.
    epoch(clock, own, ("save", 1.0))
    assert epoch(clock, own, ("report", 9.0)) == (10.0, True)


def test_a_report_that_does_not_say_its_step_is_not_behind_the_last(clock):
    own = Tally(SavingHabit())
    assert own.next_step == 1
    own.reports, own.step = 10, 9
    assert own.next_step == 11
    own.step = 1000
    assert own.next_step == 1001
