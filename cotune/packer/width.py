"""How many lanes should run at once on a device: tried, measured, then kept or reverted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cotune.packer.speed import GAIN, PATIENCE, Speed, pause_after

# Trials whose iterations took as long as each other's, within this factor, are taken for alike while nothing is known
# of what they usually take.
ALIKE = 1.25
# If each lane keeps more than this share of its speed, four times as many lanes are tried next, instead of twice.
EASE = 0.85
# Needed before a width is judged, per lane on average: iterations, and seconds of iterations.
ITERATIONS = 2
WINDOW = 0.2
# Judgements without comparable speeds before the means of unrelated trials are compared instead.
UNSURE = 32
# Trials per lane of an idle device in a search that learns from results; with fewer, it learns from too few.
TRIALS_A_LANE = 8
# Assumed number of trials if none is given.
TRIALS = 64


# Expected duration of a trial's iteration, in a unit common to the trials compared; None if unknown.
Usual = Callable[[], float | None]


def alike() -> float:
    """The usual duration if trials are not told apart: the same for all."""
    return 1.0


def lanes_that_learn(trials: int | None) -> int:
    """How many lanes of an idle device a search with this many trials can use and still learn from results."""
    return (TRIALS if trials is None else trials) // TRIALS_A_LANE


@dataclass(slots=True)
class _Speed(Speed):
    """A trial's speed, and the usual duration of its iterations."""

    usual: Usual = alike


