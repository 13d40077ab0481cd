"""The folder of a run: what is in it, and how a driver locks it.

<storage>/.profiles/      estimated and measured demands of a trainable's trials (`driver/profile.py`)
<storage>/<run>/
  run.lock              held by the driver while it runs
  events.jsonl          what happened, append-only: the source for resume, traces and reports
  optuna.journal        the study, for optuna-dashboard
  lanes/                on a cluster, with a folder for each device
    lane-3.log          what a lane printed outside of trials
    zygote.log          what the zygote, which forks lanes, printed
  trials/0007/
    log.txt             what the trial printed
    error.txt           the traceback of its last failure
    checkpoints/000012-000001/   the first, taken after 12 reports, published by rename
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

# Suffix of a checkpoint after which the trial makes no more reports.
_LAST = "-last"
# Prefix of a checkpoint that is being written.
_WRITING = ".writing-"
_CHECKPOINT = re.compile(rf"\d+-\d+({_LAST})?")
# Seconds within which `is_locked`, which takes the lock for an instant, has released it.
LOOKS_WITHIN = 0.1

log = logging.getLogger(__name__)


def storage_folder(named: str | os.PathLike[str] | None = None) -> Path:
    """The absolute path of the folder for runs: `named`, else `COTUNE_STORAGE`, else `~/cotune_runs`.

    Raises:
        StorageError: There is no home directory, or no working directory for a relative path to start from; or it is a
            URL.
    """
    # Containers and services get variables that no shell has expanded.
    chosen = named if named is not None else os.path.expandvars(os.environ.get("COTUNE_STORAGE") or "~/cotune_runs")
    if "://" in str(chosen):
        raise StorageError(
            f"{str(chosen)!r} is no folder for runs", hint="runs are stored on this machine: name a folder"
        )
    try:
        return Path(chosen).expanduser().absolute()
    except (RuntimeError, OSError) as error:
        raise StorageError(
            f"{str(chosen)!r} is no folder for runs: {getattr(error, 'strerror', None) or error}",
            hint="pass storage= with an absolute path, or set COTUNE_STORAGE to one",
        ) from None


def working_directory() -> str:
    """The working directory; empty if it has been removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


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
            try:
                probe.write_bytes(b"x")
            finally:
                probe.unlink(missing_ok=True)
        except (OSError, ValueError) as error:
            raise StorageError(
                f"cannot write the run folder {self.path}: {getattr(error, 'strerror', None) or error}",
                hint="pass storage= with a folder you may write to that has room, or set COTUNE_STORAGE",
            ) from None

    def has_begun(self) -> bool:
        """Whether the folder has the events file of a run.

        Raises:
            StorageError: The folder cannot be searched.
        """
        try:
            return self.events.exists()
        except (OSError, ValueError) as error:
            raise StorageError(
                f"cannot look into {self.path}: {getattr(error, 'strerror', None) or error}",
                hint="pass storage= with a folder you may read, or set COTUNE_STORAGE",
            ) from None

    def clear(self) -> None:
        """Removes the events, the journal and the trials.

        Raises:
            StorageError: They cannot be removed.
        """
        try:
            self.journal.unlink(missing_ok=True)
            if self.trials.exists():
                shutil.rmtree(self.trials)
            # Last: a folder with anything else but no events belongs to nobody.
            self.events.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(
                f"cannot clear the run folder {self.path}: {error.strerror or error}", hint="choose another name="
            ) from error

    @property
    def is_locked(self) -> bool:
        """Whether a driver holds the run's lock now."""
        try:
            fd = os.open(self.lock, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, PermissionError):
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            # The file system has no locks.
            return False
        finally:
            os.close(fd)
        return False

    @contextlib.contextmanager
    def locked(self, *, is_named: bool = True) -> Iterator[None]:
        """Holds the run's lock, which one driver at a time can have; it is released when this process dies, too.

        Args:
            is_named: Whether the user has named the run. Otherwise nobody else waits for it, and where the block raises
                before it writes anything the folder is removed.

        Raises:
            RunNameInUse: Another driver holds the lock.
            StorageError: The lock file cannot be opened.
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
            except BlockingIOError:
                owner = os.read(fd, 32).decode(errors="replace").strip() or "unknown"
                raise RunNameInUse(
                    f"run {self.path.name!r} is running now, in process {owner}",
                    hint="wait for it, stop it, or choose another name=",
                ) from None
            except OSError as error:
                log.warning(
                    "%s cannot be locked (%s): nothing keeps two runs from that name", self.path, error.strerror
                )
            os.ftruncate(fd, 0)
            os.pwrite(fd, str(os.getpid()).encode(), 0)
            yield
        except BaseException:
            if not is_named:
                self._remove_unused()
            raise
        finally:
            if fd in _locks:
                _locks.remove(fd)
                os.close(fd)

    def _remove_unused(self) -> None:
        """Removes the folder if it has but the lock."""
        with contextlib.suppress(OSError):
            self.lanes.rmdir()
            if os.listdir(self.path) == [self.lock.name]:
                self.lock.unlink()
                self.path.rmdir()


def _lock(fd: int) -> None:
    """Takes the lock of a run, retrying since `is_locked` in another process holds it for an instant.

    Raises:
        BlockingIOError: Another driver holds it.
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


# A forked child inherits these descriptors, and would hold the locks after the driver's end.
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
        """Makes the folder and an empty log before the trial starts: on some file systems that takes a millisecond.

        Raises:
            StorageError: The folder or the log cannot be made.
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
        """Makes the folder anew, removing what an earlier trial of the same number left there."""
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
        self.discard_torn()
        path = self.checkpoints / f"{_WRITING}{os.getpid()}"
        path.mkdir(parents=True)
        return path

    def discard_torn(self) -> None:
        """Removes a checkpoint whose writing was cut off."""
        try:
            names = os.listdir(self.checkpoints)
        except OSError:
            # There is none at all.
            return
        for name in names:
            if name.startswith(_WRITING):
                shutil.rmtree(self.checkpoints / name, ignore_errors=True)

    def publish_checkpoint(self, written: Path, reports: int, is_last: bool = False) -> Path:
        """Renames a written checkpoint into place, then removes the older ones."""
        before = self._published()
        number = int(before[-1].name.split("-")[1]) + 1 if before else 1
        path = self.checkpoints / f"{reports:06d}-{number:06d}{_LAST if is_last else ''}"
        written.rename(path)
        for old in before:
            shutil.rmtree(old, ignore_errors=True)
        return path

    def recount_checkpoint(self, reports: int) -> None:
        """Has the newest checkpoint count as published after so many reports."""
        latest = self.latest_checkpoint()
        if latest is not None:
            latest.rename(latest.with_name(f"{reports:06d}-{latest.name.partition('-')[2]}"))

    def note_last_report(self, reports: int) -> None:
        """Has the newest checkpoint count as that of the trial's last report, if it was saved ahead of that one.

        Args:
            reports: Number of the last report.
        """
        latest = self.latest_checkpoint()
        if latest is not None and self.reports_at_checkpoint() == reports and not self.is_over_at_checkpoint():
            latest.rename(latest.with_name(latest.name + _LAST))

    def _published(self) -> list[Path]:
        if not self.checkpoints.is_dir():
            return []
        names = [entry for entry in self.checkpoints.iterdir() if _CHECKPOINT.fullmatch(entry.name)]
        return sorted(names, key=lambda path: int(path.name.split("-")[1]))
