"""The trials of a run, and the events file that keeps them."""

from cotune.record.events import DAMAGED, VERSION, EventLog, read_events
from cotune.record.reading import Saved, has_started, is_put_off, measured_in, read_run, replay, study_of
from cotune.record.record import Record, error_of
from cotune.record.records import Records

__all__ = [
    "DAMAGED",
    "VERSION",
    "EventLog",
    "Record",
    "Records",
    "Saved",
    "error_of",
    "has_started",
    "is_put_off",
    "measured_in",
    "read_events",
    "read_run",
    "replay",
    "study_of",
]
