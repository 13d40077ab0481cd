"""What is expected of trials and devices beforehand, from measurements of earlier runs and from estimates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cotune.demand import Demand
from cotune.driver.profile import Profile
from cotune.packer import DeviceFound
from cotune.record import Record
from cotune.search.proposer import Configs


class Expectations:
    """Predicts a trial's demand and seconds and a device's lanes; learns from what was measured.

    Args:
        space: Turns parameters into features.
        profile: Measurements of earlier runs.
        earlier: Trials of earlier sessions of this run.
        most_lanes: Most lanes of an idle device; None for as many as it may have.
    """

    def __init__(self, space: Configs, profile: Profile, earlier: Iterable[Record], most_lanes: int | None) -> None:
        self._space = space
        self._profile = profile
        self._most_lanes = most_lanes
        for record in earlier:
            if (demand := record.measures.demand) is not None:
                profile.recall(self.features(record), demand, record.seconds, record.comparable)

    @property
    def are_calibrated(self) -> bool:
        """Whether enough trials were measured to calibrate estimates."""
        return self._profile.is_calibrated

    @property
    def know_lengths(self) -> bool:
        """Whether earlier trials' seconds are known."""
        return self._profile.knows_seconds

    def features(self, record: Record) -> dict[str, float]:
        return self._space.features(record.params)

    def about(self, record: Record) -> tuple[Demand | None, float | None]:
        """A trial's expected demand and seconds, each None if unknown."""
        return self._profile.expect(self.features(record), record.estimate)

    def of_device(self, found: DeviceFound) -> DeviceFound:
        """The device with what earlier runs tell of it, and with its most lanes while idle, filled in."""
        idle = found.idle_width if self._most_lanes is None else min(found.idle_width, self._most_lanes)
        width = self._profile.begin_with(found.capacity, found.max_width)
        return replace(found, width=width, idle_width=idle, shared=self._profile.shared)

    def learn_devices(self, proven: Iterable[tuple[int, int, int]], shared: int | None) -> None:
        """Notes what was found out about devices.

        Args:
            proven: How many lanes paid, as (bytes of the device, its most lanes, lanes that paid).
            shared: Bytes of objects that a lane's trials share, if known.
        """
        for capacity, most, lanes in proven:
            self._profile.learn_width(capacity, most, lanes)
        if shared is not None:
            self._profile.shared = shared

    def compare(self, record: Record, demand: Demand | None) -> None:
        """Compares a running trial's measured demand with its estimate, to calibrate other estimates."""
        if record.estimate is not None and demand is not None:
            self._profile.compare(record.trial, record.estimate, demand)

    def learn(self, record: Record) -> None:
        """Takes in a trial that has ended."""
        if (demand := record.measures.demand) is not None:
            self._profile.learn(self.features(record), demand, record.seconds, record.comparable)
            if record.comparable is not None:
                self._profile.compare(record.trial, record.comparable, demand, record.seconds)
