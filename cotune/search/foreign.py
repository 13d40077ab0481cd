"""Converts domains of Optuna and Ray Tune to cotune's.

Neither Optuna nor Ray is imported for that: an object of theirs exists only if its module is loaded already, so its
class name is enough, and `import cotune` stays cheap.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cotune.errors import SpaceError
from cotune.search.domains import Choice, Domain, Float, Integer, quantized_float, quantized_integer, whole


def domain_of(leaf: Any) -> Domain | None:
    """The leaf as a cotune domain; None for a constant."""
    if isinstance(leaf, Float | Integer | Choice):
        return leaf
    if is_grid_search(leaf):
        return Choice(leaf["grid_search"])
    names = {base.__name__: base.__module__ for base in type(leaf).__mro__}
    if any(module.startswith("optuna.") for module in names.values()):
        return _from_optuna(leaf, names)
    if any(module.startswith("ray.tune.search.sample") for module in names.values()):
        return _from_ray(leaf, names)
    return None


def is_grid_search(value: Any) -> bool:
    return isinstance(value, Mapping) and set(value) == {"grid_search"}


def _from_optuna(leaf: Any, names: Mapping[str, str]) -> Domain | None:
    if "FloatDistribution" in names:
        return Float(leaf.low, leaf.high, log=leaf.log, step=leaf.step)
    if "IntDistribution" in names:
        return Integer(leaf.low, leaf.high, log=leaf.log, step=leaf.step)
    if "CategoricalDistribution" in names:
        return Choice(leaf.choices)
    return None


def _from_ray(leaf: Any, names: Mapping[str, str]) -> Domain | None:
    if "Function" in names:
        raise SpaceError(
            "a Ray Tune sample_from() function draws values that the sampler cannot see",
            hint="compute it in the trainable from the other values, or list the values with choice([...])",
        )
    if "Categorical" in names:
        return Choice(leaf.categories)
    if "Float" not in names and "Integer" not in names:
        return None
    sampler, q = leaf.sampler, None
    if _is_a(sampler, "Quantized"):
        sampler, q = sampler.sampler, sampler.q
    if sampler is not None and not _is_a(sampler, "Uniform", "LogUniform"):
        raise SpaceError(
            f"a Ray Tune domain with the sampler {sampler!s} is not supported",
            hint="samplers search between bounds: use uniform(mean - 3 * sd, mean + 3 * sd) for a normal one",
        )
    log = _is_a(sampler, "LogUniform")
    if "Float" in names:
        if q is None:
            return Float(leaf.lower, leaf.upper, log=log)
        return quantized_float(leaf.lower, leaf.upper, q, log=log)
    if q is None or q == 1:  # Ray's upper bound is included only where there is a q other than 1
        return Integer(leaf.lower, whole("high", leaf.upper) - 1, log=log)
    return quantized_integer(leaf.lower, leaf.upper, q, log=log)


def _is_a(value: Any, *names: str) -> bool:
    return any(base.__name__ in names for base in type(value).__mro__)
