"""Signals that end a sweep in order."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handles Ctrl-C and SIGTERM within a block; does nothing outside the main thread, where Python cannot.

    A signal that is ignored stays ignored: a shell does so with Ctrl-C for background jobs of a script.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    process = os.getpid()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ours = {number: was for number, was in before.items() if was not in (signal.SIG_IGN, None)}

    def heard(number: int, frame: FrameType | None) -> None:
        if os.getpid() == process:
            handler(number, frame)
        else:
            # A process forked by a callback, such as a pool's worker, handles the signal as before this block.
            signal.signal(number, ours[signal.Signals(number)])
            os.kill(os.getpid(), number)

    for number in ours:
        signal.signal(number, heard)
    try:
        yield
    finally:
        for number, was in ours.items():
            signal.signal(number, was)
