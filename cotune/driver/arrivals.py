"""From suggestion to brain: a new trial gets a record, waits for its estimate where that pays, and joins the brain."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cotune.driver.estimates import Estimates
from cotune.driver.expectations import Expectations
from cotune.driver.options import SweepOptions
from cotune.engines.base import Engine
from cotune.errors import InputError
from cotune.packer import ConcludeTrial, Event, TrialAdded
from cotune.record import Record, Records
from cotune.search.proposer import Configs, Suggestion
from cotune.trial import Estimated, Outcome


class Arrivals:
    """Holds the trials that have not joined the brain yet.

    Args:
        space: Turns parameters into configs.
        engine: Makes estimates, and has the clock.
        records: The run's trials.
        options: Give a trial's priority and number of iterations.
        expectations: Predict a trial's demand and seconds.
        resting: Trials of an earlier session that wait for a promotion.
        feed: Hands the brain an event.
        refuse: Concludes a trial whose config the user's `priority` or `max_steps` function cannot handle.
    """

    def __init__(
        self,
        space: Configs,
        engine: Engine,
        records: Records,
        options: SweepOptions,
        expectations: Expectations,
        resting: Iterable[int],
        feed: Callable[[Event], None],
        refuse: Callable[[ConcludeTrial], None],
    ) -> None:
        self._space = space
        self._engine = engine
        self._records = records
        self._options = options
        self._expectations = expectations
        self._estimates = Estimates(engine)
        self._resting = set(resting)
        self._feed = feed
        self._refuse = refuse
        self._has_joined = False

    def __len__(self) -> int:
        return len(self._estimates)

    @property
    def are_guesses(self) -> bool:
        """Whether trials are estimated while too few were measured to calibrate estimates."""
        return self._estimates.are_wanted and not self._expectations.are_calibrated

    def proposed(self, suggestion: Suggestion) -> Record:
        """Makes the record of a suggested trial."""
        config = self._space.config(suggestion.params)
        return self._records.proposed(suggestion.trial, suggestion.params, config)

    def add(self, record: Record) -> None:
        """Adds a trial to the brain, after its estimate if one is wanted."""
        if record.estimate is not None or not self._estimates.ask(record.trial, record.config):
            self._join([record.trial])

    def estimated(self, told: Estimated) -> None:
        """Takes in an estimate, or the reason why there is none."""
        self._records.estimated(told)
        self._join(self._estimates.heard(told))

    def ran(self, seconds: float) -> None:
        """Takes in how long a trial ran: others may turn out too short to be worth estimating."""
        self._join(self._estimates.ran(seconds))

    def promoted(self, trial: int) -> None:
        """Notes that a trial waits for no promotion any more, even if it has not joined yet."""
        self._resting.discard(trial)

    def put_off(self) -> None:
        """Leaves trials that have not joined to a later session."""
        for trial in self._estimates.release():
            self._records.put_off(self._records[trial])

    def _join(self, trials: Iterable[int]) -> None:
        for trial in trials:
            record, options = self._records[trial], self._options
            try:
                priority, max_steps = options.priority(record.config), options.max_steps(record.config)
            except InputError as error:
                if not self._has_joined:
                    raise
                # The function worked for another config, so only this trial fails.
                self._refuse(ConcludeTrial(trial, Outcome.FAILED, "InputError", str(error)))
                continue
            self._has_joined = True
            self._records.ranked(trial, priority)
            expected, seconds = self._expectations.about(record)
            self._feed(
                TrialAdded(
                    self._engine.now(),
                    trial,
                    options.kind,
                    self._expectations.features(record),
                    priority,
                    expected,
                    seconds,
                    max_steps,
                    held=trial in self._resting,
                    attempts=record.attempts,
                    lane_deaths=record.lane_deaths,
                    failures=record.failures,
                )
            )
