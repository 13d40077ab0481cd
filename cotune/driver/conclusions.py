"""What the driver does when the brain has concluded a trial: tells its record, the search and the callbacks."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from cotune.dashboard.display import Display
from cotune.errors import first_line
from cotune.packer import ConcludeTrial
from cotune.record import Record, Records, error_of
from cotune.results import TrialResult
from cotune.search.proposer import Proposer
from cotune.search.spaces import apart
from cotune.trial import Outcome, TrialState

# Errors that every other trial would repeat: they end the run if no trial has ever reported.
_FATAL = ("UnknownMetric", "NotPicklable")


class Conclusions:
    """Tells the record, the search, the display and the callbacks how a trial ended.

    Args:
        records: The run's trials.
        search: Told of every end except an interruption.
        display: Shows failures.
        metric: The metric without which no trial is done; empty where only the search knows.
        callbacks: Called with the result of each trial that has ended.
    """

    def __init__(
        self,
        records: Records,
        search: Proposer,
        display: Display,
        metric: str,
        callbacks: Sequence[Callable[[TrialResult], Any]],
    ) -> None:
        self._records = records
        self._search = search
        self._display = display
        self._metric = metric
        self._callbacks = callbacks
        self._broken: set[int] = set()

    def reach(self, conclusion: ConcludeTrial) -> None:
        """Carries out a conclusion.

        Raises:
            CotuneError: Every other trial would fail with the same error.
        """
        record = self._records[conclusion.trial]
        record.measures = conclusion.measures
        state = self._state(record, conclusion.outcome)
        if state is TrialState.FAILED:
            self._blame(record, conclusion)
        self._records.ends(record, state)
        if state is not TrialState.INTERRUPTED:
            self._search.tell(record.trial, state, record.values, record.error)
            self._call_back(record)

    def _state(self, record: Record, outcome: Outcome) -> TrialState:
        if outcome is Outcome.DONE and (record.last_value is not None or not self._metric):
            return TrialState.DONE
        if outcome is Outcome.STOPPED:
            return record.withdrawn or TrialState.STOPPED
        return TrialState.FAILED

    def _blame(self, record: Record, conclusion: ConcludeTrial) -> None:
        error = record.error = error_of(conclusion)
        if conclusion.error in _FATAL and not self._records.have_reports:
            raise error
        said = first_line(conclusion.reason, 100) or conclusion.error
        self._display.note = f"trial {record.trial} failed: {said}"

    def _call_back(self, record: Record) -> None:
        if self._callbacks:
            # A callback may take long; if the driver is killed meanwhile, a resumed run must not repeat the trial.
            self._records.flush()
        for number, callback in enumerate(self._callbacks):
            try:
                result = record.result()
                callback(replace(result, config=apart(result.config)))
            except Exception as error:
                if number not in self._broken:
                    self._broken.add(number)
                    _warn(callback, record.trial, error)


def _warn(callback: Callable[[TrialResult], Any], trial: int, error: Exception) -> None:
    inside = error.__traceback__.tb_next if error.__traceback__ is not None else None
    said = "".join(traceback.format_exception(type(error), error, inside)).rstrip()
    warnings.warn(
        f"callback {callback!r} raised {type(error).__name__} for trial {trial}; the run goes on, and what it raises "
        f"later is not shown\n{said}",
        stacklevel=2,
    )
