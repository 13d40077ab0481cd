"""Domains, from which a hyperparameter is drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from numbers import Integral
from typing import Any

from cotune.errors import SpaceError
from cotune.plain import real
from cotune.search.codes import Codes, shown

# Optuna passes every value through a float, which is exact for integers up to here.
LARGEST_INTEGER = 2**53
# Steps are counted in decimal numbers of 28 digits, by Optuna as well.
MOST_STEPS = 1e27


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
            if (high - low) / step > MOST_STEPS:
                raise SpaceError(
                    f"steps of {step!r} from {low!r} to {high!r} are too many to be counted",
                    hint="use larger steps, or uniform() or loguniform(), which have none",
                )
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
        low, high, step = whole("low", self.low), whole("high", self.high), whole("step", self.step)
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
    """One of several options, which may be any objects.

    Args:
        options: The options, in an order that is the same in every run.
    """

    options: tuple[Any, ...]

    def __post_init__(self) -> None:
        options = self.options
        if isinstance(options, str | bytes | Mapping | Set) or not isinstance(options, Iterable):
            raise SpaceError(
                f"a choice needs a list of options, not {shown(options)}",
                hint="list them in a fixed order: choice(['adam', 'sgd'])",
            )
        options = tuple(_builtin(option) for option in options)
        if not options:
            raise SpaceError("a choice without options: []", hint="list at least one: choice(['adam', 'sgd'])")
        object.__setattr__(self, "options", options)

    @cached_property
    def codes(self) -> Codes:
        """The codes of the options in Optuna."""
        return Codes(self.options)

    @property
    def size(self) -> int:
        """How many options there are, repeated ones counted once."""
        return len(self.codes.option)

    def values(self) -> list[Any]:
        """The codes of all options, in order."""
        return list(self.codes.option)


Domain = Float | Integer | Choice


def uniform(low: float, high: float) -> Float:
    """A float, evenly from `low` to `high`.

    Raises:
        SpaceError: `low` is not below `high`, or one is no finite number.
    """
    _check_order(low, high)
    return Float(low, high)


def loguniform(low: float, high: float) -> Float:
    """A float, evenly on a log scale from `low` to `high`, for learning rates and the like.

    Raises:
        SpaceError: `low` is not below `high`, is not positive, or one is no finite number.
    """
    _check_order(low, high)
    return Float(low, high, log=True)


def quniform(low: float, high: float, q: float) -> Float:
    """A multiple of `q` from `low` to `high`, both included if they are multiples.

    Raises:
        SpaceError: `low` is not below `high`, or `q` has no multiple between them.
    """
    _check_order(low, high)
    return quantized_float(low, high, q, log=False)


def qloguniform(low: float, high: float, q: float) -> Float:
    """A multiple of `q` from `low` to `high`, evenly on a log scale before it is rounded.

    Raises:
        SpaceError: `low` is not below `high`, is not positive, or `q` has no multiple between them.
    """
    _check_order(low, high)
    return quantized_float(low, high, q, log=True)


def randint(low: int, high: int) -> Integer:
    """A whole number from `low` to below `high`, as in NumPy and Ray Tune.

    Raises:
        SpaceError: `low` is not below `high`, or one is no whole number.
    """
    _check_order(low, high)
    return Integer(low, whole("high", high) - 1)


def lograndint(low: int, high: int) -> Integer:
    """A whole number from `low` to below `high`, evenly on a log scale.

    Raises:
        SpaceError: `low` is not below `high`, is not positive, or one is no whole number.
    """
    _check_order(low, high)
    return Integer(low, whole("high", high) - 1, log=True)


def qrandint(low: int, high: int, q: int) -> Integer:
    """A multiple of `q` from `low` to `high`, both included if they are multiples.

    Raises:
        SpaceError: `low` is not below `high`, or `q` has no multiple between them.
    """
    _check_order(low, high)
    return quantized_integer(low, high, q, log=False)


def choice(options: Iterable[Any]) -> Choice:
    """One of `options`, which may be any objects; functions and classes are fine.

    Raises:
        SpaceError: There are no options, or they have no fixed order.
    """
    return Choice(options)  # type: ignore[arg-type]  # any iterable is made a tuple there


def quantized_float(low: float, high: float, q: float, *, log: bool) -> Float:
    first, last = _multiples(_real("low", low), _real("high", high), step := _real("q", q), log)
    return Float(float(first), float(last), log=log, step=step)


def quantized_integer(low: int, high: int, q: int, *, log: bool) -> Integer:
    first, last = _multiples(whole("low", low), whole("high", high), step := whole("q", q), log)
    return Integer(int(first), int(last), log=log, step=step)


def _multiples(low: float, high: float, q: float, log: bool) -> tuple[Decimal, Decimal]:
    """The least and the largest multiple of `q` between two bounds."""
    _check_bounds(low, high, log)
    _check_step("q", q)
    step = _exact(q)
    first = (_exact(low) / step).to_integral_value("ROUND_CEILING")
    last = (_exact(high) / step).to_integral_value("ROUND_FLOOR")
    if first > last:
        raise SpaceError(
            f"there is no multiple of q={q!r} from {low!r} to {high!r}",
            hint="use a smaller q or wider bounds",
        )
    return first * step, last * step


def _check_order(low: Any, high: Any) -> None:
    """Refuses bounds that leave nothing to search; the domain classes accept equal bounds."""
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


def _real(name: str, value: Any) -> float:
    number = real(value)
    if not math.isfinite(number):
        raise SpaceError(f"{name}={shown(value)} is not a finite number", hint="pass a plain number")
    return number


def whole(name: str, value: Any) -> int:
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
    """Converts NumPy scalars to Python's, which a study can store; returns anything else as it is."""
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and type(value).__name__ != "ndarray":
        return value.item()
    return value


def _exact(value: float) -> Decimal:
    """The decimal number as the user typed it: counting steps of 0.1 in binary is off after three of them."""
    return Decimal(repr(float(value)))
