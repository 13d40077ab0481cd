"""Signals that end a sweep in order."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cotune.driver.sweep import Sweep


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


class Interrupts:
    """Lets Ctrl-C and SIGTERM end a sweep in order, also those that come before it is set up.

    Python's own handler raises wherever the thread happens to be: within a callback of the garbage collector, as
    SQLAlchemy has them, the exception is lost.

    Args:
        last: After so many signals a sweep's loop is no longer waited for: a policy of the user may never return.

    Attributes:
        received: The signals so far.
        serving: While it is set, the second signal interrupts this thread; otherwise only the one after `last`.
    """

    def __init__(self, last: int) -> None:
        self._last = last
        self.received: list[int] = []
        self.serving = threading.Event()
        self._sweep: Sweep | None = None

    @contextlib.contextmanager
    def handled(self, *again: int) -> Iterator[None]:
        """Handles signals within a block, and raises the first of those in `again` behind it."""
        try:
            with handled_by(self._receive):
                yield
        except KeyboardInterrupt:
            # A script may catch this and go on, which SIGTERM does not mean.
            if signal.SIGTERM in self.received:
                signal.raise_signal(signal.SIGTERM)
            raise
        for number in [one for one in self.received if one in again][:1]:
            signal.raise_signal(number)

    def end(self, sweep: Sweep) -> None:
        """Interrupts this sweep from now on."""
        self._sweep = sweep
        for _ in self.received:
            sweep.interrupt()

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        self.received.append(number)
        is_setting_up = self._sweep is None
        if self._sweep is not None:
            self._sweep.interrupt()
        if len(self.received) > (1 if is_setting_up or self.serving.is_set() else self._last):
            raise KeyboardInterrupt
