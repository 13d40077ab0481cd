"""Reads a trainable's reports: plain values for the events file, one number for the search."""

from __future__ import annotations

import contextlib
import json
import math
import operator
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from cotune.errors import MetricError, UnknownMetric
from cotune.plain import SCALARS

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
MOST_ELEMENTS = 1000
# Limits of every reader of the events file, even if a trial has lifted its own (bits of an integer, depth of lists).
MOST_BITS = 2000
MOST_NESTED = 50


def plain(name: str, value: Any, depth: int = 0) -> Any:
    """Converts a reported value to what JSON knows: numbers, strings, booleans, None, and lists of these.

    Arrays and tensors become a number if they have one element, and a list of up to `MOST_ELEMENTS` otherwise.

    Raises:
        MetricError: The value is none of these, or is too large.
    """
    if type(value) in SCALARS:
        if type(value) is int and value.bit_length() > MOST_BITS:
            raise MetricError(f"metric {name!r} is an integer of {value.bit_length():,} bits", hint="report a float")
        return value
    if depth > MOST_NESTED:
        raise MetricError(f"metric {name!r} has lists in lists, {MOST_NESTED} deep", hint="save it in a checkpoint")
    if _is_odd(value):
        raise _refused(name, value)
    shape = getattr(value, "shape", None)
    if shape is not None and math.prod(shape) != 1:
        return _listed(name, value, tuple(shape))
    if type(value).__module__.startswith("numpy.ma"):
        # None if it is masked, where item() gives the number under the mask.
        value = value.reshape(()).tolist()
        if value is None:
            return None
    elif hasattr(value, "item"):
        value = value.item()
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            # Not str(value): an enum's members and others say something else there.
            return plain(name, str.__str__(value) if kind is str else kind(value))
    if isinstance(value, (list, tuple)):
        return [plain(name, element, depth + 1) for element in value]
    if hasattr(type(value), "__float__"):
        # For Decimal and Fraction, say; numpy's and torch's values have been converted above.
        with contextlib.suppress(Exception):
            return float(value)
    raise _refused(name, value)


def _refused(name: str, value: Any) -> MetricError:
    return MetricError(
        f"metric {name!r} is a {type(value).__name__}: {str(value)[:80]}",
        hint="report numbers, strings, booleans, None or lists of these; save anything else in a checkpoint",
    )


def _is_odd(value: Any) -> bool:
    """Whether a value is a tensor that torch cannot list: nested, or sparse with several elements."""
    kind = getattr(sys.modules.get("torch"), "Tensor", ())
    if not isinstance(value, kind):
        return False
    return bool(value.is_nested or (value.numel() != 1 and str(value.layout) != "torch.strided"))


def _listed(name: str, value: Any, shape: tuple[int, ...]) -> Any:
    if not hasattr(value, "tolist"):
        # Such as a data frame.
        raise _refused(name, value)
    if math.prod(shape) > MOST_ELEMENTS:
        raise MetricError(
            f"metric {name!r} has shape {shape}, more than {MOST_ELEMENTS:,} numbers",
            hint="report a mean, or save it in a checkpoint",
        )
    return plain(name, value.tolist())


def flat(metrics: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested metrics by path ("eval/accuracy"), as in Ray's own loggers."""
    for name, value in metrics.items():
        if type(value) not in SCALARS and isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


def is_number(value: object) -> bool:
    """Whether a value can be reported as a number."""
    if isinstance(value, bool):
        return False
    if hasattr(value, "item"):
        return not _is_odd(value) and math.prod(getattr(value, "shape", ())) == 1
    return hasattr(type(value), "__float__")


def number(name: str, value: Any) -> float:
    """The run's metric as a finite number.

    Raises:
        MetricError: The value is NaN, infinite or no number.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise MetricError(
            f"metric {name!r} is {repr(value)[:80]}, not a number", hint="report a float for the metric tuned"
        )
    try:
        finite = float(value)
    except OverflowError:
        finite = math.inf
    if not math.isfinite(finite):
        raise MetricError(
            f"metric {name!r} is {finite}: the trial diverged",
            hint="narrow the search space (often the learning rate), or report a large finite value instead",
        )
    return finite


def whole_step(step: Any) -> int:
    """The step of a report.

    Raises:
        MetricError: The step is no whole number of at least 0.
    """
    try:
        number = int(step) if isinstance(step, float) and step.is_integer() else operator.index(step)
    except TypeError:
        number = -1
    if not 0 <= number < 2**63:
        raise MetricError(f"report() got step={step!r}", hint="count steps in whole numbers, from 0 or 1 upwards")
    return number


def plain_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a report by name, or by path where they are nested; see `plain`.

    Raises:
        MetricError: They are no mapping, a value cannot be stored, or two have the same path.
    """
    if not isinstance(metrics, Mapping):
        raise MetricError(f"report() got {metrics!r}", hint="report a dict, such as report({'loss': 0.1})")
    told = list(flat(metrics))
    values = {name: plain(name, value) for name, value in told}
    if len(values) < len(told):
        twice = Counter(name for name, _ in told).most_common(1)[0][0]
        raise MetricError(f"metric {twice!r} is reported twice in one report", hint="give one of them another name")
    return values


def read_report(
    metrics: Mapping[str, Any], metric: str, is_first: bool, trial: int, step: int, time: float
) -> tuple[float, dict[str, Any], bytes]:
    """Checks a report and encodes it.

    Returns:
        The run's metric, NaN if a later report leaves it out; all metrics; and the report as a line of the events file.

    Raises:
        MetricError: See `plain_metrics` and `number`.
        UnknownMetric: A trial's first report lacks the metric.
    """
    values = plain_metrics(metrics)
    if metric in values:
        value = number(metric, values[metric])
    elif is_first:
        raise UnknownMetric(
            f"metric={metric!r} is not in the first report, which has {', '.join(map(repr, values)) or 'nothing'}",
            hint=f"pass metric= one of the names reported, or report {metric!r}; only later reports may leave it out",
        )
    else:
        value = math.nan
    return value, values, _line(trial, step, values, time)


def number_line(trial: int, step: int, value: float, time: float) -> bytes:
    """A report of one number, in a run without a metric, as a line of the events file; null if it is not finite."""
    return _line(trial, step, {"value": value if math.isfinite(value) else None}, time)


def _line(trial: int, step: int, values: Mapping[str, Any], time: float) -> bytes:
    line = f'{{"event":"report","time":{time:.6f},"trial":{trial},"step":{step},"metrics":{_encode(values)}}}\n'
    # A lone surrogate, as in a file name that is not UTF-8, becomes its ASCII escape.
    return line.encode(errors="backslashreplace")
