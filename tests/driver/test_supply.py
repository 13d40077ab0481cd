"""How many trials the search is asked for, and when it hears that no others will come."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cotune.driver.options import SweepOptions
from cotune.driver.supply import ASK_AHEAD, Supply


class Search:
    def __init__(self):
        self.asked, self.settled, self.dropped = [], 0, False

    def ask(self, count):
        self.asked.append(count)

    def settle(self):
        self.settled += 1

    def drop_asks(self):
        self.dropped = True


@pytest.fixture
def supply():
    def make(limit=None, lockstep=False, is_blind=False, proposed=0, **packer):
        packer = SimpleNamespace(**{"seats": 2, "breadth": 2, "waiting": 0, "unfinished": 0, "held": 0, **packer})
        made = Supply(Search(), packer, SweepOptions("", "", limit, None, lockstep, is_blind), proposed)
        made.search, made.packer = made._search, packer
        return made

    return make


def arrive(supply, count):
    for _ in range(count):
        supply.suggested()


def test_a_suggestion_is_ready_for_every_lane(supply):
    asked = supply(seats=3, breadth=2, waiting=1)
    asked.ask(0, is_guessing=False)
    assert asked.search.asked == [4]


def test_what_is_on_its_way_or_being_estimated_is_not_asked_for_again(supply):
    asked = supply(seats=3, breadth=2)
    asked.ask(1, is_guessing=False)
    asked.ask(1, is_guessing=False)
    assert asked.search.asked == [4]


def test_in_lockstep_a_trial_is_asked_for_only_when_it_can_start(supply):
    asked = supply(lockstep=True, seats=1)
    asked.ask(0, is_guessing=False)
    asked.packer.seats = 0
    arrive(asked, 1)
    asked.ask(0, is_guessing=False)
    assert asked.search.asked == [1]


def test_a_sampler_that_does_not_learn_is_asked_for_many_at_once(supply):
    asked = supply(is_blind=True, seats=0)
    asked.ask(0, is_guessing=False)
    asked.packer.waiting = ASK_AHEAD * 3 // 4
    arrive(asked, ASK_AHEAD)
    asked.ask(0, is_guessing=False)
    assert asked.search.asked == [ASK_AHEAD], "a few that are gone are not worth the sampler's while"


def test_while_estimates_are_guesses_one_trial_at_most_is_asked_for_ahead(supply):
    asked = supply(is_blind=True, seats=0)
    asked.ask(0, is_guessing=True)
    assert asked.search.asked == [1]


def test_no_more_are_asked_for_than_there_are_to_be(supply):
    asked = supply(limit=7, proposed=4, is_blind=True)
    asked.ask(0, is_guessing=False)
    arrive(asked, 3)
    asked.ask(0, is_guessing=False)
    assert asked.search.asked == [3]


@pytest.mark.parametrize("end", [Supply.exhausted, Supply.close])
def test_after_the_end_none_is_asked_for(supply, end):
    asked = supply()
    end(asked)
    asked.ask(0, is_guessing=False)
    assert not asked.search.asked


def test_suggestions_that_come_after_the_search_is_exhausted_do_no_harm(supply):
    asked = supply()
    asked.ask(0, is_guessing=False)
    asked.exhausted()
    arrive(asked, 2)
    assert asked.asked == 0


def test_where_all_that_are_left_wait_for_others_the_search_is_told_once(supply):
    asked = supply(limit=2, proposed=2, unfinished=2, held=2)
    asked.settle()
    asked.settle()
    assert asked.search.settled == 1
    asked.settled()
    asked.settle()
    assert asked.search.settled == 2, "whoever was to go on was held again"


@pytest.mark.parametrize("why", [{"held": 1}, {"limit": 3}, {"limit": None}, {"unfinished": 0, "held": 0}])
def test_as_long_as_others_run_or_will_come_nothing_is_settled(supply, why):
    asked = supply(**{"limit": 2, "proposed": 2, "unfinished": 2, "held": 2, **why})
    asked.settle()
    assert not asked.search.settled
