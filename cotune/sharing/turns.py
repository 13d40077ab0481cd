"""Turns: of the trials in a lane exactly one runs, the holder of the turn."""

from __future__ import annotations

import threading
from collections import deque
from typing import Protocol


class Resident(Protocol):
    """A trial in a lane, as the turns see it."""

    gate: threading.Lock

    def turn_begins(self) -> None: ...

    def turn_ends(self) -> None: ...

    def turn_wanted(self) -> None:
        """Another resident waits: look at the clock at the next boundary."""


class Turns:
    """Passes the one turn of a lane round, straight from thread to thread.

    A baton handed over costs 6 to 25 us; a scheduler thread in between would double that.

    Attributes:
        holder: Who has the turn.
        first: Who is to have every turn it wants, the others only when it waits for something; None for nobody.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._queue: deque[Resident] = deque()
        self.holder: Resident | None = None
        self.first: Resident | None = None

    @property
    def others_wait(self) -> bool:
        return bool(self._queue)

    @property
    def first_waits(self) -> bool:
        return self.first in self._queue

    def prefer(self, resident: Resident | None) -> None:
        """Has one resident go first from the next boundary on."""
        with self._mutex:
            self.first = resident
            if self.holder is not None and self._queue:
                self.holder.turn_wanted()

    def take(self, resident: Resident) -> None:
        """Waits for the turn."""
        with self._mutex:
            if self.holder is None:
                self.holder = resident
                waits = False
            else:
                self._queue.append(resident)
                self.holder.turn_wanted()
                waits = True
        if waits:
            resident.gate.acquire()
        resident.turn_begins()

    def give_up(self, resident: Resident) -> None:
        """Gives the turn to whoever waits longest."""
        resident.turn_ends()
        with self._mutex:
            self._hand_on()

    def pass_on(self, resident: Resident) -> None:
        """Lets the others run first, if there are any that may."""
        if not self._queue or resident is self.first:
            return
        resident.turn_ends()
        with self._mutex:
            self._queue.append(resident)
            self._hand_on()
        resident.gate.acquire()
        resident.turn_begins()

    def revoke(self, resident: Resident) -> None:
        """Takes the turn, or the place in line, from a resident that is not to have it again."""
        with self._mutex:
            if resident in self._queue:
                self._queue.remove(resident)
            elif self.holder is resident:
                self._hand_on()

    def _hand_on(self) -> None:
        if self.first is not None and self.first in self._queue:
            self._queue.remove(self.first)
            self.holder = self.first
        else:
            self.holder = self._queue.popleft() if self._queue else None
        if self.holder is not None:
            self.holder.gate.release()
