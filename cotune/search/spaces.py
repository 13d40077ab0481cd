"""The search space: a nested dict of domains and constants, whoever's notation the domains come in.

cotune's own helpers, Optuna distributions and Ray Tune domains are read into the same three classes. Neither
Optuna nor Ray is imported to do so: an object of theirs can only be here if its module is loaded already, so
its class name tells enough, and `import cotune` stays cheap.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from decimal import Decimal
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from cotune.errors import InputError, SpaceError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

# Optuna passes every value through a float, which is exact for integers up to here.
LARGEST_INTEGER = 2**53
LARGEST_GRID = 1_000_000
LABEL_LENGTH = 60


@dataclass(frozen=True)
class Float:
    """Real numbers from `low` to `high`; equal bounds are a single value.

    Args:
        low: The smallest value.
        high: The largest value; with a step, lowered to the last value the steps reach.
        log: Whether values are drawn evenly on a log scale.
        step: Distance between neighbouring values, counted from `low`; None for a continuous domain.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None

    def __post_init__(self) -> None:
        low, high = _real("low", self.low), _real("high", self.high)
        _check_bounds(low, high, self.log)
        if not math.isfinite(high - low):
            raise SpaceError(
                f"the range from {low!r} to {high!r} is too wide for a float",
                hint="use closer bounds, or log=True with positive ones over a smaller range",
            )
        if self.step is not None:
            step = _real("step", self.step)
            _check_step("step", step)
            object.__setattr__(self, "step", step)
            steps = (_exact(high) - _exact(low)) // _exact(step)
            high = float(_exact(low) + steps * _exact(step))
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)

    @property
    def size(self) -> int | None:
        """How many values there are; None if uncountable."""
        if self.step is None:
            return None
        return int((_exact(self.high) - _exact(self.low)) / _exact(self.step)) + 1

    def round(self, value: float) -> float:
        """The domain's value nearest to `value`, for what Optuna draws off the grid."""
        if self.step is None:
            return value
        nearest = _exact(self.low) + round((_exact(value) - _exact(self.low)) / _exact(self.step)) * _exact(self.step)
        return min(max(float(nearest), self.low), self.high)

    def values(self) -> list[float]:
        """Every value, in order.

        Raises:
            SpaceError: The domain is continuous.
        """
        if self.step is None:
            raise SpaceError(
                f"a grid needs countable values, but {self!r} is continuous",
                hint="give it a step with quniform(low, high, q), or list the values with choice([...])",
            )
        low, step = _exact(self.low), _exact(self.step)
        return [float(low + index * step) for index in range(self.size or 0)]


@dataclass(frozen=True)
class Integer:
    """Whole numbers from `low` to `high`, both included; equal bounds are a single value.

    Args:
        low: The smallest value.
        high: The largest value; lowered to the last value the steps reach.
        log: Whether values are drawn evenly on a log scale.
        step: Distance between neighbouring values, counted from `low`.
    """

    low: int
    high: int
    log: bool = False
    step: int = 1

    def __post_init__(self) -> None:
        low, high, step = _whole("low", self.low), _whole("high", self.high), _whole("step", self.step)
        _check_bounds(low, high, self.log)
        _check_step("step", step)
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", low + (high - low) // step * step)
        object.__setattr__(self, "step", step)

    @property
    def size(self) -> int:
        """How many values there are."""
        return (self.high - self.low) // self.step + 1

    def round(self, value: float) -> int:
        """The domain's value nearest to `value`, for what Optuna draws off the grid."""
        nearest = self.low + round((value - self.low) / self.step) * self.step
        return min(max(nearest, self.low), self.high)

    def values(self) -> list[int]:
        """Every value, in order."""
        return list(range(self.low, self.high + 1, self.step))


@dataclass(frozen=True)
class Choice:
    """One of some options, which may be any objects.

    Args:
        options: The options, in an order that is the same in every run.
    """

    options: tuple[Any, ...]

    def __post_init__(self) -> None:
        options = self.options
        if isinstance(options, str | bytes | Mapping | Set) or not isinstance(options, Iterable):
            raise SpaceError(
                f"a choice needs a list of options, not {_shown(options)}",
                hint="list them in a fixed order: choice(['adam', 'sgd'])",
            )
        options = tuple(_builtin(option) for option in options)
        if not options:
            raise SpaceError("a choice without options: []", hint="list at least one: choice(['adam', 'sgd'])")
        object.__setattr__(self, "options", options)

    @property
    def size(self) -> int:
        """How many options there are, repeated ones counted once."""
        return len(_Codes(self.options).option)


