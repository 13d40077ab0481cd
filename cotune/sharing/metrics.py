"""Reading what a trainable reports: plain values for the events file, one number for the search."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from cotune.errors import MetricError, UnknownMetric

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_PLAIN = (float, int, str, bool, type(None))


def plain(name: str, value: Any) -> Any:
    """A number, string, boolean or None for what was reported; one-element arrays and tensors give their number.

    Raises:
        MetricError: It is none of these.
    """
    if type(value) in _PLAIN:
        return value
    item = getattr(value, "item", None)
    if item is not None and getattr(value, "size", 1) != 0:
        try:
            value = item()
        except (ValueError, RuntimeError, TypeError):
            shape = tuple(getattr(value, "shape", ()))
            raise MetricError(
                f"metric {name!r} has shape {shape}, not one number", hint="report a mean, or one metric per entry"
            ) from None
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    raise MetricError(
        f"metric {name!r} is a {type(value).__name__}: {str(value)[:80]}",
        hint="report numbers, strings, booleans or None; save anything else in a checkpoint",
    )


def number(name: str, value: Any) -> float:
    """The run's metric as a finite number.

    Raises:
        MetricError: It is NaN, infinite or no number.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise MetricError(f"metric {name!r} is {value!r}, not a number", hint="report a float for the metric tuned")
    if math.isnan(value) or math.isinf(value):
        raise MetricError(
            f"metric {name!r} is {value}: the trial diverged",
            hint="narrow the search space (often the learning rate), or report a large finite value instead",
        )
    return float(value)


def read_report(
    metrics: Mapping[str, Any], metric: str, is_first: bool, trial: int, step: int, time: float
) -> tuple[float, bytes]:
    """Checks a report and writes it down.

    Returns:
        The run's metric, NaN if a later report leaves it out; and the report as a line of the events file.

    Raises:
        MetricError: See `plain` and `number`.
        UnknownMetric: The first report of a trial does not carry the metric.
    """
    if not isinstance(metrics, Mapping):
        raise MetricError(f"report() got {metrics!r}", hint="report a dict, such as report({'loss': 0.1})")
    if step < 0:
        raise MetricError(f"report() got step={step}", hint="count steps from 0 or 1 upwards")
    values = {str(name): plain(str(name), value) for name, value in metrics.items()}
    if metric in values:
        value = number(metric, values[metric])
    elif is_first:
        raise UnknownMetric(
            f"metric={metric!r} is not in the first report, which has {', '.join(map(repr, values)) or 'nothing'}",
            hint=f"pass metric= one of the names reported, or report {metric!r}",
        )
    else:
        value = math.nan
    line = f'{{"event":"report","time":{time:.6f},"trial":{trial},"step":{step},"metrics":{_encode(values)}}}\n'
    return value, line.encode()
