"""Plain values, which mean the same in every process and which pickle needs no import for; and numbers as floats."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

SCALARS = (float, int, str, bool, type(None))


def is_plain(value: Any) -> bool:
    """Whether a value is a built-in scalar, or a list, tuple or dict of plain values."""
    kind = type(value)
    if kind is dict:
        return all(map(is_plain, value)) and all(map(is_plain, value.values()))
    return kind in SCALARS or ((kind is tuple or kind is list) and all(map(is_plain, value)))


def real(value: Any) -> float:
    """A number as a float: infinite if it is beyond all floats, not a number if it is none (as a bool is)."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number:
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except TypeError:
        # numpy's timedelta64 counts among its integers.
        return math.nan
