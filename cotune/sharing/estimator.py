"""The driver's side of a rehearsal, which has a process of its own and a time."""

from __future__ import annotations

import math
import os
import pickle
import selectors
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cotune.demand import Estimate
from cotune.sharing.pickling import Series
from cotune.sharing.zygote import Zygote
from cotune.trial import Estimated

# Seconds of one rehearsal, from its fork; then it is killed. A transformer of two layers takes 1.6 s of a core, which
# on two cores that are taken by lanes has been 5 s.
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
        selector: Told of the pipe through which the answer comes, with what is to be called then as its data.
        zygote: Gives the process that forks rehearsals.
        series: Of the trainable.
        say: Called with what came of a rehearsal.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        zygote: Callable[[], Zygote],
        series: Series | None,
        say: Callable[[Estimated], None],
    ) -> None:
        self._selector = selector
        self._zygote = zygote
        self._series = series
        self._say = say
        self._running: _Rehearsal | None = None
        self._count = 0

    @property
    def due(self) -> float:
        """When the rehearsal will have taken too long, on the monotonic clock."""
        return self._running.began + BUDGET if self._running else math.inf

    def begin(self, trial: int, config: Mapping[str, Any]) -> None:
        """Begins to rehearse a trial; the last one is over.

        Raises:
            NotPicklable: The config cannot be sent.
        """
        assert self._series is not None
        blob = self._series.then(config, f"the config of trial {trial}")
        # Lanes are counted from 0 upwards.
        self._count -= 1
        answer, theirs = os.pipe2(os.O_CLOEXEC)
        request = os.memfd_create("cotune-config", os.MFD_CLOEXEC)
        try:
            with open(request, "wb", closefd=False) as file:
                file.write(blob)
            self._zygote().rehearse(self._count, theirs, request)
        finally:
            os.close(theirs)
            os.close(request)
        self._running = _Rehearsal(trial, self._count, answer)
        self._selector.register(answer, selectors.EVENT_READ, self.receive)

    def forked(self, number: int) -> None:
        """A process was forked under this number: if it is the rehearsal's, its time runs."""
        if self._running and self._running.number == number:
            self._running.began = time.monotonic()

    def receive(self) -> None:
        """Takes what has come through the pipe."""
        assert self._running is not None
        data = os.read(self._running.answer, 1 << 16)
        self._end(pickle.loads(data) if data else "its process died")

    def look(self) -> None:
        """Ends the rehearsal if it has taken too long."""
        if self._running is not None and time.monotonic() >= self.due:
            self._zygote().kill(self._running.number)
            self._end(f"it took more than {BUDGET:g} s")

    def close(self) -> None:
        """Forgets what is under way; its process is the zygote's to end."""
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
