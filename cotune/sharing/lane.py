"""The driver's handle on a lane."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import queue
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cotune.paths import TrialFolder
from cotune.sharing import wire
from cotune.sharing.lane_options import LaneOptions
from cotune.sharing.logs import last_lines
from cotune.sharing.page import HOLDER, NOBODY, Page
from cotune.sharing.wire import FAULTED, GO_ON, REST, STOP, Kind
from cotune.sharing.zygote import ZygoteHandle
from cotune.trial import TrialSpec

# Lines, without those of a stack (`@ 0x...`); what an earlier attempt has said is further up.
LAST_WORDS = 20
# What Rust, C++ and TensorFlow say where they abort for want of memory, also of that for a thread's stack.
_REFUSED = re.compile(
    r"memory allocation of (\d+) bytes failed|terminate called .* 'std::bad_alloc'|pthread_create\(\) failed"
    r"|terminate called .* 'std::system_error'\s+what\(\): +Resource temporarily unavailable|RAW: mmap error: 12"
)
_TRACEBACK = "Traceback (most recent call last):"


@dataclass(slots=True)
class _Seat:
    """A resident trial's place in its lane: the eventfd of its verdicts, and the attempt that waits on it."""

    number: int
    verdicts: int
    attempt: int = 0
    folder: Path = Path()
    stop: bool = False
    rest: bool = False


