"""A trial's waits in its lane: for verdicts, for answers, and for the end of a pause."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from cotune.sharing import wire
from cotune.sharing.inside.parking import Parking
from cotune.sharing.inside.trial_meter import TrialMeter
from cotune.sharing.page import BOUNDARY, HOLDER, NOBODY

if TYPE_CHECKING:
    from cotune.sharing.inside.resident import ResidentTrial

T = TypeVar("T")
# Where `Thread.join` and `Future.result` wait, and `Thread.start` until the thread runs.
_WAITS = ("threading.py", "futures/_base.py")
_FOR_THE_END = ("join", "result", "exception")
# The largest timeout that poll() takes.
MOST_MILLISECONDS = 2**31 - 1


class TrialWaits:
    """Makes a trial wait, and lets its lane-mates run meanwhile if the waiting thread is the trial's own.

    Args:
        resident: The waiting trial.
        verdicts: The eventfd of its seat.
        meter: Its measurements, from which waits that keep the turn are left out.

    Attributes:
        unjudged: Whether the last report has no verdict yet.
        is_pausing: Whether the trial is to pause, or is paused.
        parking: Moves the trial's state to the host during a pause.
    """

    def __init__(self, resident: ResidentTrial, verdicts: int, meter: TrialMeter) -> None:
        self.unjudged = False
        self.is_pausing = False
        self.parking = Parking()
        self._resident = resident
        self._host = resident.host
        self._verdicts = verdicts
        self._meter = meter
        self._thread = 0
        self._answers: list[bytes] = []
        self._is_resumed = False
        self._parks = False
        # Released to make the waiting thread look again.
        self._look = threading.Lock()
        self._look.acquire()

    # ---- called by the lane's main thread

    def wake(self) -> None:
        # RuntimeError: it is released already.
        with contextlib.suppress(RuntimeError):
            self._look.release()

    def answered(self, payload: bytes) -> None:
        self._answers.append(payload)
        self.wake()

    def pause(self) -> None:
        self.is_pausing = True

    def resume(self) -> None:
        # _is_resumed as well: is_pausing may be set again before the trial has looked.
        self.is_pausing = False
        self._is_resumed = True
        self.wake()

    def park(self) -> None:
        self._parks = True
        self.wake()

    # ---- called by the trial's threads

    def is_waited_for(self, *, for_its_end: bool = True) -> bool:
        """Whether the trial's own thread waits for the end of the calling one, which trains in its place.

        Args:
            for_its_end: False if it counts, too, that the own thread is within another call on the calling one: most
                likely it still starts it, and will go on at any moment.
        """
        ended_by = threading.current_thread(), _future_of(sys._getframe())
        frame = sys._current_frames().get(self._thread)
        while frame is not None and frame.f_code.co_filename.endswith(_WAITS):
            waiting = frame.f_locals.get("self") if not for_its_end or frame.f_code.co_name in _FOR_THE_END else None
            if waiting is not None and any(waiting is one for one in ended_by):
                return True
            frame = frame.f_back
        return False

    def begin(self) -> None:
        """Reads what `LaneHandle.start` has put on the seat's eventfd."""
        self._thread = threading.get_ident()
        os.eventfd_read(self._verdicts)

    def verdict(self) -> bool:
        """Waits for the verdict on the last report, if there is none yet; returns whether it is to stop."""
        if not self.unjudged:
            return False
        others_run = self._host.others_may_run and not _is_readable(self._verdicts)
        verdict = self._wait(partial(os.eventfd_read, self._verdicts), others_run)
        self.unjudged = False
        if verdict & wire.REST:
            # Not `|=`, which could undo a change that the main thread makes meanwhile.
            self.is_pausing = True
        return bool(verdict & wire.STOP)

    def is_judged_within(self, seconds: float) -> bool:
        """Waits up to `seconds` for the verdict on the last report; returns whether it is there."""
        if _is_readable(self._verdicts):
            return True
        # poll() takes whole milliseconds and rounds fractions up.
        milliseconds = min(int(1000 * seconds), MOST_MILLISECONDS)
        is_there = partial(_is_readable, self._verdicts, milliseconds)
        return milliseconds > 0 and self._wait(is_there, self._host.others_may_run)

    def forget_answers(self) -> None:
        self._answers.clear()

    def answer(self) -> bytes | None:
        """Waits for an answer; None if the wait was ended for another reason."""
        if not self._answers:
            self._wait(self._look.acquire, self._host.others_may_run)
        return self._answers.pop() if self._answers else None

    def rest(self, saved: bool) -> None:
        """Pauses: waits without the turn until `resume()` or a stop; parks the trial's state if asked to.

        Args:
            saved: Whether the trial has a checkpoint.
        """
        resident, host, turns = self._resident, self._host, self._host.turns
        if turns.first is resident:
            turns.prefer(None)
        movable = self.parking.movable if host.memory.torch_device != "cpu" else 0
        told = (resident.trial, resident.persistent, saved, movable)
        turns.give_up(resident)
        self._is_resumed = False
        host.send(wire.encode_object(wire.Kind.PAUSED, told))
        while not self._is_resumed and not resident.is_stopping:
            self._look.acquire()
            if self._parks:
                self._parks = False
                turns.take(resident)
                moved = self.parking.park()
                turns.give_up(resident)
                host.send(wire.encode_object(wire.Kind.PARKED, (resident.trial, moved)))
        turns.take(resident)
        if self.unjudged and _is_readable(self._verdicts):
            # The verdict that said to pause, which has been done.
            os.eventfd_read(self._verdicts)
            self.unjudged = False
        try:
            self.parking.fetch()
        except RuntimeError:
            # Out of memory. A trial that is stopped needs no memory: it unwinds with empty tensors.
            if not resident.is_stopping:
                raise

    def _wait(self, wait: Callable[[], T], others_run: bool) -> T:
        """Waits by calling `wait`; with `others_run`, without the turn.

        The wait counts neither as the trial's time nor as quiet.
        """
        turns, page = self._host.turns, self._host.page
        # Any other thread of the trial keeps the turn, since the trial's own thread goes on.
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
            page[HOLDER] = self._resident.trial
        return found


def _future_of(frame: FrameType | None) -> Any:
    """The future that a thread of an executor is to fulfil, by its innermost frame; None if it is no such thread."""
    while frame is not None:
        # From Python 3.14 on another object's method is between the two.
        if frame.f_code.co_filename.endswith("futures/thread.py") and (
            future := getattr(frame.f_locals.get("self"), "future", None)
        ):
            return future
        frame = frame.f_back
    return None


def _is_readable(fd: int, milliseconds: int = 0) -> bool:
    """Whether there is something to read, or comes within that time."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(milliseconds))
