"""Which trials are estimated before they run: the first ones, and more if estimating is cheap next to running."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cotune.engines.base import Engine
from cotune.trial import Estimated

FAILURES = 3
# Until so many trials have run, trials are estimated whatever it costs.
FIRST = 16
# Most that an estimate may take, as a share of a trial's seconds.
SHARE = 0.1


class Estimates:
    """Holds the trials that wait for their estimates, which are made one at a time.

    Args:
        engine: Makes the estimates, if it can.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._line: dict[int, Mapping[str, Any]] = {}
        self._current: int | None = None
        self._failures = 0
        self._trials = _Mean()
        self._estimates = _Mean()

    def __len__(self) -> int:
        return len(self._line)

    @property
    def are_wanted(self) -> bool:
        """Whether a trial should wait for an estimate: the engine makes them, and they are cheap enough."""
        affordable = self._trials.count < FIRST or self._estimates.value <= SHARE * self._trials.value
        return self._engine.can_estimate and self._failures < FAILURES and affordable

    def ask(self, trial: int, config: Mapping[str, Any]) -> bool:
        """Asks for an estimate; True if the trial should wait for it."""
        if not self.are_wanted:
            return False
        self._line[trial] = config
        self._next()
        return True

    def heard(self, told: Estimated) -> list[int]:
        """Takes in an estimate, or the reason why there is none; returns the trials that need not wait any longer.

        A failure releases all waiting trials: what failed for one may well fail for all, and slowly.
        """
        self._current = None
        self._failures = 0 if told.estimate else self._failures + 1
        self._estimates.add(told.seconds)
        if told.estimate is None or not self.are_wanted:
            return self.release()
        waited = self._line.pop(told.trial, None) is not None
        self._next()
        return [told.trial] if waited else []

    def ran(self, seconds: float) -> list[int]:
        """Takes in how long a trial ran; returns the trials that need not wait any longer."""
        self._trials.add(seconds)
        return [] if self.are_wanted else self.release()

    def release(self) -> list[int]:
        """Releases all waiting trials, and returns them."""
        waiting, self._line = list(self._line), {}
        return waiting

    def _next(self) -> None:
        if self._current is None and self._line:
            self._current, config = next(iter(self._line.items()))
            self._engine.estimate(self._current, config)


class _Mean:
    def __init__(self) -> None:
        self.count = 0
        self.value = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.value += (value - self.value) / self.count
