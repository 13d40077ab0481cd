"""The folder of a run: what is in it, and how it is claimed.

<storage>/.profiles/      what trials of a trainable were estimated and measured to need (`driver/profile.py`)
<storage>/<run>/
  run.lock              held by the driver while it runs
  events.jsonl          what happened, append-only: the source for resume, traces and reports
  optuna.journal        the study, for optuna-dashboard
  lanes/                for each machine of a cluster in a folder of its own
    lane-3.log          what a lane printed outside of trials
    zygote.log          the same of the process that forks lanes
  trials/0007/
    log.txt             what the trial printed
    error.txt           the traceback of its last failure
    checkpoints/000012-001/   taken after 12 reports, published by rename
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cotune.errors import RunNameInUse, StorageError

# Behind the number of a checkpoint after which the trial makes no more reports.
_LAST = "-last"
_CHECKPOINT = re.compile(rf"\d+-\d+({_LAST})?")
# Seconds in which whoever looks whether a run is locked has looked.
LOOKS_WITHIN = 0.1

log = logging.getLogger(__name__)


def storage_folder(named: str | os.PathLike[str] | None = None) -> Path:
    """The folder for runs that was named, else `COTUNE_STORAGE`, else `~/cotune_runs`; absolute.

    Raises:
        StorageError: There is none: no home directory, or no working directory for a relative one to begin at.
    """
    chosen = named if named is not None else os.environ.get("COTUNE_STORAGE") or "~/cotune_runs"
    try:
        return Path(chosen).expanduser().absolute()
    except (RuntimeError, OSError) as error:
        raise StorageError(
            f"{str(chosen)!r} is no folder for runs: {getattr(error, 'strerror', None) or error}",
            hint="pass storage= with an absolute path, or set COTUNE_STORAGE to one",
        ) from None


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run."""

    path: Path

    @property
    def lock(self) -> Path:
        return self.path / "run.lock"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def journal(self) -> Path:
        return self.path / "optuna.journal"

    @property
    def lanes(self) -> Path:
        return self.path / "lanes"

    @property
    def trials(self) -> Path:
        return self.path / "trials"

    def trial(self, trial: int) -> TrialFolder:
        return TrialFolder(self.trials / f"{trial:04d}")

    def create(self) -> None:
        """Makes the folder.

        Raises:
            StorageError: It cannot be made or written.
        """
        try:
            self.lanes.mkdir(parents=True, exist_ok=True)
            probe = self.path / f".writable-{os.getpid()}"
            probe.write_bytes(b"x")
            probe.unlink()
        except (OSError, ValueError) as error:
            raise StorageError(
                f"cannot write the run folder {self.path}: {getattr(error, 'strerror', None) or error}",
                hint="pass storage= with a folder you may write to that has room, or set COTUNE_STORAGE",
            ) from None

    def has_begun(self) -> bool:
        """Whether it has the events of a run.

        Raises:
            StorageError: It cannot be looked into.
        """
        try:
            return self.events.exists()
        except (OSError, ValueError) as error:
            raise StorageError(
                f"cannot look into {self.path}: {getattr(error, 'strerror', None) or error}",
                hint="pass storage= with a folder you may read, or set COTUNE_STORAGE",
            ) from None

    @property
    def is_locked(self) -> bool:
        """Whether a driver holds the run's lock now."""
        try:
            fd = os.open(self.lock, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            # Nobody can lock here.
            return False
        finally:
            os.close(fd)
        return False

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the run's lock, of which one driver at a time has it; it ends with this process, however that ends.

        Raises:
            RunNameInUse: Another one has it.
            StorageError: Its file cannot be opened.
        """
        try:
            fd = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StorageError(
                f"{self.lock} cannot be opened: {error.strerror}",
                hint="whoever resumes a run needs the right to write to its folder; or choose another name=",
            ) from error
        _locks.add(fd)
        try:
            try:
                _lock(fd)
            except BlockingIOError as error:
                owner = os.read(fd, 32).decode(errors="replace").strip() or "unknown"
                raise RunNameInUse(
                    f"run {self.path.name!r} is running now, in process {owner}",
                    hint="wait for it, stop it, or choose another name=",
                ) from error
            except OSError as error:
                log.warning(
                    "%s cannot be locked (%s): nothing keeps two runs from that name", self.path, error.strerror
                )
            os.ftruncate(fd, 0)
            os.pwrite(fd, str(os.getpid()).encode(), 0)
            yield
        finally:
            if fd in _locks:
                _locks.remove(fd)
                os.close(fd)


def _lock(fd: int) -> None:
    """Takes the lock of a run; whoever looks whether it is taken has it for an instant.

    Raises:
        BlockingIOError: Another driver has it.
        OSError: The file system has no locks.
    """
    deadline = time.monotonic() + LOOKS_WITHIN
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(LOOKS_WITHIN / 10)


# A process that the driver forks has them too, and would hold them after it.
_locks: set[int] = set()


def _let_go() -> None:
    for fd in _locks:
        os.close(fd)
    _locks.clear()


os.register_at_fork(after_in_child=_let_go)


@dataclass(frozen=True, slots=True)
class TrialFolder:
    """The folder of one trial."""

    path: Path

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    @property
    def error(self) -> Path:
        return self.path / "error.txt"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def create(self) -> None:
        """Makes the folder and an empty log, ahead of the trial: on some file systems that takes a millisecond.

        Raises:
            StorageError: That is not possible.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
        except OSError as error:
            raise StorageError(
                f"cannot make the folder {self.path}: {error.strerror or error}",
                hint="make room there and see that it can be written; what has run so far is kept",
            ) from error

    def renew(self) -> None:
        """Makes the folder, without what an earlier trial of the same number may have left there."""
        if self.path.exists():
            shutil.rmtree(self.path, ignore_errors=True)
        self.create()

    def latest_checkpoint(self) -> Path | None:
        """The newest published checkpoint, or None."""
        published = self._published()
        return published[-1] if published else None

    def reports_at_checkpoint(self) -> int:
        """Reports the trial had made when its newest checkpoint was published; 0 without one."""
        latest = self.latest_checkpoint()
        return int(latest.name.split("-")[0]) if latest else 0

    def is_over_at_checkpoint(self) -> bool:
        """Whether the trial had made its last report when its newest checkpoint was published."""
        latest = self.latest_checkpoint()
        return latest is not None and latest.name.endswith(_LAST)

    def begin_checkpoint(self) -> Path:
        """A fresh directory to write a checkpoint into."""
        for torn in self.checkpoints.glob(".writing-*"):
            shutil.rmtree(torn, ignore_errors=True)
        path = self.checkpoints / f".writing-{os.getpid()}"
        path.mkdir(parents=True)
        return path

    def publish_checkpoint(self, written: Path, reports: int, is_last: bool = False) -> Path:
        """Renames a written checkpoint into place, then removes the older ones."""
        before = self._published()
        number = int(before[-1].name.split("-")[1]) + 1 if before else 1
        path = self.checkpoints / f"{reports:06d}-{number:06d}{_LAST if is_last else ''}"
        written.rename(path)
        for old in before:
            shutil.rmtree(old, ignore_errors=True)
        return path

    def _published(self) -> list[Path]:
        if not self.checkpoints.is_dir():
            return []
        names = [entry for entry in self.checkpoints.iterdir() if _CHECKPOINT.fullmatch(entry.name)]
        return sorted(names, key=lambda path: int(path.name.split("-")[1]))
