"""What a lane has to say, on its way from its threads to the driver's next `beat()`."""

from __future__ import annotations

import threading
import time

from cotune.sharing import wire
from cotune.sharing.wire import Kind

PROGRESS_WITHIN = 0.05


class Outbox:
    """Frames on their way to the driver."""

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._news = threading.Condition()
        self._is_urgent = False

    def put(self, frame: bytes) -> None:
        with self._news:
            self._frames.append(frame)
            # Measurements can wait for company.
            self._is_urgent = self._is_urgent or wire.decode(frame)[0] != Kind.PROGRESS
            self._news.notify()

    def take(self, timeout: float) -> list[bytes]:
        """What there is, or else what comes within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        with self._news:
            while not self._is_urgent and (rest := deadline - time.monotonic()) > 0:
                if self._frames:
                    deadline = min(deadline, time.monotonic() + PROGRESS_WITHIN)
                self._news.wait(rest if not self._frames else min(rest, PROGRESS_WITHIN))
            frames, self._frames, self._is_urgent = self._frames, [], False
        return frames
