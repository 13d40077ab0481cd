"""What a run remembers: its trials, and the events file that keeps them."""

from cotune.record.events import DAMAGED, VERSION, EventLog, read_events
from cotune.record.reading import Saved, check_version, read_run
from cotune.record.record import Record, best_of, end_event, error_of, json_safe
from cotune.record.records import Records, seed_of

__all__ = [
    "DAMAGED",
    "VERSION",
    "EventLog",
    "Record",
    "Records",
    "Saved",
    "best_of",
    "check_version",
    "end_event",
    "error_of",
    "json_safe",
    "read_events",
    "read_run",
    "seed_of",
]