class WidthControl:
    """Doubles the width while the sum of normalised speeds grows by more than 5%, then searches between the last two.

    The width is quadrupled if the last lanes hardly slowed the others down: most of a short sweep's time passes while
    lanes come up, and each width measured on the way is another wait for lanes.

    A trial's speed is normalised by its own speed before the change, so unequal trials can be summed (Gandiva,
    OSDI'18, section 4.2, keeps a packing by the same test). If no trial ran both before and after the change, each
    trial's usual duration is used instead. While that is unknown, more is measured, and in the end means are compared,
    unless the first guess was made: then it is kept. The guess is Horus's (TPDS'21): as many lanes as the measured
    utilisation of one trial leaves room for. If memory holds fewer lanes than the width to try, the running ones are
    judged.

    Args:
        limit: Most lanes, except on an idle device.
        gain: Factor by which more lanes must raise the sum of speeds.
        guesses: Whether the utilisation of one trial determines the first width to try.
        width: Lanes to begin with; the limit if the user has chosen it.
        idle_limit: Most lanes while the running ones leave the device idle.

    Attributes:
        width: Lanes that may run at once now.
        proven: The last width that was kept after a measurement, or reverted to; 0 before that.
    """

    def __init__(
        self, limit: int, gain: float = GAIN, guesses: bool = True, width: int = 1, idle_limit: int = 0
    ) -> None:
        self.limit = limit
        self.idle_limit = idle_limit
        self.width = width
        self.proven = 0
        self._gain = gain
        self._guesses = guesses
        self._guessed = False
        self._trying_from = 0
        self._now: dict[int, _Speed] = {}
        self._before: dict[int, _Speed] = {}
        # Most lanes at once since the width changed; since when the present lanes run; measurements in a row with
        # fewer.
        self._reached = 0
        self._since = -math.inf
        self._fewer = 0
        # The smallest width of the present search that did not pay.
        self._refused = 0
        self._is_easy = False
        self._hold = 0
        self._unsure = 0
        self._refusals = 0

    def guess(self, busy: float | None) -> None:
        """Tries, once, the width that would fill the device, given the share of it that one trial alone used."""
        if not self._guesses or self._guessed or self._trying_from or not busy:
            return
        self._guessed = True
        self._try(max(1, round(min(self._most(is_idle=True), 1.0 / busy))))

    def widen(self) -> None:
        """Tries a second lane without a measurement, if the trial in the first lane makes no iteration."""
        if self.width == 1 < self.limit and not self._now and not self._refusals:
            self._try(2)

    def changed(self, now: float) -> None:
        """A lane made its first iteration or went away; earlier iterations ran beside fewer or more lanes."""
        self._since = now

    def limited(self, limit: int, at_once: bool = False) -> None:
        """The number of lanes the device has room for has changed.

        Args:
            limit: New most lanes, except on an idle device.
            at_once: Whether to use all of them immediately, without measuring.
        """
        self.limit = limit
        self._hold = self._refusals = 0
        most = self._most(is_idle=True)
        if at_once:
            self.width = most
        elif self.width > most:
            self.refused(most)

    def refused(self, lanes: int) -> None:
        """More than `lanes` lanes do not come up: keeps to that many, and tries no more for a while."""
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
            count: Iterations just made.
            seconds: Time they took.
            active: Lanes running now, or 0 if some have yet to make an iteration.
            now: When the iterations were finished.
            usual: Expected duration of one of its iterations.
        """
        may_move = self._trying_from or self.width < self._most(is_idle=True)
        if not may_move or not count or not 0 < active <= self.width or now - seconds < self._since:
            return
        self._fewer = self._fewer + 1 if active < self._reached else 0
        if active > self._reached or self._fewer > PATIENCE:
            # If memory no longer holds as many lanes, the fewer ones are judged.
            self._reached, self._now, self._fewer = active, {}, 0
        if active == self._reached:
            self._now.setdefault(trial, _Speed(usual=usual)).add(count, seconds)
            if len(self._now) > 4 * self._most(is_idle=True):
                del self._now[next(iter(self._now))]

    def review(self, active: int, waiting: bool, is_idle: bool = False) -> None:
        """Decides on the width.

        Args:
            active: Lanes running now.
            waiting: Whether a trial would use another lane.
            is_idle: Whether the running trials leave the device idle.
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
        """Keeps or reverts the width that was tried.

        More lanes must raise the sum of speeds by the gain; a guess of many must leave each at least half its speed.
        Once a width did not pay, the search halves the distance to it, while that adds at least a quarter to the lanes.
        """
        before, reached = self._trying_from, self._reached
        gain, more = self._gained(before), reached / before
        if gain is None:
            # The trials that ran before are gone and cannot be compared with those that run now.
            self._unsure += 1
            if self._unsure < UNSURE:
                return
            # Measured utilisation, if there is any, says more than means over unlike trials.
            gain = math.inf if self._guessed else more * _middle(self._before.values()) / _middle(self._now.values())
        self._unsure = 0
        self._is_easy = EASE * more < gain < math.inf
        if gain > max(self._gain, more / 2):
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
        """Tries no wider for a while, longer each time."""
        self._refusals += 1
        self._hold = pause_after(self._refusals)

    def _try(self, width: int) -> None:
        if width > self.width:
            self._trying_from, self._before = self.width, self._now
            self.width, self._now, self._reached = width, {}, 0

    def _gained(self, before: int) -> float | None:
        """Sum of normalised speeds now, divided by that at the width before; None if unknown."""
        common = [
            self._before[trial].step_seconds / speed.step_seconds
            for trial, speed in self._now.items()
            if trial in self._before and speed.step_seconds > 0
        ]
        if not common:
            if not any(speed.count for speed in self._before.values()):
                # Nothing was measured before a guess: it is accepted, and may be doubled later.
                return math.inf
            then, now = (_slowness(speeds.values()) for speeds in (self._before, self._now))
            if not then or not now:
                then, now = _middle(self._before.values()), _middle(self._now.values())
                if not (_are_alike(self._now.values()) and 1 / ALIKE < now / then < ALIKE * self._reached / before):
                    # Lanes slow each other by their number at most, and speed none up: these are other trials.
                    return None
            common = [then / now]
        return _mean(common) * self._reached / before


def _slowness(speeds: Iterable[_Speed]) -> float:
    """Mean duration of iterations relative to their trials' usual one; 0 if none is known."""
    return _mean([speed.step_seconds / usual for speed in speeds if (usual := speed.usual())])


def _are_alike(speeds: Iterable[Speed]) -> bool:
    """Whether trials that have run beside each other, at least two, took about as long for an iteration."""
    paces = [speed.step_seconds for speed in speeds]
    return len(paces) > 1 and max(paces) < ALIKE * min(paces)


def _middle(speeds: Iterable[Speed]) -> float:
    """Geometric mean of the iteration durations, so that trials that differ by a factor weigh alike."""
    return math.exp(_mean([math.log(speed.step_seconds) for speed in speeds if speed.seconds > 0]))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
