"""How many lanes should run at once on a device: tried, measured, kept or taken back."""

from __future__ import annotations

from dataclasses import dataclass, field

GAIN = 1.05
SAMPLES = 2
PATIENCE = 16


@dataclass(slots=True)
class Speed:
    """Iterations of a trial and the time they took, in seconds, under one arrangement."""

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
        gain: By what factor one lane more must raise the sum of speeds.
        guesses: Whether the utilisation of one trial says where to begin.
        width: Lanes that may run at once now; at the limit from the beginning where the user has chosen it.
    """

    limit: int
    gain: float = GAIN
    guesses: bool = True
    width: int = 1
    _guessed: bool = False
    _trying_from: int = 0
    _now: dict[int, Speed] = field(default_factory=dict)
    _before: dict[int, Speed] = field(default_factory=dict)
    _hold: int = 0
    _refusals: int = 0

    def guess(self, busy: float | None) -> None:
        """Tries the width that leaves no room, by what one trial alone used of the device; only once."""
        if not self.guesses or self._guessed or self._trying_from or not busy:
            return
        self._guessed = True
        self._try(max(1, min(self.limit, round(1.0 / busy))))

    def widen(self) -> None:
        """Tries a second lane though nothing was ever measured: what runs in the first comes to no iteration."""
        if self.width == 1 < self.limit and not self._now and not self._refusals:
            self._try(2)

    def measured(self, trial: int, count: int, seconds: float, active: int) -> None:
        """Notes the speed of a trial while `active` lanes ran; only full width tells anything."""
        may_move = self._trying_from or self.width < self.limit
        if may_move and active == self.width and count > 0:
            self._now.setdefault(trial, Speed()).add(count, seconds)
            if len(self._now) > 4 * self.limit:
                del self._now[next(iter(self._now))]

    def review(self, active: int, waiting: bool) -> None:
        """Decides on the width.

        Args:
            active: Lanes running now.
            waiting: Whether a trial would use another lane.
        """
        if self._trying_from:
            if self._is_ready():
                self._judge()
        elif self._hold > 0:
            self._hold -= 1
        elif waiting and active == self.width < self.limit and self._is_ready():
            self._try(self.width + 1)

    def _is_ready(self) -> bool:
        return sum(min(speed.samples, SAMPLES) for speed in self._now.values()) >= SAMPLES * self.width

    def _judge(self) -> None:
        """Ends a trial of a width that was measured: kept if it was worth it, else half as wide.

        One lane more must add `gain` (5% by default) to the sum of speeds. A guess of several must leave each at
        least half its speed.
        """
        before, width = self._trying_from, self.width
        self._trying_from = 0
        if self._gain(before) > (self.gain if width == before + 1 else width / before / 2):
            self._refusals = 0
            return
        self._refusals += 1
        self._hold = PATIENCE * 2**self._refusals
        self.width, self._now = max(before, width // 2), {}
        if self.width > before:
            self._trying_from = before

    def _try(self, width: int) -> None:
        if width > self.width:
            self._trying_from, self._before = self.width, self._now
            self.width, self._now = width, {}

    def _gain(self, before: int) -> float:
        """Sum of normalised speeds now, over that at the width before."""
        common = [
            self._before[trial].step_seconds / speed.step_seconds
            for trial, speed in self._now.items()
            if trial in self._before and speed.step_seconds > 0
        ]
        if not common:
            then, now = (_mean([s.step_seconds for s in speeds.values()]) for speeds in (self._before, self._now))
            if then == 0:
                # Nothing was measured before a guess: taken as it is, one step at a time from there.
                return float("inf")
            common = [then / now] if now > 0 else [1.0]
        return _mean(common) * self.width / before


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
