"""The codes that represent the options of a choice in Optuna."""

from __future__ import annotations

import math
import re
from typing import Any

LABEL_LENGTH = 60


class Codes:
    """The codes of a choice's options in Optuna, whose storages keep only None, bool, int, float and str.

    Options of these types are their own codes unless two of them are equal but not the same (1, 1.0 and
    True), or one is not equal to itself (NaN). Otherwise every option's code is a label, the same one in
    every run.
    """

    def __init__(self, options: tuple[Any, ...]) -> None:
        if _unambiguous(options):
            self.codes = options
        else:
            self.codes = tuple(f"{index}: {_name(option)}" for index, option in enumerate(options))
        self.option: dict[Any, Any] = dict(zip(self.codes, options, strict=True))
        self.numeric = all(type(option) in (int, float) and _is_finite(option) for option in options)


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:
        # An integer too large for a float.
        return False


def shown(value: Any) -> str:
    return f"{_name(value)!s} ({type(value).__name__})"


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
