"""Turns: exactly one of the trials in a lane runs at a time, the holder of the turn."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cotune.sharing.inside.resident import ResidentTrial

# PyDLL keeps the GIL during calls: if another thread took it in between, the turn would be handed on late.
_libc = ctypes.PyDLL(None)


class Waiter:
    """A thread that waits for the turn, and wakes up on the core where the turn was given up.

    The kernel would wake it on an idle core, with cold caches, which itself takes time to wake: 0.2 ms.
    """

    def __init__(self) -> None:
        self._thread = threading.get_native_id()
        self._cores: set[int] = set()
        # A sandbox may forbid any of these calls, which only save time.
        with contextlib.suppress(OSError):
            self._cores = os.sched_getaffinity(0)

    def call_here(self) -> None:
        """Makes the waiting thread wake on the core of the calling thread."""
        if len(self._cores) > 1:
            # The number is -1 if a sandbox forbids to ask for it.
            with contextlib.suppress(OSError, ValueError):
                os.sched_setaffinity(self._thread, (_libc.sched_getcpu(),))

    def go_anywhere(self) -> None:
        """Undoes `call_here`; called by the thread that has waited."""
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, self._cores)


class Turns:
    """Passes the one turn of a lane directly from thread to thread.

    Passing it on takes 6 to 25 us; a scheduler thread in between would double that.

    Attributes:
        holder: The resident that has the turn; None if none has.
        first: The resident that gets every turn it wants, others only while it waits for something; None for none.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        # Several threads of one resident may want to give up its turn, if its trainable has started threads.
        self._leaving = threading.Lock()
        # In order of arrival. Two threads of one resident may wait, if its trainable has started threads.
        self._queue: list[tuple[ResidentTrial, Waiter]] = []
        self.holder: ResidentTrial | None = None
        self.first: ResidentTrial | None = None

    @property
    def others_wait(self) -> bool:
        return bool(self._queue)

    @property
    def first_waits(self) -> bool:
        return self._place_of(self.first) is not None

    def prefer(self, resident: ResidentTrial | None) -> None:
        """Makes one resident `first`, from the next boundary on."""
        with self._mutex:
            self.first = resident
            if self.holder is not None and self._queue:
                self.holder.turn_wanted()

    def take(self, resident: ResidentTrial) -> None:
        """Waits for the turn."""
        waiter = None
        with self._mutex:
            if self.holder is None:
                self.holder = resident
            else:
                waiter = Waiter()
                self._queue.append((resident, waiter))
                self.holder.turn_wanted()
        if waiter is not None:
            self._wait(resident, waiter)
        resident.turn_begins()

    def give_up(self, resident: ResidentTrial, waiter: Waiter | None = None) -> bool:
        """Gives the turn to `first` or to the longest waiting resident; False if `resident` did not have it.

        Args:
            resident: The resident.
            waiter: Joins the queue for the resident's next turn.
        """
        with self._leaving:
            if resident is not self.holder:
                return False
            resident.turn_ends()
            with self._mutex:
                # The turn may have been revoked meanwhile.
                if resident is not self.holder:
                    return False
                if waiter is not None:
                    self._queue.append((resident, waiter))
                self._hand_on()
        return True

    def leave(self, resident: ResidentTrial) -> None:
        """Gives up the turn for good, and the places in line of the resident's other threads."""
        with self._mutex:
            self._queue = [place for place in self._queue if place[0] is not resident]
        self.give_up(resident)

    def pass_on(self, resident: ResidentTrial) -> None:
        """Gives the turn to a waiting resident, if there is one, and waits for it again; `first` keeps it."""
        if self._queue and resident is not self.first and self.give_up(resident, waiter := Waiter()):
            self._wait(resident, waiter)
            resident.turn_begins()

    def revoke(self, resident: ResidentTrial) -> None:
        """Takes the turn, or the place in line, away from a resident that must not run again."""
        with self._mutex:
            place = self._place_of(resident)
            if place is not None:
                del self._queue[place]
            elif self.holder is resident:
                self._hand_on()

    def _place_of(self, resident: ResidentTrial | None) -> int | None:
        return next((place for place, (one, _) in enumerate(self._queue) if one is resident), None)

    def _wait(self, resident: ResidentTrial, waiter: Waiter) -> None:
        resident.gate.acquire()
        waiter.go_anywhere()

    def _hand_on(self) -> None:
        if not self._queue:
            self.holder = None
            return
        self.holder, waiter = self._queue.pop(self._place_of(self.first) or 0)
        waiter.call_here()
        self.holder.gate.release()
