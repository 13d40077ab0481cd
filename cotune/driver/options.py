"""The options of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cotune.results import TrialResult


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """When a sweep ends, and how it runs.

    Attributes:
        kind: Name of the trainable.
        metric: The tuned metric; empty where only the search knows.
        trials: Number of trials; None for no limit.
        time_budget: Seconds after which running trials are interrupted; None for no limit.
        lockstep: Whether to ask for a trial only when it can start.
        is_blind: Whether the sampler's suggestions do not depend on results.
        callbacks: Called with the result of each trial that has ended.
        priority: Gives a config's priority.
        max_steps: Gives the iterations of a config's trial; None if unknown.
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
