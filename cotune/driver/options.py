"""What a sweep runs until, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cotune.results import TrialResult


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """What a sweep runs until, and how.

    Attributes:
        kind: Name of the trainable.
        metric: What is tuned; empty where only the search knows.
        trials: How many; None for no limit.
        time_budget: Seconds after which running trials are interrupted; None for no limit.
        lockstep: Ask for a trial only when it can start.
        is_blind: The sampler's suggestions do not depend on results.
        callbacks: Called with the result of each trial that is over.
        priority: Of a config.
        max_steps: Iterations to its end, of a config.
    """

    kind: str
    metric: str
    trials: int | None
    time_budget: float | None
    lockstep: bool
    is_blind: bool = False
    callbacks: Sequence[Callable[[TrialResult], Any]] = ()
    priority: Callable[[Mapping[str, Any]], float] = lambda config: 0.0
    max_steps: Callable[[Mapping[str, Any]], int | None] = lambda config: None
