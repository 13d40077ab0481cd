"""Frames of a lane, on their way from its threads to the driver's next `beat()`."""

from __future__ import annotations

import math
import threading
import time

from cotune.sharing import wire
from cotune.sharing.wire import Kind

# Seconds that measurements may wait, to be sent together with other frames.
PROGRESS_WITHIN = 0.05


class Outbox:
    """Frames on their way to the driver."""

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._news = threading.Condition()
        self._due = math.inf

    def put(self, frame: bytes) -> None:
        with self._news:
            self._frames.append(frame)
            can_wait = PROGRESS_WITHIN if wire.decode(frame)[0] == Kind.PROGRESS else 0.0
            self._due = min(self._due, time.monotonic() + can_wait)
            self._news.notify()

    def take(self, timeout: float) -> list[bytes]:
        """Takes all frames; waits up to `timeout` seconds until one is due."""
        deadline = time.monotonic() + timeout
        with self._news:
            while (rest := min(deadline, self._due) - time.monotonic()) > 0:
                self._news.wait(rest)
            frames, self._frames, self._due = self._frames, [], math.inf
        return frames
