"""How many lanes should run at once on a device: tried, measured, kept or taken back."""

from __future__ import annotations

from dataclasses import dataclass, field

GAIN = 1.05
SAMPLES = 2
PATIENCE = 16


@dataclass(slots=True)
class _Speed:
    """Iterations and the time they took, per trial, at one width."""

    count: int = 0
    seconds: float = 0.0
    samples: int = 0

    def add(self, count: int, seconds: float) -> None:
        self.count += count
        self.seconds += seconds
        self.samples += 1

    @property
    def step_seconds(self) -> float:
        return self.seconds / max(self.count, 1)


@dataclass(slots=True)
class WidthControl:
    """Raises the width one lane at a time while the sum of normalised speeds grows by more than 5%.

    A trial's speed is normalised by its own before the change, so unequal trials can be added up (Gandiva,
    OSDI'18, section 4.2, keeps a packing by the same test). Where no trial lived through the change, the mean step
    time of the trials of either width stands in. The first guess is Horus's (TPDS'21): as many lanes as the
    measured utilisation of one trial leaves room for.

    Attributes:
        limit: Never more lanes than this.
        fixed: The user's choice, or None to search.
        width: Lanes that may run at once now.
    """

    limit: int
    fixed: int | None = None
    width: int = 1
    _guessed: bool = False
    _trying: bool = False
    _now: dict[int, _Speed] = field(default_factory=dict)
    _before: dict[int, _Speed] = field(default_factory=dict)
    _hold: int = 0
    _refusals: int = 0

    def __post_init__(self) -> None:
        if self.fixed is not None:
            self.width = self.limit = self.fixed

    def guess(self, busy: float | None) -> None:
        """Sets the width from what one trial alone used of the device; only the first call counts."""
        if self.fixed is not None or self._guessed:
            return
        self._guessed = True
        if busy is not None and busy > 0:
            self._change(max(1, min(self.limit, round(1.0 / busy))))

    def measured(self, trial: int, count: int, seconds: float, active: int) -> None:
        """Notes the speed of a trial while `active` lanes ran; only full width tells anything."""
        if self.fixed is None and active == self.width and count > 0:
            self._now.setdefault(trial, _Speed()).add(count, seconds)

    def review(self, active: int, waiting: bool) -> bool:
        """Decides on the width; True if it changed.

        Args:
            active: Lanes running now.
            waiting: Whether a trial would use another lane.
        """
        if self.fixed is not None or not self._guessed:
            return False
        ready = sum(min(speed.samples, SAMPLES) for speed in self._now.values()) >= SAMPLES * self.width
        if self._trying:
            if not ready:
                return False
            self._trying = False
            if self._gain() > GAIN:
                self._refusals = 0
                return False
            self._refusals += 1
            self._hold = PATIENCE * 2**self._refusals
            self._change(self.width - 1)
            return True
        if self._hold > 0:
            self._hold -= 1
            return False
        if waiting and ready and active == self.width < self.limit:
            self._before = self._now
            self._change(self.width + 1)
            self._trying = True
            return True
        return False

    def _change(self, width: int) -> None:
        self.width = width
        self._now = {}

    def _gain(self) -> float:
        """Sum of normalised speeds now, over that of one lane less."""
        common = [
            self._before[trial].step_seconds / speed.step_seconds
            for trial, speed in self._now.items()
            if trial in self._before and speed.step_seconds > 0
        ]
        if not common:
            before, now = (_mean([s.step_seconds for s in speeds.values()]) for speeds in (self._before, self._now))
            common = [before / now] if now > 0 else [1.0]
        return _mean(common) * self.width / (self.width - 1)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
