"""Signals that end a sweep in order."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from cotune.script.installed import is_own
from cotune.trainable import unwrapped

if TYPE_CHECKING:
    from cotune.driver.sweep import Sweep


# Seconds within which the same signal is no second one: programs around this one pass on what the terminal has sent to
# all of them, and `timeout` sends its signal to its child and to the child's group.
ECHO = 0.1


@contextlib.contextmanager
def handled_by(handler: Callable[[int, FrameType | None], None], *, leaves_own: bool = False) -> Iterator[None]:
    """Handles Ctrl-C and SIGTERM within a block; does nothing outside the main thread, where Python cannot.

    A signal that is ignored stays ignored: a shell does so with Ctrl-C for background jobs of a script.

    Args:
        handler: Called instead of Python's handler.
        leaves_own: Whether handlers of the user's own stay, too. Those of asyncio and of notebooks do not: they stop
            what waits in an event loop, where nothing waits during the block.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    process = os.getpid()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    left = (signal.SIG_IGN, None)
    ours = {number: was for number, was in before.items() if was not in left and not (leaves_own and _is_own(was))}

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


def _is_own(handler: Any) -> bool:
    """Whether a handler is of the script, or of another module of the user's own."""
    # A function that was made by exec() may have none.
    name = unwrapped(handler).__module__ or ""
    if name.partition(".")[0] == "cotune":
        # That of a call around this one, which may be made from a source folder.
        return False
    return name == "__main__" or (name in sys.modules and is_own(sys.modules[name]))


def _raise(number: int) -> None:
    """Has a signal do what it does to this process, also where it is the first of a container.

    Raises:
        SystemExit: The signal ends other processes. To the first one the kernel gives only those that it handles.
    """
    signal.raise_signal(number)
    if signal.getsignal(number) is signal.SIG_DFL:
        raise SystemExit(128 + number)


class Interrupts:
    """Lets Ctrl-C and SIGTERM end a sweep in order, also those that come before it is set up.

    Python's own handler raises wherever the thread happens to be: within a callback of the garbage collector, as
    SQLAlchemy has them, the exception is lost.

    Args:
        last: After so many signals a sweep's loop is no longer waited for: a policy of the user may never return.
        leaves_own: As for `handled_by`.

    Attributes:
        received: The signals so far.
        serving: While it is set, the second signal interrupts this thread; otherwise only the one after `last`.
    """

    def __init__(self, last: int, *, leaves_own: bool = False) -> None:
        self._last = last
        self._leaves_own = leaves_own
        self.received: list[int] = []
        self._last_at: dict[int, float] = {}
        self._has_raised = False
        self.serving = threading.Event()
        self._sweep: Sweep | None = None

    @contextlib.contextmanager
    def handled(self, *again: int) -> Iterator[None]:
        """Handles signals within a block, and raises the first of those in `again` behind it.

        Raises:
            KeyboardInterrupt: A second signal was received.
        """
        try:
            with handled_by(self._receive, leaves_own=self._leaves_own):
                yield
        except KeyboardInterrupt:
            # A script may catch this and go on, which SIGTERM does not mean.
            if signal.SIGTERM in self.received:
                _raise(signal.SIGTERM)
            raise
        for number in [one for one in self.received if one in again][:1]:
            _raise(number)
        if len(self.received) > 1 and not self._has_raised:
            # The second has come while the sweep was over already, and was being closed.
            raise KeyboardInterrupt

    def end(self, sweep: Sweep) -> None:
        """Interrupts this sweep from now on."""
        self._sweep = sweep
        if self.received:
            sweep.interrupt(len(self.received))

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._last_at.get(number, -math.inf) < ECHO:
            return
        self._last_at[number] = now
        self.received.append(number)
        is_setting_up = self._sweep is None
        if self._sweep is not None:
            self._sweep.interrupt(len(self.received))
        if len(self.received) > (1 if is_setting_up or self.serving.is_set() else self._last):
            self._has_raised = True
            raise KeyboardInterrupt
