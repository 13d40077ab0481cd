from __future__ import annotations

from typing import Any

import optuna
import pytest
from optuna.pruners import HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import RandomSampler, TPESampler

from cotune.errors import InputError, SpaceError
from cotune.search.domains import choice, quniform, randint, uniform
from cotune.search.pruners import Asha
from cotune.search.samplers import Grid, learns, make_pruner, make_sampler, most_trials
from cotune.search.spaces import Space

optuna.logging.set_verbosity(optuna.logging.WARNING)

SPACE = Space({"a": randint(0, 3), "b": choice(["x", "y"])})


@pytest.mark.parametrize(
    ("name", "kind"),
    [(None, TPESampler), ("tpe", TPESampler), ("random", RandomSampler), ("grid", Grid)],
)
def test_samplers_by_name(name: str | None, kind: type) -> None:
    assert isinstance(make_sampler(name, SPACE, seed=1), kind)


def test_a_sampler_or_pruner_passed_in_is_used_as_it_is() -> None:
    sampler, pruner = RandomSampler(), NopPruner()
    assert make_sampler(sampler, SPACE, seed=1) is sampler
    assert make_pruner(pruner) is pruner


@pytest.mark.parametrize("name", ["tpe", "random", "grid"])
def test_a_seed_repeats_the_suggestions(name: str) -> None:
    def suggestions() -> list[dict[str, Any]]:
        study = optuna.create_study(sampler=make_sampler(name, SPACE, seed=3))
        asked = []
        for value in range(6):
            trial = study.ask(SPACE.distributions())
            asked.append(trial.params)
            study.tell(trial, value)
        return asked

    assert suggestions() == suggestions()


def test_the_grid_is_visited_once_by_ask_and_tell() -> None:
    study = optuna.create_study(sampler=make_sampler("grid", SPACE, seed=None))
    trials = [study.ask(SPACE.distributions()) for _ in range(SPACE.grid_size() or 0)]
    for trial in trials:
        study.tell(trial, 1.0)
    assert {(trial.params["a"], trial.params["b"]) for trial in trials} == {
        (a, b) for a in range(3) for b in ("x", "y")
    }


def test_a_grid_leaves_out_what_was_tried_and_has_all_else() -> None:
    tried: list[dict[str, Any]] = [{"a": 1, "b": "y"}, {"b": "x"}]
    study = optuna.create_study(sampler=make_sampler("grid", SPACE, 0, tried))
    asked = [study.ask(SPACE.distributions()).params for _ in range(5)]
    assert {(p["a"], p["b"]) for p in asked} == {(0, "x"), (0, "y"), (1, "x"), (2, "x"), (2, "y")}


def test_a_grid_leaves_out_what_optuna_counted_in_binary() -> None:
    space = Space({"x": quniform(0, 1, 0.1)})
    grid = make_sampler("grid", space, 0, [{"x": 0.1 * step} for step in range(11)])
    assert isinstance(grid, Grid)
    assert grid.left == 0


def test_a_grid_over_a_continuous_space_is_refused() -> None:
    with pytest.raises(SpaceError, match="lr"):
        make_sampler("grid", Space({"lr": uniform(0, 1)}), seed=None)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("asha", Asha), ("hyperband", HyperbandPruner), ("median", MedianPruner)],
)
def test_pruners_by_name(name: str, kind: type) -> None:
    assert isinstance(make_pruner(name), kind)


def test_no_pruner() -> None:
    assert make_pruner(None) is None


@pytest.mark.parametrize("wrong", ["bayes", "", 3])
def test_unknown_names_list_the_known_ones(wrong: Any) -> None:
    with pytest.raises(InputError, match=repr(wrong)) as caught:
        make_sampler(wrong, SPACE, seed=None)
    assert "'tpe', 'random', 'grid'" in caught.value.hint
    with pytest.raises(InputError, match=repr(wrong)) as caught:
        make_pruner(wrong)
    assert "'asha', 'asha-promote', 'hyperband', 'median', 'none'" in caught.value.hint


def test_only_samplers_that_learn_suffer_from_being_asked_ahead() -> None:
    assert learns(make_sampler("tpe", SPACE, seed=None))
    assert not learns(make_sampler("random", SPACE, seed=None))
    assert not learns(make_sampler("grid", SPACE, seed=None))


def test_a_seeded_sampler_suggests_something_else_to_a_run_that_is_resumed() -> None:
    def suggestions(tried: list[dict[str, float]]) -> list[float]:
        sampler = make_sampler(optuna.samplers.RandomSampler(seed=0), SPACE, None, tried)
        study = optuna.create_study(sampler=sampler)
        return [study.ask({"x": optuna.distributions.FloatDistribution(0, 1)}).params["x"] for _ in range(3)]

    first = suggestions([])
    assert suggestions([]) == first
    assert not set(suggestions([{"x": 0.5}])) & set(first)


def test_brute_force_has_as_many_points_as_the_space() -> None:
    with pytest.warns(optuna.exceptions.ExperimentalWarning):
        sampler = optuna.samplers.BruteForceSampler()
    assert most_trials(sampler, Space({"a": choice([1, 2, 3]), "b": choice([False, True])}), 1) == 6
    assert most_trials(sampler, Space({"a": uniform(0, 1)}), 0) is None
