"""The rule for when a trial is done early: `stop=` of `cotune.run`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from cotune.errors import InputError, UnknownMetric
from cotune.trainable import takes

REPORTS = "training_iteration"

_HINT = (
    f"name reported metrics and the value at which a trial ends, such as stop={{'accuracy': 0.95, {REPORTS!r}: 50}} "
    "(which is the number of reports), or pass a function of the trial's number and what it has reported"
)


@dataclass(frozen=True, slots=True)
class StopRule:
    """Decides whether a report is a trial's last.

    Attributes:
        bounds: Metrics to values at or above which they end the trial; True counts as 1.
        func: Called as well, with the trial's number and the report's metrics.
    """

    bounds: Mapping[str, float] = field(default_factory=dict)
    func: Callable[[int, dict[str, Any]], Any] | None = None

    def is_met(self, trial: int, metrics: Mapping[str, Any], reports: int) -> bool:
        """Whether this report is the last one.

        Args:
            trial: The trial's number.
            metrics: The report's metrics.
            reports: Reports made by the trial, this one included.

        Raises:
            UnknownMetric: The first report lacks a metric that has a bound.
            InputError: The function raised.
        """
        known = {REPORTS: reports, **metrics}
        for name, bound in self.bounds.items():
            value = known.get(name)
            if isinstance(value, (int, float)) and value >= bound:
                return True
            if reports == 1 and name not in known:
                raise UnknownMetric(
                    f"stop= names {name!r}, which is not in the first report: that has {', '.join(map(repr, known))}",
                    hint=f"name one of these, or report {name!r}",
                )
        try:
            return self.func is not None and bool(self.func(trial, known))
        except Exception as error:
            raise InputError(
                f"stop= raised {type(error).__name__} for {known!r}: {error}",
                hint="it is called with the number of the trial and what it has reported",
            ) from error


def checked_stop(stop: Any, minimized: str = "") -> StopRule | None:
    """The rule that `stop=` stands for.

    Args:
        stop: The argument as passed.
        minimized: The tuned metric, if it is minimized.

    Raises:
        InputError: The argument is not a valid rule.
    """
    if stop is None:
        return None
    if hasattr(stop, "stop_all"):
        raise InputError(
            f"stop={stop!r} is a Stopper of Ray Tune, which has to see all trials in one process",
            hint="pass a dict or a function of one trial here, or use Ray Tune and cotune.colocate()",
        )
    if isinstance(stop, Mapping):
        for name, bound in stop.items():
            is_number = isinstance(bound, Real) and bound == bound
            if not isinstance(name, str) or not is_number:
                raise InputError(f"stop={stop!r} has {name!r}: {bound!r}, which is no name with a number", hint=_HINT)
        if minimized in stop:
            bound = stop[minimized]
            raise InputError(
                f"stop={stop!r} would end trials whose {minimized!r} is {bound!r} or more, and mode='min' is for less",
                hint=f"pass a function, such as stop=lambda trial, metrics: metrics[{minimized!r}] <= {bound!r}",
            )
        return StopRule(bounds=dict(stop))
    if not takes(stop, 2):
        raise InputError(f"stop={stop!r} is no dict and no function of two arguments", hint=_HINT)
    return StopRule(func=stop)
