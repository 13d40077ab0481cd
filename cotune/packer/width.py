"""How many lanes should run at once on a device: tried, measured, then kept or reverted."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class _Measured:
    """Speeds of trials that ran in so many lanes at once.

    Attributes:
        lanes: The most at once since the width changed; 0 before the first measurement.
        speeds: By trial.
        fewer: Measurements in a row with fewer lanes.
    """

    lanes: int = 0
    speeds: dict[int, _Speed] = field(default_factory=dict)
    fewer: int = 0

    def __len__(self) -> int:
        return len(self.speeds)

    @property
    def is_enough(self) -> bool:
        iterations = sum(min(speed.count, ITERATIONS) for speed in self.speeds.values())
        seconds = sum(speed.seconds for speed in self.speeds.values())
        return iterations >= ITERATIONS * self.lanes and seconds >= WINDOW * self.lanes

    @property
    def slowness(self) -> float:
        """Mean duration of iterations relative to their trials' usual one; 0 if none is known."""
        return _mean([speed.step_seconds / usual for speed in self.speeds.values() if (usual := speed.usual())])

    @property
    def middle(self) -> float:
        """Geometric mean of the iteration durations, so that trials that differ by a factor weigh alike."""
        return math.exp(_mean([math.log(one.step_seconds) for one in self.speeds.values() if one.seconds > 0]))

    @property
    def are_alike(self) -> bool:
        """Whether trials that have run beside each other, at least two, took about as long for an iteration."""
        paces = [speed.step_seconds for speed in self.speeds.values()]
        return len(paces) > 1 and max(paces) < ALIKE * min(paces)


@dataclass(slots=True)
class _Search:
    """A search for the width that pays, which tries one width after another.

    Attributes:
        width: The last width that paid.
        before: What was measured there.
        refused: The smallest width that did not pay; 0 if there is none.
        unsure: Judgements put off because speeds could not be compared.
    """

    width: int
    before: _Measured
    refused: int = 0
    unsure: int = 0


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
        # None while no other width is tried: the speeds at this one are measured, once `_hold` is over.
        self._search: _Search | None = None
        self._now = _Measured()
        # Since when the present lanes run.
        self._since = -math.inf
        # The last lanes that were tried hardly slowed the others down.
        self._is_easy = False
        self._hold = 0
        self._refusals = 0

    def guess(self, busy: float | None) -> None:
        """Tries, once, the width that would fill the device, given the share of it that one trial alone used."""
        if not self._guesses or self._guessed or self._search is not None or not busy:
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
        self._now, self._search, self._is_easy = _Measured(), None, False
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
        may_move = self._search is not None or self.width < self._most(is_idle=True)
        if not may_move or not count or not 0 < active <= self.width or now - seconds < self._since:
            return
        measured = self._now
        measured.fewer = measured.fewer + 1 if active < measured.lanes else 0
        if active > measured.lanes or measured.fewer > PATIENCE:
            # If memory no longer holds as many lanes, the fewer ones are judged.
            measured = self._now = _Measured(active)
        if active == measured.lanes:
            measured.speeds.setdefault(trial, _Speed(usual=usual)).add(count, seconds)
            if len(measured) > 4 * self._most(is_idle=True):
                del measured.speeds[next(iter(measured.speeds))]

    def review(self, active: int, waiting: bool, is_idle: bool = False) -> None:
        """Decides on the width.

        Args:
            active: Lanes running now.
            waiting: Whether a trial would use another lane.
            is_idle: Whether the running trials leave the device idle.
        """
        search, reached = self._search, self._now.lanes
        if search is not None:
            is_full = reached == self.width or (waiting and active == reached > search.width)
            if is_full and self._now.is_enough:
                self._judge(search)
        elif self._hold > 0:
            self._hold -= 1
        elif waiting and active == self.width == reached < self._most(is_idle) and self._now.is_enough:
            self._try(min(self._most(is_idle), (4 if self._is_easy else 2) * self.width))

    def _most(self, is_idle: bool) -> int:
        return max(self.limit, self.idle_limit) if is_idle else self.limit

    def _judge(self, search: _Search) -> None:
        """Keeps or reverts the width that was tried.

        More lanes must raise the sum of speeds by the gain; a guess of many must leave each at least half its speed.
        Once a width did not pay, the search halves the distance to it, while that adds at least a quarter to the lanes.
        """
        now = self._now
        gain, more = _gained(search, now), now.lanes / search.width
        if gain is None:
            # The trials that ran before are gone and cannot be compared with those that run now.
            search.unsure += 1
            if search.unsure < UNSURE:
                return
            # Measured utilisation, if there is any, says more than means over unlike trials.
            gain = math.inf if self._guessed else more * search.before.middle / now.middle
        search.unsure = 0
        self._is_easy = EASE * more < gain < math.inf
        if gain > max(self._gain, more / 2):
            search.width, search.before, self._refusals = now.lanes, now, 0
        else:
            search.refused = now.lanes
        self.width = self.proven = search.width
        if not search.refused:
            self._search = None
            return
        self._now = _Measured()
        between = (search.width + search.refused) // 2
        if 4 * (between - search.width) >= search.width:
            self.width = between
        else:
            self._search, self._is_easy = None, False
            self._rest()

    def _rest(self) -> None:
        """Tries no wider for a while, longer each time."""
        self._refusals += 1
        self._hold = pause_after(self._refusals)

    def _try(self, width: int) -> None:
        if width > self.width:
            self._search = _Search(self.width, self._now)
            self.width, self._now = width, _Measured()


def _gained(search: _Search, now: _Measured) -> float | None:
    """Sum of normalised speeds now, divided by that at the last width that paid; None if unknown."""
    before = search.before
    common = [
        before.speeds[trial].step_seconds / speed.step_seconds
        for trial, speed in now.speeds.items()
        if trial in before.speeds and speed.step_seconds > 0
    ]
    if not common:
        if not any(speed.count for speed in before.speeds.values()):
            # Nothing was measured before a guess: it is accepted, and may be doubled later.
            return math.inf
        then, since = before.slowness, now.slowness
        if not then or not since:
            then, since = before.middle, now.middle
            if not (now.are_alike and 1 / ALIKE < since / then < ALIKE * now.lanes / search.width):
                # Lanes slow each other by their number at most, and speed none up: these are other trials.
                return None
        common = [then / since]
    return _mean(common) * now.lanes / search.width


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
