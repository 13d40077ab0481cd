"""A trial inside its lane: its turn, its boundaries, its measurements, its end."""

from __future__ import annotations

import os
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from cotune import session
from cotune.paths import TrialFolder
from cotune.session import TrialStopped
from cotune.sharing import wire
from cotune.sharing.inside.context import Context, note_left
from cotune.sharing.inside.ending import Ending
from cotune.sharing.inside.leftovers import live_on
from cotune.sharing.inside.loan import TrialLoan
from cotune.sharing.inside.stacks import can_start_thread
from cotune.sharing.inside.trial_meter import TrialMeter
from cotune.sharing.inside.trial_waits import TrialWaits
from cotune.sharing.page import BOUNDARY, HOLDER, NOBODY
from cotune.sharing.raised import out_of_memory, says_no_thread
from cotune.trial import Outcome, TrialSpec

if TYPE_CHECKING:
    from cotune.sharing.inside.host import Host

T = TypeVar("T")

FIRST_MEASURED = 2
MEASURE_EVERY = 0.2
# Seconds of a turn while another resident waits.
QUANTUM = 0.05


class ResidentTrial(session.Session):
    """One attempt at a trial, run by one thread at a time; subclasses define how its trainable reports.

    Every boundary checks whether to stop, to measure or to pass the turn on, in under 2 us when nothing is due. The
    lane's main thread asks for attention by setting a flag and then `_due` to 0.

    Args:
        host: The lane.
        verdicts: The eventfd of the trial's seat.
        spec: The attempt.

    Attributes:
        is_stopping: Whether it is to stop at its next boundary.
        context: Its process-wide state; None once it has ended.
    """

    def __init__(self, host: Host, verdicts: int, spec: TrialSpec) -> None:
        self.trial = spec.trial
        self.attempt = spec.attempt
        self.folder = spec.folder
        self.gate = threading.Lock()
        self.gate.acquire()
        self.host = host
        self._folder = TrialFolder(spec.folder)
        self.context: Context | None = Context(spec.seed, host.home, inherits=host.has_shared_classes)
        # Held while the attempt is booked out, which happens once, and while a frame is sent for it.
        self._booking = threading.Lock()
        self._over = False
        self.met_stop_rule = False
        self.is_stopping = False
        # The trainable has been told so, and may catch that.
        self._was_stopped = False
        self._threads: set[threading.Thread] = set()
        # Times by the monotonic clock. _due: when a boundary has something to do; other threads set it to 0, for "now".
        # _turn_end: when the turn ends if a resident waits for it. _measure_due: when to measure again.
        self._due = 0.0
        self._turn_end = 0.0
        self._measure_due = 0.0
        # Set at the end of a report whose checkpoint may follow: the trial neither ends nor pauses at this boundary.
        self._goes_on = False
        # The threads of the trial that build shared objects; a list, since its changes are atomic.
        self._building: list[int] = []
        # Whether an optimizer has stepped since the last report; if so, the report is no iteration of its own.
        self._has_stepped = False
        self._stepped: Callable[[], Any] = lambda: None
        self._iterations = 0
        self._sent_iterations = 0
        self._meter = TrialMeter(host)
        self._loan = TrialLoan(self)
        self._waits = TrialWaits(self, verdicts, self._meter)

    @property
    def builds(self) -> bool:
        """Whether the trial builds a shared object."""
        return bool(self._building)

    @property
    def persistent(self) -> int:
        """Bytes that the trial holds between iterations."""
        return max(0, self._meter.persistent)

    def left_threads(self, known: frozenset[threading.Thread], residents: Sequence[session.Session]) -> bool:
        """Whether threads started since this trial began live on.

        Args:
            known: Threads that do not count, as those of trials and helpers do not.
            residents: Trials that still run, whose threads do not count either.
        """
        return live_on(
            lambda thread: thread in self._threads or thread in known or (session.starter_of(thread) in residents)
        )

    # ---- asked for by the lane's main thread

    def stop(self) -> None:
        self.is_stopping = True
        self.hasten()
        self._waits.wake()

    def pause(self) -> None:
        self._waits.pause()
        self.hasten()

    def resume(self) -> None:
        self._waits.resume()

    def park(self) -> None:
        self._waits.park()

    def answered(self, payload: bytes) -> None:
        self._waits.answered(payload)

    def grant(self, concurrency: int) -> None:
        self._loan.grant(concurrency)
        self.hasten()

    def hasten(self) -> None:
        """Has the next boundary look at all that it may have to do."""
        self._due = 0.0

    def turn_wanted(self) -> None:
        """Called when another resident waits: the next boundary must check whether the turn is over."""
        self.hasten()
        self._waits.wake()

    def runs_here(self) -> bool:
        """Whether the calling thread is the one that runs the trainable."""
        return session.bound() is self

    def is_waiting_here(self, *, for_its_end: bool = True) -> bool:
        """Whether the thread that runs the trainable waits for the end of the calling one, or (False) starts it."""
        return self._waits.is_waited_for(for_its_end=for_its_end)

    # ---- the turn

    def turn_begins(self) -> None:
        host = self.host
        # First of all, so that the driver knows which trial hangs if the rest of this function does.
        host.page[BOUNDARY] = time.monotonic()
        host.page[HOLDER] = self.trial
        self._settle_in()
        now = time.monotonic()
        self._meter.begin(now)
        self._turn_end = now + QUANTUM
        host.page[BOUNDARY] = now
        self._due = 0.0

    def _settle_in(self) -> None:
        """Puts the trial's own process-wide state in place for the turn."""
        session.set_holder(self)
        if self.context is not None:
            self.context.enter()

    def turn_ends(self) -> None:
        session.set_holder(None)
        if not self._over:
            self._meter.read(time.monotonic())
            if self.context is not None:
                self.context.leave()
        self.host.page[HOLDER] = NOBODY

    # ---- boundaries

    def after_step(self, optimizer: Any) -> None:
        """Called after every step of a torch optimizer: an iteration, and a boundary."""
        if self._building and threading.get_ident() in self._building:
            # The object is the lane's. Its training counts neither for the trial nor as what a pause may move.
            self._boundary()
            return
        if self._stepped() is not optimizer:
            self._stepped = weakref.ref(optimizer)
            self._waits.parking.saw(optimizer)
        self._iterations += 1
        self._has_stepped = True
        # `_boundary()`, inlined for speed.
        self.host.page[BOUNDARY] = now = time.monotonic()
        if now >= self._due:
            self._attend(now)

    def _count_report(self) -> None:
        if not self._has_stepped:
            self._iterations += 1
        self._has_stepped = False

    def _boundary(self) -> None:
        now = time.monotonic()
        self.host.page[BOUNDARY] = now
        if now >= self._due:
            self._attend(now)

    def _attend(self, now: float) -> None:
        if self.builds:
            # No turn change now: a lane-mate might build the same object, and its memory would count as the lane's.
            self.leave_if_over()
            return
        if self.host.memory.is_recording() or self.host.turns.holder is not self:
            # While a CUDA graph is recorded nothing runs that could be measured, and a lane-mate's work would break the
            # recording off. In the other case a thread started by the trial runs while another resident has the turn.
            return
        is_early = self._sent_iterations < self._iterations <= FIRST_MEASURED
        # A thread that the trial has started may not give the turn away while the trial's own goes on: that would draw
        # from a lane-mate's generators.
        may_leave = self.runs_here() or self.is_waiting_here()
        rests = may_leave and self._waits.is_pausing and not self._loan.is_open and not self._goes_on
        if self.is_stopping and not self._goes_on:
            # `_end` sends the last progress.
            self._meter.read(now)
            self.leave_if_over()
        if now >= self._measure_due or is_early or self._loan.is_due or rests:
            # Iterations count once the device has done them, however far ahead of it the trial's thread is.
            self.host.memory.synchronize()
            now = time.monotonic()
            self._meter.read(now)
            self._send_progress()
            self._measure_due = now + MEASURE_EVERY
        self.leave_if_over()
        if self._loan.is_due:
            self._loan.settle()
        if rests:
            self._rest()
            now = time.monotonic()
        turns = self.host.turns
        is_wanted = turns.others_wait and (now >= self._turn_end or turns.first_waits)
        if is_wanted and may_leave and not self.host.memory.is_profiled():
            # If the trial keeps the turn, a new one begins.
            self._turn_end = now + QUANTUM
            turns.pass_on(self)
            self.leave_if_over()
        self._due = 0.0 if self._iterations < FIRST_MEASURED else self._measure_due
        # Looked at once more after that, which may have overwritten the 0 of who wants something.
        if turns.others_wait:
            self._due = min(self._due, self._turn_end)
        if self.is_stopping or turns.first_waits or self._loan.is_asked or self._waits.is_pausing:
            self._due = 0.0

    def _rest(self) -> None:
        saved = self._folder.latest_checkpoint() is not None
        self._waits.rest(saved)
        # After the pause: the driver may have granted something before it heard of it.
        self._loan.lapse()
        self.leave_if_over()

    def leave_if_over(self) -> None:
        if self.is_stopping and not self._goes_on:
            self._leave()

    def _leave(self) -> NoReturn:
        """Raises `TrialStopped` because the trial was told to stop."""
        self._was_stopped = True
        raise TrialStopped

    def _send_progress(self) -> None:
        count, loan, measured = self._iterations - self._sent_iterations, self._loan, self._meter.take()
        told = (self.trial, count, *measured, loan.splits, loan.most)
        self.host.send(wire.encode_object(wire.Kind.PROGRESS, told))
        loan.measured(measured.ephemeral)
        self._sent_iterations = self._iterations

    def _say(self, frame: bytes) -> None:
        """Sends a frame to the driver, unless the trial has ended, perhaps in another thread.

        Raises:
            TrialStopped: The trial has ended.
        """
        with self._booking:
            if self._over:
                raise TrialStopped
            self.host.send(frame)

    # ---- what any trainable may call

    def micro_batches(self, count: int) -> session.Loan:
        self._loan.splits = count
        return self._loan

    def device(self) -> str:
        return self.host.memory.torch_device

    def shared(self, key: str, factory: Callable[[], T]) -> T:
        host = self.host
        if key not in host.shared:
            # Several threads of a trial may ask for it.
            with host.shared_lock:
                if key not in host.shared:
                    self._build(key, factory)
        value: T = host.shared[key]
        return value

    def _build(self, key: str, factory: Callable[[], Any]) -> None:
        host = self.host
        before, had = host.memory.read()[0], host.shared_bytes
        self._building.append(threading.get_ident())
        try:
            # The same in all lanes, and no draw of the trial: others with its seed find the object built. In another
            # thread of the trial it would change what the trial's own thread draws meanwhile.
            seed = host.options.trials.seed + zlib.crc32(repr(key).encode())
            with self.context.no_draws(seed) if self.context is not None and self.runs_here() else nullcontext():
                host.shared[key] = factory()
        finally:
            self._building.remove(threading.get_ident())
        if self.context is not None:
            self.context.share()
        # Objects that the factory has built in the same way are booked already.
        host.hold_shared(host.memory.read()[0] - before - (host.shared_bytes - had))

    # ---- the end

    def _unwinds(self, error: BaseException) -> None:
        """Lifts the cap if memory ran out, before anything else is done: to look into the error takes some, too."""
        if isinstance(error, (MemoryError, SystemError)):
            self.host.memory.relax()

    def _ran_out(self, error: BaseException) -> tuple[bool, int | None]:
        """Whether memory ran out, and the bytes the trial would have held; if so, lifts the cap for the unwinding."""
        is_memory, refused = out_of_memory(error, self.host.memory.is_short)
        needed = self._meter.wanted(refused) if refused is not None else None
        if is_memory:
            self.host.memory.relax()
        if is_memory and says_no_thread(error) and not can_start_thread():
            # There is all memory now: what the trial lacks is processes, and it would lack them in any lane.
            is_memory = False
        return is_memory, needed

    def _end(self, ending: Ending) -> None:
        """Books the attempt out and tells the driver, unless that has been done."""
        with self._booking:
            if self._over:
                return
            self._meter.read(time.monotonic(), final=True)
            self._meter.close()
            self._over = True
        if ending.outcome is Outcome.DONE and self._iterations == 0:
            # An objective that never reports counts as one iteration, or its speed would never be known.
            self._iterations = 1
        self._send_progress()
        if self.context is not None:
            self.context.close(self.host.imported.handlers)
            self.context = None
        host = self.host
        if not host.trial_over(self) and host.shares_faults:
            # Which trial broke the device cannot be told: all of them resume from their checkpoints in other lanes.
            os._exit(wire.FAULTED)
        host.page[HOLDER] = NOBODY
        host.send(wire.encode_object(wire.Kind.ENDED, (self.trial, *ending)))
        if not host.turns.others_wait:
            note_left()