class LaneHandle:
    """One lane process, seen from the driver.

    Messages sent before the process is up wait in its socket.

    Args:
        zygote: Forks the lane's process.
        options: First message to the lane.
        dismiss: Called in another thread, with the process id, before the process is killed.

    Attributes:
        is_up: Whether the lane has said that it is ready.
        is_killed: Whether `kill()` was called, as opposed to the lane dying by itself.
        quota: The lane's quota in bytes, as last sent.
        page: The lane's state, in memory that the lane writes; must not be read after `close()`.
        leaves_since: When the lane was told to exit; infinite before.
        forked_at: When its process was forked; infinite before.
    """

    def __init__(
        self, zygote: ZygoteHandle, options: LaneOptions, dismiss: Callable[[int], None] | None = None
    ) -> None:
        self.lane = options.lane
        self.options = options
        self.quota = options.quota
        self.is_up = self.is_killed = False
        self.leaves_since = self.forked_at = math.inf
        self._dismiss = dismiss
        # Queue of a sending thread, from the first frame on that the socket did not take at once.
        self._unsent: queue.SimpleQueue[memoryview | None] | None = None
        self._zygote = zygote
        self._free: list[_Seat] = []
        self._taken: dict[int, _Seat] = {}
        with contextlib.ExitStack() as opened, contextlib.ExitStack() as undo:
            page = os.memfd_create(f"cotune-lane-{options.lane}", os.MFD_CLOEXEC)
            opened.callback(os.close, page)
            os.ftruncate(page, mmap.PAGESIZE)
            self._numbers = memoryview(mmap.mmap(page, mmap.PAGESIZE)).cast("d")
            self._numbers[HOLDER] = NOBODY
            self.page = Page(self._numbers)
            self._sock, theirs = socket.socketpair()
            opened.enter_context(theirs)
            undo.callback(self.close)
            for side in (self._sock, theirs):
                side.settimeout(None)
                side.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 21)
            self._frames = wire.Frames(self._sock, wire.FROM_LANES)
            for number in range(options.seats):
                self._free.append(_Seat(number, os.eventfd(0, os.EFD_CLOEXEC)))
            self._send(wire.encode_object(Kind.OPEN, options))
            zygote.fork(self.lane, theirs, page, [seat.verdicts for seat in self._free])
            undo.pop_all()

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def is_broken(self) -> bool:
        """Whether something other than a frame has arrived."""
        return self._frames.is_broken

    @property
    def has_trials(self) -> bool:
        return bool(self._taken)

    def receive(self) -> list[tuple[int, bytes]] | None:
        """Returns the frames that have arrived; None at the end of the stream."""
        return self._frames.receive()

    def drain(self) -> Iterator[tuple[int, bytes]]:
        """Yields the unread frames of a dead lane."""
        self._sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while (frames := self.receive()) is not None:
                yield from frames

    def start(self, spec: TrialSpec) -> None:
        """Starts a `sendable` trial in a free seat."""
        self._taken[spec.trial] = seat = self._free.pop()
        seat.attempt, seat.folder, seat.stop, seat.rest = spec.attempt, spec.folder, False, False
        # The trial reads this first, and with it any verdict that the seat's previous trial left unread.
        os.eventfd_write(seat.verdicts, GO_ON)
        self._send(wire.encode_object(Kind.START, (seat.number, spec)))

    def verdict(self, trial: int, attempt: int) -> None:
        """Lets an attempt at a trial go on after its last report, unless it was told to stop or to pause."""
        seat = self._taken.get(trial)
        # A late verdict on the previous attempt must not count for a report of this one.
        if seat is not None and seat.attempt == attempt:
            os.eventfd_write(seat.verdicts, STOP if seat.stop else REST if seat.rest else GO_ON)
            seat.rest = False

    def ended(self, trial: int) -> None:
        """Frees the seat of a trial that is over."""
        if trial in self._taken:
            self._free.append(self._taken.pop(trial))

    def answer(self, trial: int, attempt: int, payload: bytes) -> None:
        self._send(wire.encode_question(Kind.ANSWER, trial, attempt, payload))

    def prefer(self, trial: int | None) -> None:
        """Tells the lane to give a resident every turn it wants, or none of them."""
        self._send(wire.encode_object(Kind.TURN, trial))

    def tell(self, kind: Kind, trial: int, *more: int) -> None:
        """Tells a trial to stop, pause, resume, park or use a grant (`kind`), and what else there is to say of that."""
        seat = self._taken.get(trial)
        if seat is not None:
            # These two also go with the next verdict: the trial may pass a report or two before it gets this message.
            seat.stop = seat.stop or kind is Kind.STOP
            seat.rest = kind is Kind.PAUSE or (seat.rest and kind is not Kind.RESUME)
            self._send(wire.encode_object(kind, (trial, *more)))

    def resize(self, quota: int) -> None:
        self.quota = quota
        self._send(wire.encode_object(Kind.RESIZE, quota))

    def exit(self) -> None:
        self.leaves_since = time.monotonic()
        self._send(wire.encode(Kind.EXIT))

    def excuse(self, seconds: float) -> None:
        """Subtracts `seconds` from all the lane's running times, since no process ran during them."""
        self.page.excuse(seconds)
        self.leaves_since += seconds
        self.forked_at += seconds

    def bury(self) -> None:
        """Asks the zygote to kill what is left of the process group of a lane that is ending by itself."""
        self._zygote.kill(self.lane)

    def kill(self) -> None:
        process = self._zygote.process_of(self.lane)
        if self._dismiss is None or process is None:
            self._zygote.kill(self.lane)
        elif not self.is_killed:
            threading.Thread(target=self._dismiss_and_kill, args=(self._dismiss, process), daemon=True).start()
        self.is_killed = True

    def _dismiss_and_kill(self, dismiss: Callable[[int], None], process: int) -> None:
        try:
            dismiss(process)
        finally:
            self._zygote.kill(self.lane)

    def refused(self, status: int | None, holder: int | None) -> int | None:
        """The bytes that were refused to a trial, if native code aborted the process because of that; 0 if not known.

        Args:
            status: As for `ended_how`; None if not known.
            holder: The trial that had the turn.
        """
        seat = self._taken.get(holder) if holder is not None else None
        is_aborted = status is not None and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGABRT
        if seat is None or not is_aborted:
            return None
        said = [line for line in last_lines(TrialFolder(seat.folder).log) if not line.lstrip().startswith("@ ")]
        last = "\n".join(said[-LAST_WORDS:])
        return max((int(match[1] or 0) for match in _REFUSED.finditer(last)), default=None)

    def close(self) -> None:
        if self._unsent is not None:
            # Without the shutdown the sending thread could block in sendall() for ever.
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
            self._unsent.put(None)
        self._sock.close()
        self._numbers.release()
        for seat in (*self._free, *self._taken.values()):
            os.close(seat.verdicts)
        self._free.clear()
        self._taken.clear()

    def _send(self, frame: bytes) -> None:
        # The zygote reports a dead lane, so errors are ignored. A lane that does not read, because it is in native code
        # or not up yet, must not block the driver: a thread sends the rest.
        with contextlib.suppress(ConnectionError):
            sent = 0
            if self._unsent is None:
                with contextlib.suppress(BlockingIOError):
                    sent = self._sock.send(frame, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                if sent == len(frame):
                    return
                self._unsent = queue.SimpleQueue()
                threading.Thread(target=_send_all, args=(self._sock, self._unsent), daemon=True).start()
            self._unsent.put(memoryview(frame)[sent:])


def _send_all(sock: socket.socket, unsent: queue.SimpleQueue[memoryview | None]) -> None:
    with contextlib.suppress(OSError):
        while (part := unsent.get()) is not None:
            sock.sendall(part, socket.MSG_NOSIGNAL)


def signal_name(number: int) -> str:
    """The name of a signal, such as `SIGKILL` for 9; `signal N` for real-time signals, which have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def ended_how(status: int, log: Path) -> str:
    """How a lane's process ended, in words, with its last log line, or the first line of the error in a traceback.

    Args:
        status: Wait status as `os.wait` returns it; the negative errno if the fork failed.
        log: The lane's log.
    """
    if status < 0:
        return f"no process could be started for it: {os.strerror(-status)}"
    if os.WIFSIGNALED(status):
        said = f"its lane process was killed by {signal_name(os.WTERMSIG(status))}"
    elif os.WEXITSTATUS(status) == FAULTED:
        said = "a kernel broke the device context that it shared with others"
    else:
        said = f"its lane process ended with exit code {os.waitstatus_to_exitcode(status)}"
    if lines := last_lines(log):
        last = max((n for n, line in enumerate(lines) if line.startswith(_TRACEBACK)), default=len(lines))
        error = [line for line in lines[last + 1 :] if not line.startswith(" ")]
        # A traceback printed earlier did not cause the signal.
        said += f" ({(lines[-1] if os.WIFSIGNALED(status) or not error else error[0])[:200]})"
    return said
