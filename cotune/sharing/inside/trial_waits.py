"""What a trial waits for in its lane: verdicts, answers, and to be wanted again."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from cotune.sharing import wire
from cotune.sharing.inside.parking import Parking
from cotune.sharing.inside.trial_meter import TrialMeter
from cotune.sharing.inside.turns import Resident
from cotune.sharing.page import BOUNDARY, HOLDER, NOBODY

if TYPE_CHECKING:
    from cotune.sharing.inside.host import Host

T = TypeVar("T")
# What poll() takes.
MOST_MILLISECONDS = 2**31 - 1


class TrialWaits:
    """Lets the other trials of the lane run while one waits, on the one thread that runs it.

    Args:
        resident: Who waits.
        host: The lane.
        trial: The trial's number.
        verdicts: The eventfd of its seat.
        meter: Leaves out the time that others could not use.

    Attributes:
        unjudged: The last report has no verdict yet.
        is_pausing: The trial is to wait, or waits, until it is wanted again.
        parking: What of it can be moved to the host meanwhile.
    """

    def __init__(self, resident: Resident, host: Host, trial: int, verdicts: int, meter: TrialMeter) -> None:
        self.unjudged = False
        self.is_pausing = False
        self.parking = Parking()
        self._resident = resident
        self._host = host
        self._trial = trial
        self._verdicts = verdicts
        self._meter = meter
        self._thread = 0
        self._answers: list[bytes] = []
        self._goes_on = False
        self._parks = False
        # Opened by whatever should have the waiting thread look again.
        self._look = threading.Lock()
        self._look.acquire()

    # ---- called by the lane's main thread

    def wake(self) -> None:
        # Open already, if others were quicker.
        with contextlib.suppress(RuntimeError):
            self._look.release()

    def answered(self, payload: bytes) -> None:
        self._answers.append(payload)
        self.wake()

    def pause(self) -> None:
        self.is_pausing = True

    def resume(self) -> None:
        # Apart from the flag, which may be set again before the trial has looked.
        self.is_pausing = False
        self._goes_on = True
        self.wake()

    def park(self) -> None:
        self._parks = True
        self.wake()

    # ---- called by the trial's thread

    def begin(self) -> None:
        """Takes what was left on the seat for the start."""
        self._thread = threading.get_ident()
        os.eventfd_read(self._verdicts)

    def verdict(self) -> bool:
        """Waits for the verdict on the last report, if that is still out; whether it is to stop."""
        if not self.unjudged:
            return False
        others_run = self._host.others_may_run and not _is_readable(self._verdicts)
        verdict = self._wait(partial(os.eventfd_read, self._verdicts), others_run)
        self.unjudged = False
        if verdict & wire.REST:
            # Only ever set here, where `|=` could take back what the main thread has just set.
            self.is_pausing = True
        return bool(verdict & wire.STOP)

    def is_judged_within(self, seconds: float) -> bool:
        """Waits for the verdict on the last report, so long at most; whether it is there."""
        wait = select.poll()
        wait.register(self._verdicts, select.POLLIN)
        # It counts in whole milliseconds, of which less than one would be a whole one.
        milliseconds = min(int(1000 * seconds), MOST_MILLISECONDS)
        if wait.poll(0):
            return True
        return bool(milliseconds and self._wait(partial(wait.poll, milliseconds), self._host.others_may_run))

    def forget_answers(self) -> None:
        self._answers.clear()

    def answer(self) -> bytes | None:
        """Waits for an answer; None if there is another reason to look."""
        if not self._answers:
            self._wait(self._look.acquire, self._host.others_may_run)
        return self._answers.pop() if self._answers else None

    def rest(self, persistent: int, saved: bool, is_stopping: Callable[[], bool]) -> None:
        """Waits without the turn until the trial is wanted again, or is to stop; is parked meanwhile if need be."""
        host, turns = self._host, self._host.turns
        if turns.first is self._resident:
            turns.prefer(None)
        told = (self._trial, persistent, saved, self.parking.movable if host.memory.torch_device != "cpu" else 0)
        turns.give_up(self._resident)
        self._goes_on = False
        host.send(wire.encode_object(wire.Kind.PAUSED, told))
        while not self._goes_on and not is_stopping():
            self._look.acquire()
            if self._parks:
                self._parks = False
                turns.take(self._resident)
                moved = self.parking.park()
                turns.give_up(self._resident)
                host.send(wire.encode_object(wire.Kind.PARKED, (self._trial, moved)))
        turns.take(self._resident)
        if self.unjudged and _is_readable(self._verdicts):
            # The verdict that told it to rest, which it has done.
            os.eventfd_read(self._verdicts)
            self.unjudged = False
        try:
            self.parking.fetch()
        except RuntimeError:
            # Out of memory: to be stopped it needs no room. What unwinds finds empty tensors then.
            if not is_stopping():
                raise

    def _wait(self, wait: Callable[[], T], others_run: bool) -> T:
        """Waits, which is neither the trial's own time nor a missing boundary; others have the turn if they want it."""
        turns, page = self._host.turns, self._host.page
        # Else a thread of the trial's waits, and the trial itself goes on, perhaps to the end of its turn.
        is_own = threading.get_ident() == self._thread
        if others_run and is_own and turns.give_up(self._resident):
            found = wait()
            turns.take(self._resident)
            return found
        if turns.holder is self._resident:
            page[HOLDER] = NOBODY
        began = time.monotonic()
        found = wait()
        now = time.monotonic()
        if is_own:
            self._meter.leave_out(now - began)
        if turns.holder is self._resident:
            page[BOUNDARY] = now
            page[HOLDER] = self._trial
        return found


def _is_readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
