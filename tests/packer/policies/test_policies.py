"""The order in which waiting trials are tried."""

from __future__ import annotations

import pytest

from cotune.demand import Demand
from cotune.errors import InputError
from cotune.packer import DeviceFound, Packer, PackerOptions, TrialAdded
from cotune.packer.policies import (
    POLICIES,
    Fair,
    Fifo,
    Fluid,
    Gandiva,
    Horus,
    Makespan,
    Pack,
    Policy,
    Srtf,
    Waiting,
    make_policy,
)
from cotune.packer.policies.horus import k_means


def order(policy: Policy, seconds: list[float | None]) -> list[int]:
    waiting = [Waiting(trial, trial, left, None) for trial, left in enumerate(seconds)]
    return [w.trial for w in sorted(waiting, key=policy.key)]


def test_a_policy_without_a_name_has_that_of_its_class() -> None:
    class Mine(Policy):
        def key(self, waiting: Waiting) -> tuple[float, ...]:
            return (1.0,)

    assert (make_policy(Mine()).name, Makespan.name) == ("Mine", "makespan")


def test_makespan_takes_the_longest_first() -> None:
    assert order(Makespan(), [1.0, 3.0, 2.0]) == [1, 2, 0]


def test_makespan_takes_the_tall_by_length_and_the_rest_by_size() -> None:
    policy = Makespan()
    policy.devices = 4
    waiting = [
        Waiting(trial, trial, left, need << 30, busy=1.0)
        for trial, (left, need) in enumerate([(10.0, 8), (20.0, 2), (900.0, 1), (600.0, 1), (20.0, 4)])
    ]
    for one in waiting:
        policy.joined(one, policy.group(one))
    chosen = sorted(waiting, key=lambda one: (policy.rank(policy.group(one)), *policy.key(one)))
    assert [one.trial for one in chosen] == [2, 3, 0, 4, 1]


def test_makespan_calls_fewer_tall_as_more_is_to_be_done() -> None:
    policy = Makespan()
    policy.devices = 1
    one = Waiting(0, 0, 100.0, None, busy=1.0)
    policy.joined(one, policy.group(one))
    assert policy.rank(policy.group(one)) < 0
    for trial in range(1, 20):
        more = Waiting(trial, trial, 100.0, None, busy=1.0)
        policy.joined(more, policy.group(more))
    assert policy.rank(policy.group(one)) == 0


def test_makespan_goes_by_arrival_as_long_as_nothing_is_predicted() -> None:
    assert order(Makespan(), [None, None, None]) == [0, 1, 2]


def test_makespan_breaks_ties_by_arrival() -> None:
    assert order(Makespan(), [2.0, 3.0, 3.0]) == [1, 2, 0]


def test_makespan_goes_by_arrival_but_every_second_is_the_longest_where_trials_are_judged_by_others() -> None:
    policy = Makespan()
    policy.judged = True
    seconds = [80.0, 2.0, 90.0, 1.5, 160.0, 1.0]
    waiting = [Waiting(trial, trial, left, (trial % 2) << 30, busy=1.0) for trial, left in enumerate(seconds)]
    for one in waiting:
        policy.joined(one, policy.group(one))
    started = []
    while waiting:
        first = min(waiting, key=lambda one: (policy.rank(policy.group(one)), *policy.key(one)))
        waiting.remove(first)
        policy.left(first, policy.group(first), started=True)
        started.append(first.trial)
    assert started == [4, 0, 2, 1, 3, 5]


def test_fifo_looks_at_arrival_only() -> None:
    assert order(Fifo(), [1.0, 3.0, 2.0]) == [0, 1, 2]


def test_policies_are_made_by_name() -> None:
    assert isinstance(make_policy(None), Makespan)
    assert all(isinstance(make_policy(name), policy) for name, policy in POLICIES.items())


def test_a_policy_of_ones_own_is_taken_as_it_is() -> None:
    class Mine(Fifo):
        pass

    mine = Mine()
    assert make_policy(mine) is mine


def test_books_of_one_run_are_not_those_of_the_next_with_the_same_object() -> None:
    given = Makespan()
    first, second = make_policy(given), make_policy(given)
    first.judged, first.devices = True, 8
    first.joined(Waiting(1, 0, 60.0, None), 64.0)
    assert (second.judged, second.devices, second.total, given.total) == (False, 1, 0.0, 0.0)


