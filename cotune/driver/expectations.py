"""What is expected of a trial before it runs: by what earlier runs have measured, and by its estimate."""

from __future__ import annotations

from collections.abc import Iterable

from cotune.demand import Demand
from cotune.driver.estimates import Estimates
from cotune.driver.profile import Profile
from cotune.engines.base import Engine
from cotune.record import Record
from cotune.search.proposer import Configs
from cotune.trial import Estimated


class Expectations:
    """Says what a trial is expected to need, and learns from what it needed.

    Args:
        engine: Makes estimates, or cannot.
        space: Says what predictions go by.
        profile: What earlier runs have measured.
        earlier: Trials of earlier sessions of this run.
    """

    def __init__(self, engine: Engine, space: Configs, profile: Profile, earlier: Iterable[Record]) -> None:
        self._estimates = Estimates(engine)
        self._space = space
        self._profile = profile
        for record in earlier:
            if record.demand is not None:
                profile.recall(self.features(record), record.demand, record.seconds, record.comparable)

    def __len__(self) -> int:
        """How many trials wait for an estimate."""
        return len(self._estimates)

    @property
    def are_guesses(self) -> bool:
        """Whether trials are estimated though little is known yet of what an estimate is worth."""
        return self._estimates.are_wanted and not self._profile.is_calibrated

    def features(self, record: Record) -> dict[str, float]:
        return self._space.features(record.params)

    def about(self, record: Record) -> tuple[Demand | None, float | None]:
        """What a trial needs, and how many seconds it takes, as far as can be told."""
        return self._profile.expect(self.features(record), record.estimate)

    # ---- who waits for an estimate

    def ask(self, record: Record) -> bool:
        """Has a trial estimated, where that is possible and was not done yet; True if it should wait for it."""
        return record.estimate is None and self._estimates.ask(record.trial, record.config)

    def heard(self, told: Estimated) -> list[int]:
        """An estimate has come, or the reason why there is none; gives the trials that need wait no longer."""
        return self._estimates.heard(told)

    def release(self) -> list[int]:
        """All that wait, who do so no longer."""
        return self._estimates.release()

    # ---- what is measured

    def compare(self, record: Record, demand: Demand | None) -> None:
        """Holds what a running trial was measured to need against its estimate, for the sake of other estimates."""
        if record.estimate is not None and demand is not None:
            self._profile.compare(record.trial, record.estimate, demand)

    def learn(self, record: Record, seconds: float | None) -> list[int]:
        """A trial is over.

        Args:
            record: The trial's.
            seconds: Of its last attempt, if there was one in this session.

        Returns:
            Trials that need not wait for their estimates any longer.
        """
        if record.demand is not None:
            self._profile.learn(self.features(record), record.demand, record.seconds, record.comparable)
            if record.comparable is not None:
                self._profile.compare(record.trial, record.comparable, record.demand, record.seconds)
        return [] if seconds is None else self._estimates.ran(seconds)
