"""Removes temporary directories where a process ends without Python's own hooks for that."""

from __future__ import annotations

import contextlib
import tempfile
import weakref
from collections.abc import Iterator
from typing import Any


def disown_temporary() -> None:
    """Leaves all temporary directories that there are to the process which has made them, and has forked this one."""
    for finalizer in _finalizers():
        finalizer.atexit = False


def remove_temporary() -> None:
    """Removes each `TemporaryDirectory` of this process that has not been cleaned up."""
    for finalizer in _finalizers():
        # Removed or not, it warns that nobody has cleaned it up, which may be an error.
        with contextlib.suppress(Exception):
            if finalizer.atexit:
                finalizer()


def _finalizers() -> Iterator[weakref.finalize[Any, Any]]:
    # A table of Python's own that is not public. Other finalizers stay: torch has hundreds, which free memory.
    remove = getattr(tempfile.TemporaryDirectory, "_cleanup", None)
    for finalizer, told in list(getattr(weakref.finalize, "_registry", {}).items()):
        if remove is not None and getattr(told.func, "__func__", None) is remove.__func__:
            yield finalizer