Domain = Float | Integer | Choice


def uniform(low: float, high: float) -> Float:
    """A float, evenly from `low` to `high`."""
    _check_order(low, high)
    return Float(low, high)


def loguniform(low: float, high: float) -> Float:
    """A float, evenly on a log scale from `low` to `high`, for learning rates and the like."""
    _check_order(low, high)
    return Float(low, high, log=True)


def quniform(low: float, high: float, q: float) -> Float:
    """A multiple of `q` from `low` to `high`, both included if they are multiples."""
    _check_order(low, high)
    return _quantized_float(low, high, q, log=False)


def qloguniform(low: float, high: float, q: float) -> Float:
    """A multiple of `q` from `low` to `high`, evenly on a log scale before it is rounded."""
    _check_order(low, high)
    return _quantized_float(low, high, q, log=True)


def randint(low: int, high: int) -> Integer:
    """A whole number from `low` to below `high`, as in NumPy and Ray Tune."""
    _check_order(low, high)
    return Integer(low, _whole("high", high) - 1)


def lograndint(low: int, high: int) -> Integer:
    """A whole number from `low` to below `high`, evenly on a log scale."""
    _check_order(low, high)
    return Integer(low, _whole("high", high) - 1, log=True)


def qrandint(low: int, high: int, q: int) -> Integer:
    """A multiple of `q` from `low` to `high`, both included if they are multiples."""
    _check_order(low, high)
    return _quantized_integer(low, high, q, log=False)


def choice(options: Iterable[Any]) -> Choice:
    """One of `options`, which may be any objects; functions and classes are fine."""
    return Choice(options)  # type: ignore[arg-type]  # any iterable is made a tuple there


