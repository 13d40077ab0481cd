"""Reading a run back from its events file."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cotune import errors
from cotune.demand import Demand, Estimate
from cotune.errors import StorageError
from cotune.packer import Measures
from cotune.paths import RunFolder
from cotune.record.events import DAMAGED, VERSION, read_events
from cotune.record.record import Record
from cotune.trial import Report, TrialState


@dataclass(frozen=True, slots=True)
class Saved:
    """The state of a run, as its events file has it.

    Attributes:
        settings: The run's settings, from its `run` events.
        records: The run's trials, without their configs.
        makespan: Seconds from the first trial that is ready to the last event, in the last session.
    """

    settings: dict[str, Any]
    records: list[Record]
    makespan: float


def replay(folder: RunFolder, take_in: Callable[[dict[str, Any], bytes], None]) -> None:
    """Calls a function with each event of a run and its line, in order.

    Raises:
        StorageError: The events file is unreadable, of another version, or does not begin with a run; or an event makes
            no sense, so that the function raised for want of a field or because of its value.
    """
    has_begun = False
    for number, (event, line) in enumerate(read_events(folder.events), start=1):
        if event["event"] == "run" or not has_begun:
            # Another version may have other fields.
            _check_version(folder, event)
            has_begun = True
        try:
            take_in(event, line)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise StorageError(
                f"line {number} of {folder.events} makes no sense: {line[:80]!r}", hint=DAMAGED
            ) from error
    if not has_begun:
        _check_version(folder, {})


def read_run(folder: RunFolder) -> Saved:
    """Reads a run back.

    Raises:
        StorageError: As for `replay`.
    """
    reader = _Reader(folder)
    replay(folder, reader.take_in)
    records = [reader.records[number] for number in sorted(reader.records)]
    return Saved(reader.settings, records, max(0.0, reader.last - reader.first))


class _Reader:
    def __init__(self, folder: RunFolder) -> None:
        self.settings: dict[str, Any] = {}
        self.records: dict[int, Record] = {}
        # When the first trial of the last session was ready, and the last event since.
        self.first = self.last = 0.0
        self._is_new = True
        self._folder = folder

    def take_in(self, event: dict[str, Any], line: bytes) -> None:
        kind, number = event["event"], event.get("trial")
        if kind == "run":
            self.settings, self._is_new = _settings(self.settings, event), True
            return
        if kind == "ready" and self._is_new:
            self.first, self._is_new = event["time"], False
        if not self._is_new:
            self.last = event["time"]
        if kind == "trial":
            seed, folder = operator.index(event["seed"]), self._folder.trial(event["trial"])
            self.records[event["trial"]] = Record(event["trial"], dict(event["params"]), {}, seed, folder.path)
        elif number in self.records:
            _apply(self.records[number], event, line, self.settings.get("metric", ""))


def has_started(folder: RunFolder) -> bool:
    """Whether a trial of the run has started; also true if that cannot be read from the file."""
    try:
        events = read_events(folder.events)
        first, _ = next(events, (None, b""))
        if first is None:
            return False
        if first.get("event") != "run" or first.get("version") != VERSION:
            return True
        return any(event.get("event") == "start" for event, _ in events)
    except StorageError:
        return True


def study_of(folder: RunFolder) -> str | None:
    """The name of the Optuna study that a run belongs to; None if it belongs to none, or that cannot be read."""
    with contextlib.suppress(StorageError):
        for event, _ in read_events(folder.events):
            return event.get("study")
    return None


def _settings(before: Mapping[str, Any], event: Mapping[str, Any]) -> dict[str, Any]:
    """The run's settings, updated by the `run` event of a new session.

    Constants may change as long as no trial has ended or has a checkpoint, options may be added, and code may change at
    any time.
    """
    had, has = before.get("options", {}), event.get("options", {})
    options = {name: {**had.get(name, {}), **has.get(name, {})} for name in {**had, **has}}
    seed = operator.index(before.get("seed", event["seed"]))
    last = {"constants": dict(event.get("constants", {})), "code": event.get("code")}
    return {**event, **before, **last, "seed": seed, "options": options}


def _check_version(folder: RunFolder, settings: Mapping[str, Any]) -> None:
    """Checks that an events file with these settings can be read.

    Raises:
        StorageError: The file is of another version, or does not begin with a run.
    """
    if "version" not in settings:
        raise StorageError(f"{folder.events} does not begin with a run", hint="choose another name=")
    if settings["version"] != VERSION:
        raise StorageError(
            f"{folder.events} is of version {settings['version']!r}, this cotune writes version {VERSION!r}",
            hint="choose another name=, or resume with the cotune that wrote it",
        )


def _apply(record: Record, event: dict[str, Any], line: bytes, metric: str) -> None:
    kind = event["event"]
    if kind == "start":
        # An earlier session may have ended it before it ran, because `priority=` raised for it.
        record.state, record.error, record.end = TrialState.WAITING, None, None
        record.starts(event["device"], event["lane"], event["time"])
    elif kind == "ready":
        record.lane_up(event["time"])
    elif kind == "retry":
        record.failures += bool(event.get("failed"))
        record.lane_deaths += bool(event.get("lane_died"))
    elif kind == "stop":
        record.withdrawn = TrialState.STOPPED
    elif kind == "pause":
        record.pauses(event["time"])
    elif kind == "resume":
        record.goes_on(event["time"])
    elif kind == "report":
        value = event["metrics"].get(metric)
        value = math.nan if value is None else float(value)
        record.add(Report(record.trial, record.attempts - 1, operator.index(event["step"]), value, line))
    elif kind == "estimate":
        record.estimate = Estimate(*event["estimate"]) if event["estimate"] else None
    elif kind == "end":
        if is_put_off(event):
            return
        record.state = TrialState(event["state"])
        record.end = event["time"]
        record.goes_on(event["time"])
        get, (demand, seconds, record.lasted) = event.get, measured_in(event)
        demand, expected_seconds = demand or record.measures.demand, _figure(get("expected_seconds"))
        record.measures = Measures(
            demand, get("expected"), seconds, expected_seconds, get("slowdown"), get("speed", 1.0)
        )
        if event["error"] is not None:
            name, message, hint = event["error"]
            record.error = errors.class_named(name)(message, hint=hint)


def is_put_off(end: dict[str, Any]) -> bool:
    """Whether a trial that ended will run again: its checkpoint could not be written, so it has not failed for good."""
    return end["error"] is not None and bool(end["error"][0] == errors.StorageError.__name__)


def measured_in(end: Mapping[str, Any]) -> tuple[Demand | None, float | None, float | None]:
    """A trial's demand, how long it had the turn, and how long its last attempt took, according to its `end` event.

    Each is None if it was not measured.

    Raises:
        LookupError: One of them is missing.
        TypeError: One of them is no number.
        ValueError: One of them is less than 0, or infinite.
        OverflowError: One of them is too large.
    """
    demand = None
    if end["persistent"] is not None:
        held, taken = operator.index(end["persistent"]), operator.index(end["ephemeral"])
        if min(held, taken) < 0:
            raise ValueError(min(held, taken))
        demand = Demand(held, taken, _figure(end.get("busy")))
    return demand, _figure(end.get("seconds")), _figure(end.get("lasted"))


def _figure(value: Any) -> float | None:
    if value is not None and not 0 <= value < math.inf:
        raise ValueError(value)
    return None if value is None else float(value)
