"""Optuna's journal with write-behind: records are readable at once, and written to the file in batches."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import stat
import threading
import warnings
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optuna.exceptions import ExperimentalWarning
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend
from optuna.trial import FrozenTrial, TrialState

from cotune.errors import StorageError

log = logging.getLogger(__name__)
_encode = json.JSONEncoder(separators=(",", ":")).encode


class RunStorage(JournalStorage):
    """A storage that only this process uses.

    `study.ask()` first searches all trials for enqueued ones. As a rule there are none here, and this class knows so
    without a search.

    Attributes:
        has_noted: Whether the sampler or the pruner has noted something since this was last set to False.
    """

    has_noted = False
    _may_wait = True

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        super().set_study_system_attr(study_id, key, value)
        self.has_noted = True

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        super().set_trial_system_attr(trial_id, key, value)
        self.has_noted = True

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        try:
            return super().create_new_trial(study_id, template_trial)
        finally:
            self._may_wait |= template_trial is not None

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        are_waiting = states == (TrialState.WAITING,)
        if are_waiting and not self._may_wait:
            return []
        found = super().get_all_trials(study_id, deepcopy, states)
        if are_waiting:
            self._may_wait = bool(found)
        return found


@dataclass(frozen=True, slots=True)
class SystemAttributes:
    """The state of samplers and pruners: how far a sequence has come, which values were seen at a rung.

    Attributes:
        study: Attributes of the study as a whole.
        trials: Attributes of trials, by number.
    """

    study: Mapping[str, Any] = field(default_factory=dict)
    trials: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)


def system_attributes(path: Path) -> SystemAttributes:
    """The attributes in a journal; empty if there is no readable journal: sampler and pruner then begin anew."""
    if not path.exists():
        return SystemAttributes()
    try:
        with contextlib.closing(WriteBehindBackend(path)) as backend, warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            storage = JournalStorage(backend)
            studies = [study._study_id for study in storage.get_all_studies()]
            if not studies:
                raise ValueError("it holds no study")
            (study,) = studies
            trials = {trial.number: trial.system_attrs for trial in storage.get_all_trials(study, deepcopy=False)}
            return SystemAttributes(storage.get_study_system_attrs(study), trials)
    except Exception as error:
        log.warning("%s cannot be taken up (%s): sampler and pruner know of trials only", path, error)
        return SystemAttributes()


class WriteBehindBackend(BaseJournalBackend):
    """A journal backend whose records can be read at once and reach the file with `flush()`.

    The stock backend takes a lock, appends and syncs for every record, which costs milliseconds on a slow
    disk. Here one process is the only writer, so a record costs its encoding. The file has the stock format,
    and what `JournalFileBackend` and optuna-dashboard read is always a valid journal, a few records behind
    while the run goes on. Records are encoded when they are appended, not when they are written: the caller
    that passes an unstorable value gets the error, and what it changes afterwards does not change the record.

    Args:
        path: The journal, created if missing. A last line torn by the death of its writer is cut off.

    Raises:
        StorageError: The file cannot be opened, or is not a journal.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._lock = threading.Lock()
        self._recent: list[dict[str, Any]] = []  # records from number `_first` on
        self._first = 0
        self._lines: list[str] = []  # encoded records that are not in the file yet
        try:
            self._fd: int | None = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError as error:
            raise self._error("cannot be opened", error) from error
        try:
            self._load(self._fd)
        except BaseException:
            os.close(self._fd)
            raise

    @property
    def pending(self) -> int:
        """How many records are not in the file yet."""
        return len(self._lines)

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        """The records from a number on, written or not.

        Raises:
            StorageError: Older records were asked for, and the file cannot be read.
        """
        with self._lock:
            if log_number_from >= self._first:
                return self._recent[log_number_from - self._first :]
            try:
                with open(self._path, "rb") as file:
                    written = [json.loads(line) for line, _ in zip(file, range(self._first), strict=False)]
            except (OSError, ValueError) as error:
                raise self._error("cannot be read", error) from error
            return written[log_number_from:] + self._recent

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Appends records in memory, without touching the file.

        Raises:
            TypeError: A record holds a value that JSON cannot express, as with the stock backend.
            StorageError: The journal is closed.
        """
        lines = [_encode(log) for log in logs]
        with self._lock:
            if self._fd is None:
                raise StorageError(f"the journal {self._path} is closed", hint="the run it belongs to has ended")
            self._lines += lines
            self._recent += [json.loads(line) for line in lines]

    def flush(self) -> None:
        """Appends all pending records to the file, or none.

        Raises:
            StorageError: The file cannot be written. Everything stays pending, and a later flush tries again.
        """
        with self._lock:
            if self._lines and self._fd is not None:
                self._write(self._fd, ("\n".join(self._lines) + "\n").encode())
                self._lines.clear()
                self._first += len(self._recent)
                self._recent.clear()

    def move(self, path: Path) -> None:
        """Renames the file, replacing an existing file of that name.

        Raises:
            StorageError: The file cannot be renamed.
        """
        with self._lock:
            try:
                os.replace(self._path, path)
            except OSError as error:
                raise self._error("cannot be replaced", error) from error
            self._path = os.fspath(path)

    def close(self) -> None:
        """Flushes and closes the file; further calls do nothing.

        Raises:
            StorageError: The file cannot be written. It is closed all the same.
        """
        try:
            self.flush()
        finally:
            with self._lock:
                if self._fd is not None:
                    os.close(self._fd)
                    self._fd = None

    def _write(self, fd: int, data: bytes) -> None:
        size = os.fstat(fd).st_size
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(fd, left) :]
        except OSError as error:
            # A partial batch ends in a torn line, and the next flush would write its records again.
            with contextlib.suppress(OSError):
                os.ftruncate(fd, size)
            raise self._error("cannot be written", error) from error

    def _load(self, fd: int) -> None:
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return
            with open(fd, "rb", closefd=False) as file:
                valid = sum(map(self._take, self._whole_lines(file.read())))
            if valid < os.fstat(fd).st_size:
                os.ftruncate(fd, valid)
        except OSError as error:
            raise self._error("cannot be read", error) from error

    def _whole_lines(self, data: bytes) -> Iterator[bytes]:
        lines = data.splitlines(keepends=True)
        if lines and not _is_whole(lines[-1]):
            # Only a line torn by a killed writer is cut off; a file of another kind is left alone.
            torn = lines.pop()
            if not lines and not torn.lstrip(b"\0").startswith(b"{") and torn.strip(b"\0\n"):
                raise self._not_a_journal(1)
        yield from lines

    def _take(self, line: bytes) -> int:
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict) or "op_code" not in record:
            raise self._not_a_journal(len(self._recent) + 1)
        self._recent.append(record)
        return len(line)

    def _not_a_journal(self, line: int) -> StorageError:
        return StorageError(
            f"{self._path} is not an Optuna journal: line {line} is no record",
            hint="it is damaged or another kind of file: move it away, or use another run name",
        )

    def _error(self, what: str, error: OSError | ValueError) -> StorageError:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return StorageError(
            f"the journal {self._path} {what}: {reason}",
            hint="check that its folder exists, may be written to, and has space left",
        )


def _is_whole(line: bytes) -> bool:
    if not line.endswith(b"\n"):
        return False
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
