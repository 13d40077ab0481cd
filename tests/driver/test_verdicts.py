"""Who is to be given a verdict."""

from cotune.driver.verdicts import Verdicts


def test_a_report_that_the_search_judges_gets_one_verdict_even_if_its_trial_was_told_earlier() -> None:
    verdicts = Verdicts()
    verdicts.ask(3, 0)
    assert verdicts.take() == []
    verdicts.give_early(3, 0)
    assert (verdicts.take(), verdicts.are_to_come) == ([(3, 0)], True)
    verdicts.give_early(3, 0)
    verdicts.answered(3, 0)
    assert (verdicts.take(), verdicts.are_to_come) == ([], False)


def test_an_attempt_without_a_report_with_the_search_gets_no_verdict_from_it() -> None:
    verdicts = Verdicts()
    verdicts.ask(3, 1)
    verdicts.give_early(3, 0)
    verdicts.give(4, 0)
    verdicts.answered(3, 1)
    assert verdicts.take() == [(4, 0), (3, 1)]
    assert verdicts.take() == []
