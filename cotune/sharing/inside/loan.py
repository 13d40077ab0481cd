"""A trial's side of a grant: how many micro-batches it may run at once now, and how it gives that back."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from cotune.sharing import wire

if TYPE_CHECKING:
    from cotune.sharing.inside.resident import ResidentTrial


class TrialLoan:
    """How many micro-batches a trial may run at once; a grant of the driver holds from the next boundary on.

    Args:
        resident: The trial.

    Attributes:
        concurrency: The number now.
        need: Most bytes a micro-batch takes, measured while one ran at a time.
        splits: Micro-batches of the last batch; 0 if the trial does not split its batches.
        most: The largest concurrency since the last progress was sent.
        failure: The error with which the trial fails at its next boundary.
        is_open: Whether a batch runs under the grant, which does not change before the batch is over.
    """

    def __init__(self, resident: ResidentTrial) -> None:
        self.concurrency = 1
        self.need = 0
        self.splits = 0
        self.most = 1
        self.failure: Exception | None = None
        self.is_open = False
        self._resident = resident
        self._host = resident.host
        self._asked: int | None = None

    # ---- asked for by the lane's main thread

    def grant(self, concurrency: int) -> None:
        self._asked = concurrency

    # ---- at a boundary

    @property
    def is_asked(self) -> bool:
        """Whether there is a new grant to take up, now or later."""
        return self._asked is not None

    @property
    def is_due(self) -> bool:
        return (self._asked is not None and not self.is_open) or self.failure is not None

    def measured(self, ephemeral: int) -> None:
        """Notes the measured peak of finished iterations."""
        if self.most == 1:
            self.need = max(self.need, ephemeral)
        self.most = self.concurrency

    def check(self) -> None:
        """Raises `failure`, which could not be raised where it happened."""
        if self.failure is not None:
            raise self.failure

    def settle(self) -> None:
        """Takes up the new grant, unless the trial has failed."""
        self.check()
        asked, self._asked = self._asked, None
        if asked is not None:
            self._use(asked)
            self.most = asked
            self._host.send(wire.encode_object(wire.Kind.GRANTED, (self._resident.trial, asked)))

    def lapse(self) -> None:
        """Voids the grant, and any that was not taken up yet, because the trial pauses."""
        self._use(1)
        self.most = 1
        self._asked = None

    def _use(self, concurrency: int) -> None:
        if concurrency < self.concurrency:
            self._host.memory.shrink()
        self.concurrency = concurrency

    # ---- for a loop over micro-batches

    @property
    def is_stopping(self) -> bool:
        return self._resident.is_stopping

    def room(self) -> int:
        return self._host.memory.room()

    def ran_out(self) -> None:
        with_so_many = self.concurrency
        gc.collect()
        self._use(1)
        self._host.memory.trim(others_run=True)
        self._host.send(wire.encode_object(wire.Kind.GRANTED, (self._resident.trial, 1, with_so_many)))

    def fail(self, error: Exception) -> None:
        self.failure = error
        self._resident.hasten()
