"""The search space: a nested dict of constants and of domains of cotune, Optuna or Ray Tune."""

from __future__ import annotations

import copy
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from itertools import chain
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from cotune.errors import InputError, SpaceError
from cotune.plain import is_plain
from cotune.search.codes import shown
from cotune.search.domains import Choice, Domain, Float
from cotune.search.foreign import domain_of, is_grid_search

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

LARGEST_GRID = 1_000_000


class Space:
    """A search space, and its conversion to and from Optuna's flat parameters.

    Args:
        tree: A dict, nested to any depth. Leaves are domains (cotune's, Optuna's, Ray Tune's,
            `{"grid_search": [...]}`); anything else is a constant. So is a mapping of another type without a domain.

    Attributes:
        domains: Domains by flat name ("optimizer/lr").
        constants: Values that are the same for every trial, by flat name.

    Raises:
        SpaceError: The space is empty, a key or a domain is wrong.
    """

    def __init__(self, tree: Mapping[str, Any] | None) -> None:
        if not isinstance(tree, Mapping):
            raise SpaceError(
                f"a search space is a dict, not {shown(tree)}",
                hint="name what is searched: {'lr': cotune.loguniform(1e-5, 1e-1)}",
            )
        if not tree:
            raise SpaceError(
                "the search space is empty: {}",
                hint="name what is searched: {'lr': cotune.loguniform(1e-5, 1e-1)}",
            )
        self.domains: dict[str, Domain] = {}
        self.constants: dict[str, Any] = {}
        self._order: list[str] = []
        try:
            for name, leaf in _leaves(tree, ""):
                self._add(name, leaf)
        except RecursionError:
            raise SpaceError(
                "the search space has no end, or is nested hundreds of times", hint="something in it may hold itself"
            ) from None

    @property
    def is_plain(self) -> bool:
        """Whether every config is made of scalars, lists and dicts only."""
        return not any(self.objects())

    def objects(self) -> Iterator[tuple[str, Any]]:
        """Constants and options that are no plain values, each with its flat name."""
        options = ((name, one) for name, it in self.domains.items() if isinstance(it, Choice) for one in it.options)
        return ((name, value) for name, value in chain(self.constants.items(), options) if not is_plain(value))

    def distributions(self) -> dict[str, BaseDistribution]:
        """The domains as Optuna's distributions, by flat name, for `study.ask()`."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        made: dict[str, BaseDistribution] = {}
        for name, domain in self.domains.items():
            if isinstance(domain, Choice):
                made[name] = CategoricalDistribution(domain.codes.codes)
            elif isinstance(domain, Float):
                step = None if domain.log else domain.step
                made[name] = FloatDistribution(domain.low, domain.high, log=domain.log, step=step)
            else:
                made[name] = IntDistribution(
                    domain.low, domain.high, log=domain.log, step=1 if domain.log else domain.step
                )
        return made

    def config(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The nested config a trainable gets.

        Lists, dicts and sets in it are the space's own, however many configs are made: `apart` copies them.

        Args:
            params: Optuna's parameters, by flat name; names that are not in the space are ignored.

        Raises:
            InputError: A parameter is missing, or is not among a choice's options.
        """
        flat: dict[str, Any] = {}
        for name in self._order:
            flat[name] = self._value(name, params) if name in self.domains else self.constants[name]
        return nested(flat)

    def features(self, params: Mapping[str, Any]) -> dict[str, float]:
        """The features of the regression of memory on hyperparameters: numbers as they are, other choices one-hot.

        Args:
            params: Optuna's parameters, by flat name.

        Raises:
            InputError: A parameter is missing, or is not among a choice's options.
        """
        features: dict[str, float] = {}
        for name, domain in self.domains.items():
            value = self._value(name, params)
            if isinstance(domain, Choice) and not domain.codes.numeric:
                features[f"{name}={params[name]}"] = 1.0
            else:
                features[name] = float(value)
        return features

    def grid(self) -> dict[str, list[Any]]:
        """Every value of every domain, in the form of Optuna's `GridSampler`.

        Raises:
            SpaceError: A domain is continuous, or the grid is too large to enumerate.
        """
        size = self.grid_size()
        if size is not None and size > LARGEST_GRID:
            raise SpaceError(
                f"the grid has {size:,} points, which is more than {LARGEST_GRID:,}",
                hint="use sampler='random', or fewer values per domain",
            )
        grid: dict[str, list[Any]] = {}
        for name, domain in self.domains.items():
            try:
                grid[name] = list(domain.values())
            except SpaceError as error:
                raise SpaceError(f"{name}: {error.message}", hint=error.hint) from None
        return grid

    def grid_size(self) -> int | None:
        """How many configs there are; None if a domain is continuous."""
        size = 1
        for domain in self.domains.values():
            if domain.size is None:
                return None
            size *= domain.size
        return size

    def exact(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Optuna's parameters with numbers as configs have them; options stay codes."""
        return {name: self.rounded(name, value) for name, value in params.items()}

    def rounded(self, name: str, value: Any) -> Any:
        """A parameter on its domain's steps: Optuna's are inexact (0.30000000000000004), and missing on log scales."""
        domain = self.domains[name]
        return value if isinstance(domain, Choice) or not isinstance(value, int | float) else domain.round(value)

    def _add(self, name: str, leaf: Any) -> None:
        try:
            domain = domain_of(leaf)
            if isinstance(domain, Choice):
                _check_options(domain)
        except SpaceError as error:
            raise SpaceError(f"{name}: {error.message}", hint=error.hint) from None
        if domain is not None:
            self.domains[name] = domain
        else:
            _check_constant(name, leaf)
            self.constants[name] = leaf
        self._order.append(name)

    def _value(self, name: str, params: Mapping[str, Any]) -> Any:
        if name not in params:
            raise InputError(
                f"no value for {name!r} among {sorted(params)}",
                hint="the study was made for another space: use a new run name, or the space it began with",
            )
        value = params[name]
        domain = self.domains[name]
        if not isinstance(domain, Choice):
            return self.rounded(name, value)
        try:
            return domain.codes.option[value]
        except (KeyError, TypeError):
            raise InputError(
                f"{name}: {shown(value)} is not one of {list(domain.codes.codes)}",
                hint="the study was made for other options: use a new run name, or the options it began with",
            ) from None


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The config whose leaves have these names ("optimizer/lr")."""
    config: dict[str, Any] = {}
    for name, value in flat.items():
        *path, key = name.split("/")
        branch = config
        for part in path:
            branch = branch.setdefault(part, {})
        branch[key] = value
    return config


def apart(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config with lists, dicts and sets of its own, for code of the user's, which may change them."""
    return {name: apart(value) if type(value) is dict else _copied(value) for name, value in config.items()}


def _copied(value: Any) -> Any:
    if not isinstance(value, list | dict | set):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:
        # Dicts whose items are attributes may answer no question that `copy` asks; `pickle` copies them for each trial.
        return value


def _leaves(tree: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if not isinstance(key, str) or not key or "/" in key:
            raise SpaceError(
                f"the key {key!r}{f' in {prefix[:-1]!r}' if prefix else ''} cannot be part of a name",
                hint="keys are non-empty strings without '/', which joins the names of nested dicts",
            )
        if _is_branch(value):
            yield from _leaves(value, f"{prefix}{key}/")
        else:
            yield prefix + key, value


def _is_branch(value: Any) -> bool:
    # An empty dict has no leaves of its own, and would be lost from the config.
    if not isinstance(value, Mapping) or not value or is_grid_search(value):
        return False
    # Another mapping may be more than its items: it may have a default, or attributes.
    return type(value) is dict or _domain_within(value) is not None


def _check_options(choice: Choice) -> None:
    for option in choice.options:
        if (domain := _domain_within(option)) is not None:
            raise SpaceError(
                f"a domain among the options of a choice would not be searched: {shown(domain)}",
                hint="give it a name of its own beside the choice, or write an Optuna objective (cotune.optimize), "
                "where what is asked may depend on what was answered",
            )


def _check_constant(name: str, value: Any) -> None:
    if (domain := _domain_within(value)) is not None:
        raise SpaceError(
            f"{name}: {shown(domain)} in a {type(value).__name__} would not be searched",
            hint="give it a key of its own, and build the list in the trainable",
        )
    if callable(getattr(type(value), "rvs", None)):
        raise SpaceError(
            f"{name}: a distribution of scipy's would not be searched",
            hint="write cotune.uniform(low, high), or another of its domains",
        )
    if callable(value) and getattr(value, "__module__", "") == Float.__module__:
        raise SpaceError(f"{name}: {value.__name__} itself is no domain", hint=f"call it: cotune.{value.__name__}(...)")


def _is_record(value: Any) -> bool:
    is_made = is_dataclass(value) and not isinstance(value, type)
    return (is_made and domain_of(value) is None) or isinstance(value, SimpleNamespace | Namespace)


def _domain_within(value: Any) -> Any:
    """The first domain inside a constant, or the value itself if it is a domain; None without one."""
    if isinstance(value, Mapping) and not is_grid_search(value):
        inside: Iterable[Any] = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        inside = value
    elif _is_record(value):
        inside = getattr(value, "__dict__", {}).values()
    else:
        return value if domain_of(value) is not None else None
    return next((found for one in inside if (found := _domain_within(one)) is not None), None)
