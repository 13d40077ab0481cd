"""The order in which waiting trials are tried."""

from __future__ import annotations

import pytest

from cotune.errors import InputError
from cotune.packer.policies import POLICIES, Fifo, Makespan, Policy, Waiting, make_policy


def order(policy: Policy, seconds: list[float | None]) -> list[int]:
    waiting = [Waiting(trial, trial, left, None) for trial, left in enumerate(seconds)]
    return [w.trial for w in sorted(waiting, key=policy.key)]


def test_makespan_takes_the_longest_first() -> None:
    assert order(Makespan(), [1.0, 3.0, 2.0]) == [1, 2, 0]


def test_makespan_goes_by_arrival_as_long_as_nothing_is_predicted() -> None:
    assert order(Makespan(), [None, None, None]) == [0, 1, 2]


def test_makespan_breaks_ties_by_arrival() -> None:
    assert order(Makespan(), [2.0, 3.0, 3.0]) == [1, 2, 0]


def test_fifo_looks_at_arrival_only() -> None:
    assert order(Fifo(), [1.0, 3.0, 2.0]) == [0, 1, 2]


def test_policies_are_made_by_name() -> None:
    assert isinstance(make_policy(None), Makespan)
    assert all(isinstance(make_policy(name), policy) for name, policy in POLICIES.items())


def test_own_policy_is_taken_as_it_is() -> None:
    mine = Fifo()
    assert make_policy(mine) is mine


@pytest.mark.parametrize("wrong", ["fastest", 3, ["fifo"]])
def test_unknown_policy_names_the_choice(wrong: object) -> None:
    with pytest.raises(InputError, match="is not a policy") as error:
        make_policy(wrong)  # type: ignore[arg-type]
    assert "makespan, fifo, srtf" in error.value.hint
