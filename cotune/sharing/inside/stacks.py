"""The stacks of the threads that a trial starts: small ones on a CPU, where all that is reserved counts as memory.

glibc gives threads as much as the main thread may have, usually 8 MiB. TensorFlow starts enough of them, most of them
idle, to reserve ten times what it uses, and ends the process if one is refused.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator

from cotune.demand import MIB

# What glibc gives to threads of x86 and ARM where the main thread's stack has no limit.
SMALL = 2 * MIB
# More than `pthread_attr_t` has on any of its architectures.
_ATTRIBUTES = 128
_libc = ctypes.CDLL(None)


class Stacks:
    """Makes the stacks of new threads small, also of those that native code starts.

    Larger ones by `threading.stack_size()`, or by attributes of their own, stay.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Bytes by default before; 0 while that is still so.
        self._full = 0

    @property
    def full_size(self) -> int:
        """Bytes of a stack within `full`; 0 if the C library cannot tell."""
        return self._full or default_size()

    def shrink(self) -> None:
        """Makes stacks small from now on."""
        full = default_size()
        if full > SMALL:
            self._full = full
            _set_default(SMALL)

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """Gives threads that are started meanwhile a stack as large as they would have without a lane."""
        if not self._full:
            yield
            return
        # The size is that of the whole process: another thread must not put it back meanwhile.
        with self._lock:
            _set_default(self._full)
            try:
                yield
            finally:
                _set_default(SMALL)


def default_size() -> int:
    """Bytes of a new thread's stack by default; 0 if the C library cannot tell."""
    attributes, size = ctypes.create_string_buffer(_ATTRIBUTES), ctypes.c_size_t()
    if not hasattr(_libc, "pthread_setattr_default_np") or _libc.pthread_getattr_default_np(attributes):
        return 0
    _libc.pthread_attr_getstacksize(attributes, ctypes.byref(size))
    _libc.pthread_attr_destroy(attributes)
    return size.value


def _set_default(size: int) -> None:
    attributes = ctypes.create_string_buffer(_ATTRIBUTES)
    if not _libc.pthread_getattr_default_np(attributes):
        _libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(size))
        _libc.pthread_setattr_default_np(attributes)
        _libc.pthread_attr_destroy(attributes)


def can_start_thread() -> bool:
    """Whether this process can start a thread now."""
    thread = threading.Thread(target=lambda: None, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return False
    thread.join()
    return True
