"""Features of a Ray Tune config that may explain how much memory a trial needs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any


def features(config: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The features of the regression of memory on hyperparameters: numbers as they are, short strings one-hot."""
    found: dict[str, float] = {}
    for name, value in config.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            found |= features(value, f"{path}/")
        elif isinstance(value, str):
            if len(value) <= 64:
                found[f"{path}={value}"] = 1.0
        else:
            # A user's class may raise any error when it is converted to a number.
            with contextlib.suppress(Exception):
                if hasattr(value, "__float__"):
                    found[path] = float(value)
    return found
