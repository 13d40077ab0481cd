"""What is expected of a trial before it runs: by what earlier runs have measured, and by its estimate."""

from __future__ import annotations

from collections.abc import Iterable

from cotune.demand import Demand
from cotune.driver.profile import Profile
from cotune.record import Record
from cotune.search.proposer import Configs


class Expectations:
    """Says what a trial is expected to need, and learns from what it needed.

    Args:
        space: Says what predictions go by.
        profile: What earlier runs have measured.
        earlier: Trials of earlier sessions of this run.
    """

    def __init__(self, space: Configs, profile: Profile, earlier: Iterable[Record]) -> None:
        self._space = space
        self._profile = profile
        for record in earlier:
            if record.demand is not None:
                profile.recall(self.features(record), record.demand, record.seconds, record.comparable)

    @property
    def are_calibrated(self) -> bool:
        """Whether it is known what an estimate is worth."""
        return self._profile.is_calibrated

    def features(self, record: Record) -> dict[str, float]:
        return self._space.features(record.params)

    def about(self, record: Record) -> tuple[Demand | None, float | None]:
        """What a trial needs, and how many seconds it takes, as far as can be told."""
        return self._profile.expect(self.features(record), record.estimate)

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
