"""How trials come: a suggestion becomes a record, which waits for its estimate where that pays, and joins the brain."""

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
    """Keeps the trials of which the brain does not know yet.

    Args:
        space: For the configs.
        engine: Makes estimates, and has the clock.
        records: Keeps the trials.
        options: Say what a trial counts, and how long it is.
        expectations: Of what they need.
        resting: Trials of an earlier session that wait for others to be worse.
        feed: Hands the brain an event.
        refuse: Hears of a trial for which the user's options make no sense.
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
        """Trials are estimated, and little is known yet of what an estimate is worth."""
        return self._estimates.are_wanted and not self._expectations.are_calibrated

    def proposed(self, suggestion: Suggestion) -> Record:
        """A trial is suggested; it is on record from now on."""
        config = self._space.config(suggestion.params)
        return self._records.proposed(suggestion.trial, suggestion.params, config)

    def add(self, record: Record) -> None:
        """One is to run."""
        if record.estimate is not None or not self._estimates.ask(record.trial, record.config):
            self._join([record.trial])

    def estimated(self, told: Estimated) -> None:
        """An estimate has come, or the reason why there is none."""
        self._records.estimated(told)
        self._join(self._estimates.heard(told))

    def ran(self, seconds: float) -> None:
        """A trial is over that has run for so long: beside that, others may be too short to be estimated."""
        self._join(self._estimates.ran(seconds))

    def promoted(self, trial: int) -> None:
        """It waits for others no longer, even before it has joined."""
        self._resting.discard(trial)

    def put_off(self) -> None:
        """Those that have not joined are for another session."""
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
                # It is wrong for this config, not as such.
                self._refuse(ConcludeTrial(trial, Outcome.FAILED, "InputError", str(error)))
                continue
            self._has_joined = True
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
                )
            )
