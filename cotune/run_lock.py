"""One driver at a time for each run."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from cotune.errors import RunNameInUse
from cotune.paths import RunFolder


def is_running(folder: RunFolder) -> bool:
    """Whether a driver holds the run's lock now."""
    try:
        fd = os.open(folder.lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


@contextlib.contextmanager
def locked(folder: RunFolder) -> Iterator[None]:
    """Holds the run's lock, which ends with this process, however it ends."""
    fd = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(fd, 32).decode(errors="replace").strip() or "unknown"
            raise RunNameInUse(
                f"run {folder.path.name!r} is running now, in process {owner}",
                hint="wait for it, stop it, or choose another name=",
            ) from error
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(fd)
