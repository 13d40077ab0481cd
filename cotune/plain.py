"""Values that mean the same in every process, and need nothing but themselves to travel."""

from __future__ import annotations

from typing import Any

SCALARS = (float, int, str, bool, type(None))


def is_plain(value: Any) -> bool:
    """Whether a value is a scalar of Python's own, or a list, tuple or dict of such."""
    kind = type(value)
    if kind is dict:
        return all(map(is_plain, value)) and all(map(is_plain, value.values()))
    return kind in SCALARS or ((kind is tuple or kind is list) and all(map(is_plain, value)))