@pytest.mark.parametrize("wrong", ["fastest", "", 3, ["fifo"]])
def test_unknown_policy_names_the_choice(wrong: object) -> None:
    with pytest.raises(InputError, match="is not a policy") as error:
        make_policy(wrong)
    assert "makespan, fifo, srtf" in error.value.hint


def test_policy_that_is_a_class_is_told_to_be_an_object() -> None:
    with pytest.raises(InputError, match="is a class") as error:
        make_policy(Fifo)
    assert "policy=Fifo()" in error.value.hint


@pytest.mark.parametrize("key", [None, 1.0, "first", (None,), ("a", 1.0), (1.0, float("nan"))])
def test_a_key_that_cannot_be_sorted_by_is_refused(key: object) -> None:
    class Odd(Fifo):
        def key(self, waiting: Waiting) -> tuple[float, ...]:
            return key  # type: ignore[return-value]

    packer = Packer(PackerOptions(policy=Odd()))
    with pytest.raises(InputError, match=r"key\(\) for trial 3 is") as error:
        packer.handle(TrialAdded(0.0, 3))
    assert "a tuple of numbers" in error.value.hint


def test_srtf_takes_the_shortest_first_and_what_nobody_knows_before_it() -> None:
    assert order(Srtf(), [3.0, 1.0, None, 2.0]) == [2, 1, 3, 0]


@pytest.mark.parametrize("policy", [Pack(), Gandiva(), Horus()])
def test_these_go_by_arrival(policy: Policy) -> None:
    assert order(policy, [1.0, 3.0, 2.0]) == [0, 1, 2]


def test_pack_and_gandiva_change_the_width_not_the_order() -> None:
    assert Pack().packs
    assert (Gandiva().gain, Gandiva().guesses) == (1.0, False)
    assert (Makespan().packs, Makespan().gain, Makespan().guesses) == (False, 1.05, True)


# ---- fluid


def test_fluid_gives_a_device_to_a_trial_as_tall_as_a_devices_part() -> None:
    policy = Fluid()
    trials = [Waiting(0, 0, 60.0, None), Waiting(1, 1, 30.0, None), Waiting(2, 2, 30.0, None)]
    for waiting in trials:
        policy.joined(waiting, None)
    policy.devices = 2
    assert [policy.exclusive(waiting) for waiting in trials] == [True, False, False]
    policy.devices = 4
    assert [policy.exclusive(waiting) for waiting in trials] == [True, True, True]


def test_fluid_counts_running_trials_until_they_end() -> None:
    policy = Fluid()
    policy.devices = 2
    first, second = Waiting(0, 0, 90.0, None), Waiting(1, 1, 10.0, None)
    policy.joined(first, None)
    policy.joined(second, None)
    policy.left(first, None, started=True)
    assert not policy.exclusive(second)
    policy.ended(0, None)
    assert policy.exclusive(second)
    policy.left(second, None, started=False)
    assert not policy.exclusive(second)


@pytest.mark.parametrize("rank", [None, "first", float("nan"), [1.0]])
def test_a_rank_that_cannot_be_compared_is_refused(rank: object) -> None:
    class Odd(Fifo):
        def rank(self, group: object) -> float:
            return rank  # type: ignore[return-value]

    brain = Packer(PackerOptions(policy=Odd()))
    brain.handle(DeviceFound(0.0, "gpu 0", 1 << 30))
    with pytest.raises(InputError, match=r"rank\(\) of group None is") as error:
        brain.handle(TrialAdded(0.0, 3))
    assert error.value.hint


def test_a_rank_may_be_a_whole_number_and_a_group_must_be_hashable() -> None:
    class Whole(Fifo):
        def rank(self, group: object) -> float:
            return 2

    brain = Packer(PackerOptions(policy=Whole()))
    brain.handle(DeviceFound(0.0, "gpu 0", 1 << 30))
    assert brain.handle(TrialAdded(0.0, 3))

    class Lists(Fifo):
        def group(self, waiting: Waiting) -> list[int]:
            return [1]

    with pytest.raises(InputError, match=r"group\(\) of trial 3 is \[1\]"):
        Packer(PackerOptions(policy=Lists())).handle(TrialAdded(0.0, 3))


# ---- fair


def of_kind(trial: int, kind: str) -> Waiting:
    return Waiting(trial, trial, None, None, kind)


