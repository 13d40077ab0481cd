"""Every error cotune raises.

CotuneError                  what was wrong, with the value; `hint` says what to do
├── InputError (ValueError)  something passed to cotune was wrong
│   ├── SpaceError           the search space
│   ├── DeviceError          no such device, or none at all
│   ├── NotPicklable         the trainable or a config cannot be sent to a lane
│   └── MetricError          NaN or non-numeric metric
│       └── UnknownMetric    the first report does not carry the run's metric
├── RunError                 a run as a whole
│   ├── RunNameInUse         a run of that name exists or is running
│   └── StorageError         the run folder cannot be written or read
├── TrialError               one trial
│   ├── TrialFailed          the trainable raised
│   ├── NoReport             the trainable ended without a report
│   ├── TrialTooLarge        the trial does not fit an empty device
│   ├── TrialOverdue         the trial did not reach an iteration boundary in time
│   └── LaneDied             the lane's process died under the trial
└── NoResult                 a result was asked for that no trial produced
"""

from __future__ import annotations

from typing import Any

_HINT = "\n  hint: "


class CotuneError(Exception):
    """Base of every error cotune raises.

    Args:
        message: What is wrong, with the offending value.
        hint: What to do about it.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}{_HINT}{self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Ray raises an error as an instance of a derived class, whose constructor takes other arguments.
        ours = next(cls for cls in type(self).__mro__ if cls.__module__ != "ray.exceptions")
        return _rebuild, (ours, self.message, self.hint)


def message_and_hint(text: str) -> tuple[str, str]:
    """Splits the `str` of an error into its message and its hint."""
    message, _, hint = text.partition(_HINT)
    return message, hint


def printable(text: str, keep: str = "") -> str:
    """A text, which may quote what a trial raised, without control characters that could clear the screen."""
    return "".join(char if char.isprintable() or char in keep else "\N{REPLACEMENT CHARACTER}" for char in text)


def first_line(said: object, most: int = 200) -> str:
    """The first line of a text, or of what an error says, cut to `most` characters; empty if it says nothing."""
    line = next(iter(str(said).strip().splitlines()), "")
    return line if len(line) <= most else line[: most - 1] + "…"


def _rebuild(cls: type[CotuneError], message: str, hint: str) -> CotuneError:
    return cls(message, hint=hint)


def class_named(name: str) -> type[CotuneError]:
    """The error class of this name; `TrialFailed` if cotune has no such class."""
    cls = globals().get(name)
    return cls if isinstance(cls, type) and issubclass(cls, CotuneError) else TrialFailed


class InputError(CotuneError, ValueError):
    """An argument is wrong."""


class SpaceError(InputError):
    """The search space is wrong."""


class DeviceError(InputError):
    """A device was asked for that does not exist."""


class NotPicklable(InputError):
    """The trainable or a config cannot be sent to a lane process."""


class MetricError(InputError):
    """A metric is NaN, or not a number."""


class UnknownMetric(MetricError):
    """The first report does not carry the run's metric, so that no other trial's will."""


class RunError(CotuneError):
    """A run as a whole cannot go on."""


class RunNameInUse(RunError):
    """A run of this name exists already, or is running now."""


class StorageError(RunError):
    """The run folder cannot be written or read."""


class TrialError(CotuneError):
    """One trial cannot go on."""


class TrialFailed(TrialError):
    """The trainable raised."""


class NoReport(TrialError):
    """The trainable ended without reporting anything."""


class TrialTooLarge(TrialError):
    """The trial does not fit an empty device."""


class TrialOverdue(TrialError):
    """The trial did not reach an iteration boundary in time."""


class LaneDied(TrialError):
    """The lane process died under the trial, or its device was lost, too many times."""


class NoResult(CotuneError):
    """A result was asked for that no trial produced."""


# Hints for trial errors, by class name, that hold wherever the trial runs.
HINTS = {
    "TrialTooLarge": "shrink the model or the batch in the search space, or use a device with more memory",
    "TrialOverdue": "raise iteration_timeout=, or report more often",
}
