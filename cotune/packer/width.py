"""How many lanes should run at once on a device: tried, measured, kept or taken back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

GAIN = 1.05
# The share of its speed that each has kept where four times as many lanes are tried next.
EASE = 0.85
# Of each lane, on average: iterations, and the seconds they took.
ITERATIONS = 2
WINDOW = 0.2
PATIENCE = 16
# How often one asks in vain for what is usual of trials, before those that are gone are compared as they are.
UNSURE = 32
# A search that learns from results has as many trials for each lane of an idle device, or it would learn from too few.
TRIALS_A_LANE = 8
# How many there will be where nobody says so.
TRIALS = 64


# What an iteration of a trial is expected to take, beside what one of others is; None as long as nobody knows.
Usual = Callable[[], float | None]


def alike() -> float:
    """What an iteration of any trial takes, where trials are not told apart."""
    return 1.0


def lanes_that_learn(trials: int | None) -> int:
    """On how many lanes of an idle device so many trials still learn from each other."""
    return (TRIALS if trials is None else trials) // TRIALS_A_LANE


@dataclass(slots=True)
class Speed:
    """Iterations of a trial and the time they took, in seconds, under one arrangement."""

    count: int = 0
    seconds: float = 0.0
    samples: int = 0
    usual: Usual = alike

    def add(self, count: int, seconds: float) -> None:
        self.count += count
        self.seconds += seconds
        self.samples += 1

    @property
    def step_seconds(self) -> float:
        return self.seconds / max(self.count, 1)


@dataclass(slots=True)
class WidthControl:
    """Doubles the width while the sum of normalised speeds grows by more than 5%, then looks between the last two.

    It is quadrupled where the last lanes hardly slowed the others down: most of a short sweep's time passes while lanes
    come up, and every width that is measured on the way is a wait for them.

    A trial's speed is normalised by its own before the change, so unequal trials can be added up (Gandiva,
    OSDI'18, section 4.2, keeps a packing by the same test). Where no trial lived through the change, what is usual of
    each stands in; as long as nobody knows that, more are measured, and in the end means are compared, unless the
    first guess has been taken. That is Horus's (TPDS'21): as many lanes as the measured utilisation of one trial leaves
    room for. Where memory holds fewer lanes than are to be tried, those that run are judged.

    Attributes:
        limit: Never more lanes than this, but for those that an idle device may have.
        gain: By what factor more lanes must raise the sum of speeds.
        guesses: Whether the utilisation of one trial says where to begin.
        width: Lanes that may run at once now; at the limit from the beginning where the user has chosen it.
        proven: The last width that was kept for what was measured, or gone back to; 0 before that.
        idle_limit: Never more lanes than this where those that run leave the device idle.
    """

    limit: int
    gain: float = GAIN
    guesses: bool = True
    width: int = 1
    proven: int = 0
    idle_limit: int = 0
    _guessed: bool = False
    _trying_from: int = 0
    _now: dict[int, Speed] = field(default_factory=dict)
    _before: dict[int, Speed] = field(default_factory=dict)
    # The most lanes that ran at once since the width was changed; since when those that run now have; how often fewer.
    _reached: int = 0
    _since: float = -math.inf
    _fewer: int = 0
    # The least width of the present search that was not worth it.
    _refused: int = 0
    _is_easy: bool = False
    _hold: int = 0
    _unsure: int = 0
    _refusals: int = 0

    def guess(self, busy: float | None) -> None:
        """Tries the width that leaves no room, by what one trial alone used of the device; only once."""
        if not self.guesses or self._guessed or self._trying_from or not busy:
            return
        self._guessed = True
        self._try(max(1, round(min(self._most(is_idle=True), 1.0 / busy))))

    def widen(self) -> None:
        """Tries a second lane though nothing was ever measured: what runs in the first comes to no iteration."""
        if self.width == 1 < self.limit and not self._now and not self._refusals:
            self._try(2)

    def changed(self, now: float) -> None:
        """A lane has come to its first iteration, or has fallen away: what began earlier was beside fewer, or more."""
        self._since = now

    def limited(self, limit: int, at_once: bool = False) -> None:
        """The device has come to have room for other numbers of lanes.

        Args:
            limit: Never more from now on, but for those that an idle device may have.
            at_once: Whether all of them are used, unmeasured.
        """
        self.limit = limit
        self._hold = self._refusals = 0
        most = self._most(is_idle=True)
        if at_once:
            self.width = most
        elif self.width > most:
            self.refused(most)

    def refused(self, lanes: int) -> None:
        """More than so many do not come up: these go on by themselves for a while."""
        self.width = min(self.width, lanes)
        self._now, self._reached, self._trying_from, self._refused, self._is_easy = {}, 0, 0, 0, False
        self._unsure = 0
        self._rest()

    def measured(
        self,
        trial: int,
        count: int,
        seconds: float,
        active: int,
        now: float = math.inf,
        usual: Usual = alike,
    ) -> None:
        """Notes the speed of a trial.

        Args:
            trial: Its number.
            count: Iterations it has just made.
            seconds: The time they took.
            active: Lanes that run now, or 0 if some have yet to come to an iteration.
            now: When it had made them.
            usual: What one of its iterations is expected to take.
        """
        may_move = self._trying_from or self.width < self._most(is_idle=True)
        if not may_move or not count or not 0 < active <= self.width or now - seconds < self._since:
            return
        self._fewer = self._fewer + 1 if active < self._reached else 0
        if active > self._reached or self._fewer > PATIENCE:
            # Should memory hold no more by now, these are judged.
            self._reached, self._now, self._fewer = active, {}, 0
        if active == self._reached:
            self._now.setdefault(trial, Speed(usual=usual)).add(count, seconds)
            if len(self._now) > 4 * self._most(is_idle=True):
                del self._now[next(iter(self._now))]

    def review(self, active: int, waiting: bool, is_idle: bool = False) -> None:
        """Decides on the width.

        Args:
            active: Lanes running now.
            waiting: Whether a trial would use another lane.
            is_idle: Whether those that run leave the device idle.
        """
        is_full = self._reached == self.width or (waiting and active == self._reached > self._trying_from)
        if self._trying_from:
            if is_full and self._is_ready():
                self._judge()
        elif self._hold > 0:
            self._hold -= 1
        elif waiting and active == self.width == self._reached < self._most(is_idle) and self._is_ready():
            self._try(min(self._most(is_idle), (4 if self._is_easy else 2) * self.width))

    def _most(self, is_idle: bool) -> int:
        return max(self.limit, self.idle_limit) if is_idle else self.limit

    def _is_ready(self) -> bool:
        iterations = sum(min(speed.count, ITERATIONS) for speed in self._now.values())
        seconds = sum(speed.seconds for speed in self._now.values())
        return iterations >= ITERATIONS * self._reached and seconds >= WINDOW * self._reached

    def _judge(self) -> None:
        """Ends a trial of a width that was measured: keeps it if it was worth it.

        More lanes must raise the sum of speeds by `gain`; a guess of many must leave each at least half its speed.
        Once a width was not worth it, those below it are tried in halves, as long as that is a quarter more.
        """
        before, reached = self._trying_from, self._reached
        gain, more = self._gain(before), reached / before
        if gain is None:
            # Those that ran before are gone, and cannot be compared with those that run now.
            self._unsure += 1
            if self._unsure < UNSURE:
                return
            # Utilisation, where it was measured, says more than the means of trials that have little in common.
            gain = math.inf if self._guessed else more * _middle(self._before.values()) / _middle(self._now.values())
        self._unsure = 0
        self._is_easy = EASE * more < gain < math.inf
        if gain > max(self.gain, more / 2):
            before, self._before, self._refusals = reached, self._now, 0
        else:
            self._refused = reached
        self._trying_from, self.width, self.proven = 0, before, before
        if not self._refused:
            return
        between = (before + self._refused) // 2
        self._now, self._reached = {}, 0
        if 4 * (between - before) >= before:
            self._trying_from, self.width = before, between
            return
        self._refused, self._is_easy = 0, False
        self._rest()

    def _rest(self) -> None:
        """Tries no more for a while, which is longer each time."""
        self._refusals += 1
        self._hold = PATIENCE * 2**self._refusals

    def _try(self, width: int) -> None:
        if width > self.width:
            self._trying_from, self._before = self.width, self._now
            self.width, self._now, self._reached = width, {}, 0

    def _gain(self, before: int) -> float | None:
        """Sum of normalised speeds now, over that at the width before; None if nobody can tell."""
        common = [
            self._before[trial].step_seconds / speed.step_seconds
            for trial, speed in self._now.items()
            if trial in self._before and speed.step_seconds > 0
        ]
        if not common:
            if not any(speed.count for speed in self._before.values()):
                # Nothing was measured before a guess: taken as it is, doubled or not from there.
                return math.inf
            then, now = (_slowness(speeds.values()) for speeds in (self._before, self._now))
            if not then or not now:
                return None
            common = [then / now]
        return _mean(common) * self._reached / before


def _slowness(speeds: Iterable[Speed]) -> float:
    """What iterations take, on average, over what is usual for their trials; 0 if nobody knows that of any."""
    return _mean([speed.step_seconds / usual for speed in speeds if (usual := speed.usual())])


def _middle(speeds: Iterable[Speed]) -> float:
    """What iterations take, trials that differ by a factor being weighed alike."""
    return math.exp(_mean([math.log(speed.step_seconds) for speed in speeds if speed.seconds > 0]))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