def test_fair_ranks_kinds_by_service_over_weight() -> None:
    policy = Fair({"b": 2.0})
    for trial, kind in enumerate("ab"):
        policy.joined(of_kind(trial, kind), kind)
    for trial, kind in enumerate("ab"):
        policy.left(of_kind(trial, kind), kind, started=True)
        policy.ran(trial, kind, 10.0)
    assert (policy.rank("a"), policy.rank("b")) == (10.0, 5.0)


def test_fair_charges_a_start_at_once_and_returns_what_was_not_used() -> None:
    policy = Fair()
    waiting = Waiting(0, 0, 100.0, None, "a")
    policy.joined(waiting, "a")
    policy.left(waiting, "a", started=True)
    assert policy.rank("a") == 100.0
    policy.ran(0, "a", 30.0)
    assert policy.rank("a") == 100.0
    policy.ended(0, "a")
    assert policy.rank("a") == 30.0


def test_fair_gives_a_late_kind_no_claim_on_the_past() -> None:
    policy = Fair()
    policy.joined(of_kind(0, "a"), "a")
    policy.ran(9, "a", 50.0)
    policy.joined(of_kind(1, "b"), "b")
    assert policy.rank("b") == 50.0


def test_fair_does_not_take_a_kind_for_late_while_one_of_its_trials_runs() -> None:
    policy = Fair()
    for trial, (kind, seconds) in enumerate([("a", 10.0), ("b", 1000.0)]):
        waiting = Waiting(trial, trial, seconds, None, kind)
        policy.joined(waiting, kind)
        policy.left(waiting, kind, started=True)
    policy.joined(of_kind(2, "b"), "b")
    level = policy.rank("a")
    policy.joined(of_kind(3, "a"), "a")
    assert policy.rank("a") == level
    policy.left(of_kind(3, "a"), "a", started=False)
    policy.ended(0, "a")
    policy.joined(of_kind(4, "a"), "a")
    assert policy.rank("a") == policy.rank("b") > 1000.0


def test_fair_has_nobody_come_late_for_being_looked_at_anew() -> None:
    brain = Packer(PackerOptions(width=1, policy=Fair()))
    line, policy = brain._line, brain.options.policy
    brain.handle(TrialAdded(0.0, 0, "b", seconds=1000.0))
    brain.handle(TrialAdded(0.0, 1, "a", seconds=10.0))
    policy.ran(9, "b", 500.0)
    brain._trials[1].seconds_hint, brain._trials[1].hint = 20.0, Demand(1, 1)
    line.refresh(brain._trials[1])
    assert policy.rank("a") == 0.0


@pytest.mark.parametrize("weight", [0, -1.0, float("nan"), float("inf")])
def test_fair_refuses_what_is_no_weight(weight: float) -> None:
    with pytest.raises(InputError, match="weight of 'a'"):
        Fair({"a": weight})


# ---- horus


def test_k_means_finds_clusters_on_a_line() -> None:
    assert k_means([1.0, 1.2, 5.0, 5.2, 9.0, 9.2], 3) == pytest.approx([1.1, 5.1, 9.1])
    assert k_means([2.0], 3) == [2.0, 2.0, 2.0]


def test_horus_puts_like_needs_into_one_class() -> None:
    policy = Horus()
    needs = [100, 110, 5_000, 5_100, 400_000, 410_000, 105, 5_050]
    for trial, need in enumerate(needs):
        waiting = Waiting(trial, trial, None, need)
        policy.joined(waiting, policy.group(waiting))
    groups = [policy.group(Waiting(9, 9, None, need)) for need in needs]
    assert groups == [0, 0, 1, 1, 2, 2, 0, 1]


def test_horus_prefers_the_class_that_waits_longest_for_what_it_was_served() -> None:
    policy = Horus()
    for trial in range(8):
        policy.joined(Waiting(trial, trial, None, None, since=float(trial)), trial % 2)
    policy.joined(Waiting(8, 8, None, None, since=100.0), 2)
    policy.left(Waiting(0, 0, None, None), 0, started=True)
    assert policy.rank(1) < policy.rank(0)


def test_horus_pays_dearly_for_more_than_a_full_device() -> None:
    policy = Horus()
    costs = [policy.cost(0.5, busy) for busy in (0.5, 1.0, 1.5)]
    assert costs[1] - costs[0] < costs[2] - costs[1]
    assert policy.cost(0.2, 0.5) < policy.cost(0.9, 0.5)
