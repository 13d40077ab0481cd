"""What is expected of trials and devices beforehand: by what earlier runs have measured, and by estimates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cotune.demand import Demand
from cotune.driver.profile import Profile
from cotune.packer import DeviceFound
from cotune.record import Record
from cotune.search.proposer import Configs


class Expectations:
    """Says what a trial is expected to need, and how many lanes to pay; learns from what was needed, and did.

    Args:
        space: Says what predictions go by.
        profile: What earlier runs have measured.
        earlier: Trials of earlier sessions of this run.
        most_lanes: So many at most of an idle device; None for as many as it may have.
    """

    def __init__(
        self, space: Configs, profile: Profile, earlier: Iterable[Record], most_lanes: int | None = None
    ) -> None:
        self._space = space
        self._profile = profile
        self._most_lanes = most_lanes
        for record in earlier:
            if record.demand is not None:
                profile.recall(self.features(record), record.demand, record.seconds, record.comparable)

    @property
    def are_calibrated(self) -> bool:
        """Whether it is known what an estimate is worth."""
        return self._profile.is_calibrated

    @property
    def know_lengths(self) -> bool:
        """Whether earlier runs tell how long trials take."""
        return self._profile.knows_seconds

    def features(self, record: Record) -> dict[str, float]:
        return self._space.features(record.params)

    def about(self, record: Record) -> tuple[Demand | None, float | None]:
        """What a trial needs, and how many seconds it takes, as far as can be told."""
        return self._profile.expect(self.features(record), record.estimate)

    def of_device(self, found: DeviceFound) -> DeviceFound:
        """A device, with how many lanes it is to begin with, and to have at most while it is idle."""
        idle = found.idle_width if self._most_lanes is None else min(found.idle_width, self._most_lanes)
        return replace(found, width=self._profile.begin_with(found.capacity, found.max_width), idle_width=idle)

    def learn_widths(self, proven: Iterable[tuple[int, int, int]]) -> None:
        """On devices of so many bytes, and lanes at most, so many lanes have paid."""
        for capacity, most, lanes in proven:
            self._profile.learn_width(capacity, most, lanes)

    def compare(self, record: Record, demand: Demand | None) -> None:
        """Holds what a running trial was measured to need against its estimate, for the sake of other estimates."""
        if record.estimate is not None and demand is not None:
            self._profile.compare(record.trial, record.estimate, demand)

    def learn(self, record: Record) -> None:
        """A trial is over."""
        if record.demand is not None:
            self._profile.learn(self.features(record), record.demand, record.seconds, record.comparable)
            if record.comparable is not None:
                self._profile.compare(record.trial, record.comparable, record.demand, record.seconds)
