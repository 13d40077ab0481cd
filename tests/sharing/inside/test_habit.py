from cotune.sharing.inside.habit import SavingHabit

# Begin and end of a checkpoint of 1 ms, in an iteration of 30 ms that began at 0.
AHEAD, BEHIND = (0.028, 0.029), (0.0001, 0.0011)
REPORT = 0.0291


def test_one_report_that_is_late_on_a_busy_machine_does_not_decide_for_all_that_follow():
    habit = SavingHabit()
    assert habit.saves_behind is None
    habit.notice(0.0, AHEAD, REPORT)
    assert habit.saves_behind is False
    habit.notice(0.0, AHEAD, REPORT + 0.5)
    assert habit.saves_behind, "in doubt no checkpoint may be lost"
    habit.notice(0.0, AHEAD, REPORT)
    assert habit.saves_behind is False
    assert habit.saves_ahead


def test_trials_that_save_after_their_reports_and_now_and_then_only_are_known_by_it():
    habit = SavingHabit()
    for _ in range(3):
        habit.notice(0.0, None, REPORT)
        assert (habit.saves_behind, habit.saves_ahead) == (False, False), "nothing was saved"
    habit.notice(0.0, BEHIND, REPORT)
    habit.notice(0.0, None, REPORT)
    assert habit.saves_behind


def test_a_validation_between_a_checkpoint_and_its_report_may_take_nearly_as_long_as_the_training():
    habit = SavingHabit()
    assert habit.is_unknown
    habit.notice(0.0, AHEAD, AHEAD[1] + 0.9 * AHEAD[0])
    assert habit.saves_ahead
    assert not habit.is_unknown
