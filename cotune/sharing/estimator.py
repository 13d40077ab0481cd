"""The driver's side of a rehearsal, which runs in a process of its own, with a time limit."""

from __future__ import annotations

import math
import os
import pickle
import selectors
import time
from collections.abc import Callable
from dataclasses import dataclass

from cotune.demand import Estimate
from cotune.sharing.zygote import ZygoteHandle
from cotune.trial import Estimated

# Seconds after its fork at which a rehearsal is killed. A transformer of two layers takes 1.6 s of one core; on two
# cores busy with lanes it took 5 s.
BUDGET = 10.0


@dataclass(slots=True)
class _Rehearsal:
    trial: int
    number: int
    answer: int
    began: float = math.inf


class Estimator:
    """Rehearses trials, one at a time.

    Args:
        selector: Gets the pipe for the answer registered, with the function to call then as its data.
        zygote: Returns the zygote, which forks rehearsals.
        say: Called with the outcome of each rehearsal.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        zygote: Callable[[], ZygoteHandle],
        say: Callable[[Estimated], None],
    ) -> None:
        self._selector = selector
        self._zygote = zygote
        self._say = say
        self._running: _Rehearsal | None = None
        self._count = 0

    @property
    def due(self) -> float:
        """When the rehearsal's time is up, by the monotonic clock; infinite if none runs."""
        return self._running.began + BUDGET if self._running else math.inf

    def begin(self, trial: int, config: bytes) -> None:
        """Begins to rehearse a trial; the previous rehearsal must be over.

        Args:
            trial: The trial.
            config: Its config, pickled in the series of the trainable.

        Raises:
            OSError: There is no file left for it, or no room for the config.
        """
        # Negative, so that no lane has the same number.
        self._count -= 1
        with open(os.memfd_create("cotune-config", os.MFD_CLOEXEC), "wb") as request:
            request.write(config)
            request.flush()
            answer, theirs = os.pipe2(os.O_CLOEXEC)
            try:
                self._zygote().rehearse(self._count, theirs, request.fileno())
            except BaseException:
                os.close(answer)
                raise
            finally:
                os.close(theirs)
        self._running = _Rehearsal(trial, self._count, answer)
        self._selector.register(answer, selectors.EVENT_READ, self.receive)

    def forked(self, number: int) -> None:
        """Notes that the zygote has forked a process; starts the rehearsal's time if the number is its own."""
        if self._running and self._running.number == number:
            self._running.began = time.monotonic()

    def receive(self) -> None:
        """Reads the answer from the pipe."""
        assert self._running is not None
        data = os.read(self._running.answer, 1 << 16)
        self._end(pickle.loads(data) if data else "its process died")

    def look(self) -> None:
        """Ends the rehearsal if it has taken too long."""
        if self._running is not None and time.monotonic() >= self.due:
            self._zygote().kill(self._running.number)
            self._end(f"it took more than {BUDGET:g} s")

    def close(self) -> None:
        """Forgets the running rehearsal; the zygote ends its process."""
        if self._running:
            self._forget(self._running)

    def _end(self, told: Estimate | str) -> None:
        assert self._running is not None
        ended = self._running
        self._forget(ended)
        estimate, reason = (None, told) if isinstance(told, str) else (told, "")
        self._say(Estimated(ended.trial, estimate, reason, max(0.0, time.monotonic() - ended.began)))

    def _forget(self, ended: _Rehearsal) -> None:
        self._running = None
        self._selector.unregister(ended.answer)
        os.close(ended.answer)
