"""The events file of a run: append-only JSON lines, from which a run is resumed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cotune.errors import StorageError

VERSION = 1
# The end of the year 9998, in seconds since 1970: other parts of Python know no later dates than the year after.
LATEST = 253370764800.0
DAMAGED = (
    "the file was changed by something else: cut off that line and what follows it, to go on from there, "
    "or choose another name="
)


class EventLog:
    """Writes events; what was flushed survives the death of this process.

    Args:
        path: The file, created if missing; a torn last line is cut off.

    Raises:
        StorageError: The file cannot be opened or written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[bytes] = []
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise self._error(error) from error
        try:
            self._cut_torn_line()
            # Identifies the file, to notice when it is removed or replaced.
            self._stat = os.fstat(self._fd)
        except OSError as error:
            os.close(self._fd)
            raise self._error(error) from error

    def write(self, event: str, time: float, **fields: Any) -> None:
        record = {"event": event, "time": round(time, 6), **fields}
        self._lines.append(json.dumps(record, separators=(",", ":"), default=str).encode() + b"\n")

    def write_line(self, line: bytes) -> None:
        """Adds an event that is encoded already."""
        self._lines.append(line)

    def flush(self) -> None:
        """Hands everything to the operating system in one call."""
        if not self._lines:
            return
        data, self._lines = b"".join(self._lines), []
        try:
            while data:
                data = data[os.write(self._fd, data) :]
            is_there = self._is_there()
        except OSError as error:
            # The rest is written later from where this write stopped, not behind a torn line.
            self._lines.insert(0, data)
            raise self._error(error) from error
        if not is_there:
            raise StorageError(
                f"{self._path} was removed or moved while the run goes on: what follows would be lost",
                hint="to end a run press Ctrl-C; remove or move its folder when it is over",
            )

    def close(self) -> None:
        try:
            self.flush()
        finally:
            os.close(self._fd)
            # A later write fails, instead of writing into another file that has got the same descriptor.
            self._fd = -1

    def _is_there(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), self._stat)
        except FileNotFoundError:
            return False
        except OSError:
            # This write has succeeded; if something is wrong, the next one raises.
            return True

    def _cut_torn_line(self) -> None:
        size = os.fstat(self._fd).st_size
        end = size
        while end > 0:
            start = max(0, end - 65536)
            newline = os.pread(self._fd, end - start, start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            os.ftruncate(self._fd, end)

    def _error(self, error: OSError) -> StorageError:
        return StorageError(
            f"cannot write {self._path}: {error.strerror or error}",
            hint="make room, then go on with resume=True, or with optimize() on the same study: what was written stays",
        )


def read_events(path: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yields the events of a file with their lines, up to a torn last line.

    Raises:
        StorageError: The file cannot be read, or is not an events file.
    """
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    return
                try:
                    event = json.loads(line)
                    if not 0.0 <= event["time"] < LATEST or not event["event"]:
                        raise ValueError(event["time"])
                except (ValueError, KeyError, TypeError, RecursionError) as error:
                    raise StorageError(
                        f"line {number} of {path} is not an event: {line[:80]!r}",
                        hint=DAMAGED,
                    ) from error
                yield event, line
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}", hint="check storage= and name=") from error
