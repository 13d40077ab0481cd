"""A trial's checkpoints, each published as a whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from cotune.errors import InputError, StorageError
from cotune.paths import TrialFolder

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
_OWN = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError)
# Bytes written to find out whether the file system refused a checkpoint.
_PROBE = 1 << 20


class Checkpoints:
    """Saves checkpoints of one trial.

    Args:
        trial: The trial's number.
        folder: The trial's folder.
        settle: Called before a checkpoint is published; waits until the reports so far are stored, and returns their
            number and whether the last one was the trial's last, or raises if the checkpoint is not wanted.
    """

    def __init__(self, trial: int, folder: TrialFolder, settle: Callable[[], tuple[int, bool]]) -> None:
        self._trial = trial
        self._folder = folder
        self._settle = settle
        self._is_saving = False

    @contextlib.contextmanager
    def save(self) -> Iterator[Path]:
        """A directory to write to, published when the block ends without an error.

        Raises:
            InputError: Another checkpoint is being written.
            StorageError: The checkpoint cannot be written.
        """
        if self._is_saving:
            raise InputError("checkpoint() was called within checkpoint()", hint="save everything in one directory")
        self._is_saving = True
        try:
            with self._one() as path:
                yield path
        finally:
            self._is_saving = False

    @contextlib.contextmanager
    def _one(self) -> Iterator[Path]:
        process = os.getpid()
        try:
            path = self._folder.begin_checkpoint()
        except OSError as error:
            raise self._not_saved(error) from error
        try:
            yield path
        except BaseException as error:
            if os.getpid() != process:
                raise
            refused = _refused(error, path)
            shutil.rmtree(path, ignore_errors=True)
            if refused is not None:
                raise self._not_saved(refused) from error
            raise
        if os.getpid() != process:
            # A process that the trial has forked within the block leaves it too, and must not publish.
            return
        if not path.is_dir():
            raise InputError(
                f"the directory of a checkpoint is gone: {path}",
                hint="leave it where it is: when the block ends, it is published as a whole",
            )
        try:
            reports, is_last = self._settle()
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
        try:
            self._folder.publish_checkpoint(path, reports, is_last)
        except OSError as error:
            raise self._not_saved(error) from error

    def _not_saved(self, error: OSError) -> StorageError:
        return StorageError(
            f"checkpoint of trial {self._trial} not saved under {self._folder.checkpoints}: {error.strerror or error}",
            hint="make room: resume=True of cotune.run goes on from the checkpoint before; or pass another storage=",
        )


def _refused(error: BaseException, path: Path) -> OSError | None:
    """The file system's error, if that is why a checkpoint was not written below `path`."""
    # A file that is not there, or is there already, is the trainable's own mistake, as long as the directory is.
    is_own = isinstance(error, _OWN) and path.is_dir()
    if isinstance(error, OSError) and (error.errno in _NO_ROOM or (_is_below(error.filename, path) and not is_own)):
        return error
    if isinstance(error, Exception):
        # Libraries raise errors of their own instead (torch: "unexpected pos"), so a probe is written.
        try:
            (path / ".probe").write_bytes(bytes(_PROBE))
        except OSError as refusal:
            return refusal if refusal.errno in _NO_ROOM else None
    return None


def _is_below(name: object, path: Path) -> bool:
    return isinstance(name, (str, bytes, os.PathLike)) and os.fsdecode(name).startswith(str(path))
