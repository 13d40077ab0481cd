"""Values that mean the same in every process, and that pickle needs no import for."""

from __future__ import annotations

from typing import Any

SCALARS = (float, int, str, bool, type(None))


def is_plain(value: Any) -> bool:
    """Whether a value is a built-in scalar, or a list, tuple or dict of plain values."""
    kind = type(value)
    if kind is dict:
        return all(map(is_plain, value)) and all(map(is_plain, value.values()))
    return kind in SCALARS or ((kind is tuple or kind is list) and all(map(is_plain, value)))