class Space:
    """A search space, and the way between it and Optuna's flat parameters.

    Args:
        tree: A dict, nested at will. Leaves are domains (cotune's, Optuna's, Ray Tune's,
            `{"grid_search": [...]}`); anything else is a constant.

    Attributes:
        domains: What is searched, by flat name ("optimizer/lr").
        constants: What is the same for every trial, by flat name.

    Raises:
        SpaceError: The space is empty, a key or a domain is wrong.
    """

    def __init__(self, tree: Mapping[str, Any]) -> None:
        if not isinstance(tree, Mapping):
            raise SpaceError(
                f"a search space is a dict, not {_shown(tree)}",
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
        for name, leaf in _leaves(tree, ""):
            try:
                domain = _domain(leaf)
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
        self._codes = {
            name: _Codes(domain.options) for name, domain in self.domains.items() if isinstance(domain, Choice)
        }

    def distributions(self) -> dict[str, BaseDistribution]:
        """The domains as Optuna's distributions, by flat name, for `study.ask()`."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        made: dict[str, BaseDistribution] = {}
        for name, domain in self.domains.items():
            if isinstance(domain, Choice):
                made[name] = CategoricalDistribution(self._codes[name].codes)
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

        Containers are copied, so that a trial that changes its config changes nobody else's.

        Args:
            params: Optuna's parameters, by flat name; names that are not in the space are ignored.

        Raises:
            InputError: A parameter is missing, or is not among a choice's options.
        """
        config: dict[str, Any] = {}
        for name in self._order:
            value = self._value(name, params) if name in self.domains else self.constants[name]
            *path, key = name.split("/")
            branch = config
            for part in path:
                branch = branch.setdefault(part, {})
            branch[key] = copy.deepcopy(value) if isinstance(value, list | dict | set) else value
        return config

    def features(self, params: Mapping[str, Any]) -> dict[str, float]:
        """What a regression of memory on hyperparameters sees: numbers as they are, other choices one-hot.

        Args:
            params: Optuna's parameters, by flat name.

        Raises:
            InputError: A parameter is missing, or is not among a choice's options.
        """
        features: dict[str, float] = {}
        for name in self.domains:
            value = self._value(name, params)
            codes = self._codes.get(name)
            if codes is None or codes.numeric:
                features[name] = float(value)
            else:
                features[f"{name}={params[name]}"] = 1.0
        return features

    def grid(self) -> dict[str, list[Any]]:
        """Every value of every domain, as Optuna's `GridSampler` takes them.

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
            if isinstance(domain, Choice):
                grid[name] = list(self._codes[name].option)
                continue
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

    def __repr__(self) -> str:
        return f"Space(domains={self.domains!r}, constants={self.constants!r})"

    def _value(self, name: str, params: Mapping[str, Any]) -> Any:
        if name not in params:
            raise InputError(
                f"no value for {name!r} among {sorted(params)}",
                hint="the study was made for another space: use a new run name, or the space it began with",
            )
        value = params[name]
        domain = self.domains[name]
        if not isinstance(domain, Choice):
            # Optuna counts steps in binary (0.30000000000000004), and knows none on a log scale.
            return domain.round(value) if domain.step is not None else value
        try:
            return self._codes[name].option[value]
        except (KeyError, TypeError):
            raise InputError(
                f"{name}: {_shown(value)} is not one of {list(self._codes[name].codes)}",
                hint="the study was made for other options: use a new run name, or the options it began with",
            ) from None


class _Codes:
    """What stands for a choice's options in Optuna, whose storages keep only None, bool, int, float and str.

    Options of these types stand for themselves unless two of them are equal but not the same (1, 1.0 and
    True), or one is not equal to itself (NaN). Otherwise every option gets a label, the same one in every
    run.
    """

    def __init__(self, options: tuple[Any, ...]) -> None:
        if _unambiguous(options):
            self.codes = options
        else:
            self.codes = tuple(f"{index}: {_name(option)}" for index, option in enumerate(options))
        self.option: dict[Any, Any] = dict(zip(self.codes, options, strict=True))
        self.numeric = all(type(option) in (int, float) and math.isfinite(option) for option in options)


def _unambiguous(options: tuple[Any, ...]) -> bool:
    seen: dict[Any, str] = {}
    for option in options:
        if type(option) not in (type(None), bool, int, float, str) or option != option:
            return False
        if seen.setdefault(option, repr(option)) != repr(option):
            return False
    return True


def _name(option: Any) -> str:
    """A short name without memory addresses or set order, so that a resumed study knows its options again."""
    name = " ".join(_describe(option).split())
    return name if len(name) <= LABEL_LENGTH else name[: LABEL_LENGTH - 1] + "…"


def _describe(option: Any) -> str:
    kind = type(option)
    if kind is list:
        return f"[{', '.join(map(_describe, option))}]"
    if kind is tuple:
        return f"({', '.join(map(_describe, option))})"
    if kind is dict:
        return f"{{{', '.join(f'{_describe(key)}: {_describe(value)}' for key, value in option.items())}}}"
    if kind in (set, frozenset):
        return f"{{{', '.join(sorted(map(_describe, option)))}}}"
    if callable(option) and isinstance(name := getattr(option, "__name__", None), str):
        return name
    try:
        shown = repr(option)
    except Exception:
        return kind.__name__
    return re.sub(r" at 0x[0-9a-fA-F]+", "", shown)


def _leaves(tree: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if not isinstance(key, str) or not key or "/" in key:
            raise SpaceError(
                f"the key {key!r}{f' in {prefix[:-1]!r}' if prefix else ''} cannot be part of a name",
                hint="keys are non-empty strings without '/', which joins the names of nested dicts",
            )
        # An empty dict has no leaves of its own, and would be lost from the config.
        if isinstance(value, Mapping) and value and not _is_grid_search(value):
            yield from _leaves(value, f"{prefix}{key}/")
        else:
            yield prefix + key, value


def _is_grid_search(value: Any) -> bool:
    return isinstance(value, Mapping) and set(value) == {"grid_search"}


def _domain(leaf: Any) -> Domain | None:
    """The leaf as one of our domains; None for a constant."""
    if isinstance(leaf, Float | Integer | Choice):
        return leaf
    if _is_grid_search(leaf):
        return Choice(leaf["grid_search"])
    names = {base.__name__: base.__module__ for base in type(leaf).__mro__}
    if any(module.startswith("optuna.") for module in names.values()):
        return _from_optuna(leaf, names)
    if any(module.startswith("ray.tune.search.sample") for module in names.values()):
        return _from_ray(leaf, names)
    return None


def _check_options(choice: Choice) -> None:
    for option in choice.options:
        leaves = option.values() if isinstance(option, Mapping) else [option]
        domain = next((leaf for leaf in leaves if _domain(leaf) is not None), None)
        if domain is not None:
            raise SpaceError(
                f"a domain among the options of a choice would not be searched: {_shown(domain)}",
                hint="give it a name of its own beside the choice, or write an Optuna objective (cotune.optimize), "
                "where what is asked may depend on what was answered",
            )


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
        return _quantized_float(leaf.lower, leaf.upper, q, log=log)
    if q is None or q == 1:  # Ray's upper bound is included only where there is a q other than 1
        return Integer(leaf.lower, _whole("high", leaf.upper) - 1, log=log)
    return _quantized_integer(leaf.lower, leaf.upper, q, log=log)


def _is_a(value: Any, *names: str) -> bool:
    return any(base.__name__ in names for base in type(value).__mro__)


def _quantized_float(low: float, high: float, q: float, *, log: bool) -> Float:
    low, high, q = _real("low", low), _real("high", high), _real("q", q)
    _check_bounds(low, high, log)
    _check_step("q", q)
    first = (_exact(low) / _exact(q)).to_integral_value("ROUND_CEILING")
    last = (_exact(high) / _exact(q)).to_integral_value("ROUND_FLOOR")
    _check_multiples(first <= last, low, high, q)
    return Float(float(first * _exact(q)), float(last * _exact(q)), log=log, step=q)


def _quantized_integer(low: int, high: int, q: int, *, log: bool) -> Integer:
    low, high, q = _whole("low", low), _whole("high", high), _whole("q", q)
    _check_bounds(low, high, log)
    _check_step("q", q)
    first, last = -(-low // q), high // q
    _check_multiples(first <= last, low, high, q)
    return Integer(first * q, last * q, log=log, step=q)


def _check_multiples(there: bool, low: float, high: float, q: float) -> None:
    if not there:
        raise SpaceError(
            f"there is no multiple of q={q!r} from {low!r} to {high!r}",
            hint="use a smaller q or wider bounds",
        )


def _check_order(low: Any, high: Any) -> None:
    """What a helper refuses and a class does not: bounds written down that leave nothing to search."""
    if _real("low", low) >= _real("high", high):
        raise SpaceError(
            f"low={low!r} is not below high={high!r}",
            hint="swap the bounds, or use the plain value instead of a domain if there is only one",
        )


def _check_bounds(low: float, high: float, log: bool) -> None:
    if low > high:
        raise SpaceError(f"low={low!r} is above high={high!r}", hint="swap the bounds")
    if log and low <= 0:
        raise SpaceError(
            f"low={low!r} is not positive, and a log scale has no place for it",
            hint="use a small positive bound such as 1e-6, or no log scale",
        )


def _check_step(name: str, step: float) -> None:
    if step <= 0:
        raise SpaceError(f"{name}={step!r} is not positive", hint="a step is the distance between two values")


def _check_constant(name: str, value: Any) -> None:
    if isinstance(value, list | tuple | set | frozenset):
        for element in value:
            if _domain(element) is not None:
                raise SpaceError(
                    f"{name}: {_shown(element)} in a {type(value).__name__} would not be searched",
                    hint="give it a key of its own, and build the list in the trainable",
                )
            _check_constant(name, element)


def _real(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise SpaceError(f"{name}={_shown(value)} is not a finite number", hint="pass a plain number")
    return float(value)


def _whole(name: str, value: Any) -> int:
    number = _real(name, value)
    if not isinstance(value, Integral) and not number.is_integer():
        raise SpaceError(f"{name}={value!r} is not a whole number", hint="use uniform() or quniform() for floats")
    if abs(number) > LARGEST_INTEGER:
        raise SpaceError(
            f"{name}={value!r} is beyond 2**53, where samplers are no longer exact",
            hint="search its logarithm or its quotient, and compute the number in the trainable",
        )
    return int(value)


def _builtin(value: Any) -> Any:
    """NumPy scalars as Python's own, which a study can store; anything else as it is."""
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and type(value).__name__ != "ndarray":
        return value.item()
    return value


def _exact(value: float) -> Decimal:
    """The decimal number somebody typed: counting steps of 0.1 in binary is off after three of them."""
    return Decimal(repr(float(value)))


def _shown(value: Any) -> str:
    return f"{_name(value)!s} ({type(value).__name__})"
