"""Optuna samplers and pruners, by name or as they are, and how far ahead a sampler may be asked."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from optuna.exceptions import ExperimentalWarning
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, SuccessiveHalvingPruner
from optuna.samplers import (
    BaseSampler,
    GridSampler,
    QMCSampler,
    RandomSampler,
    TPESampler,
)
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from cotune.errors import InputError
from cotune.search import PRUNERS, SAMPLERS
from cotune.search.promotion import AshaPromote
from cotune.search.spaces import Space


class AskTellGridSampler(GridSampler):
    """Optuna's grid sampler, for ask and tell.

    The original ends the study itself once the grid is visited, by `study.stop()`, which raises outside of
    `study.optimize()`; it also reads all trials after each one to find out. Here the driver counts, by
    `Space.grid_size()`.
    """

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Does nothing."""


def make_sampler(sampler: str | BaseSampler | None, space: Space, seed: int | None) -> BaseSampler:
    """The sampler a run uses.

    Args:
        sampler: "tpe" (which None means as well), "random", "grid", or any Optuna sampler.
        space: The search space, which a grid is made of.
        seed: What makes suggestions repeatable; a sampler passed in keeps its own.

    Raises:
        InputError: There is no such sampler.
        SpaceError: A grid was asked for over a continuous space.
    """
    if isinstance(sampler, BaseSampler):
        return sampler
    match sampler.lower() if isinstance(sampler, str) else sampler:
        case None | "tpe":
            with warnings.catch_warnings():
                # Experimental before Optuna 5: without it, suggestions asked for in parallel come out alike.
                warnings.simplefilter("ignore", ExperimentalWarning)
                return TPESampler(seed=seed, constant_liar=True)
        case "random":
            return RandomSampler(seed=seed)
        case "grid":
            return AskTellGridSampler(space.grid(), seed=seed)
    raise InputError(f"no sampler {sampler!r}", hint=_known("samplers", SAMPLERS, "optuna.samplers"))


def make_pruner(pruner: str | BasePruner | AshaPromote | None) -> BasePruner | AshaPromote | None:
    """The pruner a run uses.

    Args:
        pruner: "asha", "asha-promote", "hyperband", "median", an `AshaPromote`, any Optuna pruner, or None ("none") to
            let every trial finish.

    Raises:
        InputError: There is no such pruner.
    """
    if isinstance(pruner, (BasePruner, AshaPromote)):
        return pruner
    match pruner.lower() if isinstance(pruner, str) else pruner:
        case None | "none":
            return None
        case "asha":
            return SuccessiveHalvingPruner()
        case "asha-promote":
            return AshaPromote()
        case "hyperband":
            return HyperbandPruner()
        case "median":
            return MedianPruner()
    raise InputError(f"no pruner {pruner!r}", hint=_known("pruners", PRUNERS, "optuna.pruners"))


def learns(sampler: BaseSampler) -> bool:
    """Whether suggestions get worse when they are asked for before earlier trials have ended."""
    return not isinstance(sampler, RandomSampler | AskTellGridSampler | QMCSampler)


def _known(what: str, names: Sequence[str], module: str) -> str:
    listed = ", ".join(repr(name) for name in names)
    return f"known {what} are {listed}; or pass an object from {module}"
