"""Makes Optuna samplers and pruners from their names, and tells how far ahead a sampler may be asked."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import BasePruner, MedianPruner
from optuna.samplers import (
    BaseSampler,
    BruteForceSampler,
    GridSampler,
    QMCSampler,
    RandomSampler,
    TPESampler,
)
from optuna.study import Study
from optuna.trial import FrozenTrial

from cotune.errors import InputError
from cotune.search import PRUNERS, SAMPLERS
from cotune.search.promotion import AshaPromote
from cotune.search.pruners import Asha, Hyperband
from cotune.search.spaces import Space


class Grid(BaseSampler):
    """Suggests every point of a grid once, in an order that depends on the seed.

    Optuna's `GridSampler` goes by trial numbers, so that a study that was begun with another grid or sampler would
    repeat some points and leave others out; and it ends the study by `study.stop()`, which raises outside of
    `study.optimize()`.

    Args:
        space: The space to enumerate.
        seed: Decides the order.
        tried: Parameters of earlier trials, whose points are left out.

    Raises:
        SpaceError: A domain is continuous, or the grid is too large to enumerate.
    """

    def __init__(self, space: Space, seed: int | None, tried: Iterable[Mapping[str, Any]]) -> None:
        grid = space.grid()
        self._distributions = space.distributions()
        self._names = sorted(grid)
        points = list(product(*(grid[name] for name in self._names)))
        # Reversed, since points are taken from the end: the order is that of Optuna's sampler.
        np.random.RandomState(seed).shuffle(points)
        self._points = points[::-1]
        # Compared by repr, which tells the options 1, 1.0 and True apart.
        if known := {repr(tuple(space.rounded(name, params.get(name)) for name in self._names)) for params in tried}:
            self._points = [point for point in self._points if repr(point) not in known]

    @property
    def left(self) -> int:
        """Points not suggested yet."""
        return len(self._points)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._distributions

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return dict(zip(self._names, self._points.pop(), strict=True))

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        raise InputError(f"no {param_name!r} is in the grid", hint="the grid has what the space has")


def make_sampler(
    sampler: str | BaseSampler | None, space: Space, seed: int | None, tried: Iterable[Mapping[str, Any]] = ()
) -> BaseSampler:
    """The sampler a run uses.

    Args:
        sampler: "tpe" (which None means as well), "random", "grid", or any Optuna sampler.
        space: The search space, for a grid.
        seed: Makes suggestions repeatable; a sampler passed in keeps its own, but after earlier trials.
        tried: Parameters of earlier trials, which a grid leaves out.

    Raises:
        InputError: There is no such sampler.
        SpaceError: A grid was asked for over a continuous space.
    """
    if isinstance(sampler, BaseSampler):
        if [*tried]:
            # The script makes it with the seed that it had then: it would suggest the same again.
            sampler.reseed_rng()
        return sampler
    match sampler:
        case None | "tpe":
            with warnings.catch_warnings():
                # constant_liar, experimental before Optuna 5, keeps parallel suggestions from being alike.
                warnings.simplefilter("ignore", ExperimentalWarning)
                return TPESampler(seed=seed, constant_liar=True)
        case "random":
            return RandomSampler(seed=seed)
        case "grid":
            return Grid(space, seed, tried)
    raise InputError(f"sampler={sampler!r} is not a sampler", hint=_known(SAMPLERS, "optuna.samplers"))


def make_pruner(pruner: str | BasePruner | AshaPromote | None) -> BasePruner | AshaPromote | None:
    """The pruner a run uses.

    Args:
        pruner: "asha", "asha-promote", "hyperband", "median", an `AshaPromote`, any Optuna pruner, or None to let
            every trial finish.

    Raises:
        InputError: There is no such pruner.
    """
    if isinstance(pruner, (BasePruner, AshaPromote)):
        return pruner
    match pruner:
        case None:
            return None
        case "asha":
            return Asha()
        case "asha-promote":
            return AshaPromote()
        case "hyperband":
            return Hyperband()
        case "median":
            return MedianPruner()
    raise InputError(f"pruner={pruner!r} is not a pruner", hint=_known(PRUNERS, "optuna.pruners"))


def most_trials(sampler: BaseSampler, space: Space, earlier: int) -> int | None:
    """How many trials a sampler has points for, earlier ones included; None for no limit.

    A grid is run once, also with Optuna's `GridSampler` and `BruteForceSampler`, which would begin again while its last
    points are running.

    Args:
        sampler: Any sampler.
        space: The search space.
        earlier: Number of earlier trials.
    """
    if isinstance(sampler, Grid):
        return earlier + sampler.left
    if isinstance(sampler, BruteForceSampler):
        return space.grid_size()
    return sampler._n_min_trials if isinstance(sampler, GridSampler) else None


def learns(sampler: BaseSampler) -> bool:
    """Whether suggestions depend on results, and get worse if asked for before earlier trials have ended."""
    return not isinstance(sampler, RandomSampler | Grid | QMCSampler)


def _known(names: Sequence[str], module: str) -> str:
    return f"known are {', '.join(map(repr, names))}; or pass an object from {module}"
