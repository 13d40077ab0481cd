"""Inside a lane process that a zygote has forked: the main thread serves the socket, each trial has its own thread.

driver ──OPEN, START, RESIZE, EXIT, STOP, PAUSE, RESUME, PARK, ANSWER, GRANT, TURN──▶ main thread ──flags──▶ trials
driver ──verdicts─────────────────────────────────▶ trial threads
driver ◀─READY, RESIZED──────────────────────────── main thread
driver ◀─REPORT, ASK, PROGRESS, GRANTED, HOLDS, PAUSED, PARKED, ENDED─ trial thread that has the turn
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import select
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn

from cotune.errors import NotPicklable
from cotune.script import settings
from cotune.sharing import wire
from cotune.sharing.inside.after_import import after_import
from cotune.sharing.inside.event_loops import give_event_loops
from cotune.sharing.inside.habit import SavingHabit
from cotune.sharing.inside.host import Host
from cotune.sharing.inside.lane_output import LaneOutput
from cotune.sharing.inside.ray_session import serve_ray_tune
from cotune.sharing.inside.resident import ResidentTrial
from cotune.sharing.inside.temporary import disown_temporary, remove_temporary
from cotune.sharing.inside.trial_session import TrialSession
from cotune.sharing.lane_options import LaneOptions
from cotune.sharing.wire import Kind
from cotune.stopping import StopRule
from cotune.trial import TrialSpec

HANG_UP_WITHIN = 5.0
LOOK_EVERY = 1.0
# Smallest size in bytes of a frame for which the cap is lifted.
LARGE = 1 << 20
# What messages with a trial's number, and perhaps more, tell it.
_TOLD: dict[int, Callable[..., None]] = {
    Kind.STOP: ResidentTrial.stop,
    Kind.PAUSE: ResidentTrial.pause,
    Kind.RESUME: ResidentTrial.resume,
    Kind.PARK: ResidentTrial.park,
    Kind.GRANT: ResidentTrial.grant,
}


def serve(
    sock: socket.socket, page: memoryview[float], verdicts: Sequence[int], trainable: bytes | memoryview
) -> NoReturn:
    """Runs a lane until the driver ends it or is gone."""
    disown_temporary()
    frames = wire.Frames(sock, wire.TO_LANES)
    backlog: list[tuple[int, bytes]] = []
    while not backlog:
        received = frames.receive()
        if received is None:
            os._exit(0)
        backlog.extend(received)
    options: LaneOptions = pickle.loads(backlog.pop(0)[1])
    host = ForkedHost(sock, page, verdicts, trainable, options)
    serve_ray_tune(options.threads)
    after_import("asyncio", give_event_loops)
    host.start()
    for kind, payload in backlog:
        host.handle(kind, payload)
    arrivals = select.poll()
    arrivals.register(sock, select.POLLIN)
    while True:
        if not arrivals.poll(LOOK_EVERY * 1000):
            # A trial may have used up the memory that even this takes.
            with contextlib.suppress(MemoryError):
                host.look()
            continue
        with host.room_for(frames.expected):
            received = frames.receive()
        if received is None:
            host.leave()
        for kind, payload in received:
            host.handle(kind, payload)


class ForkedHost(Host):
    """A host that talks to the driver over a socket.

    Args:
        sock: Socket to the driver.
        page: A page of memory shared with the driver, which can read it even after the lane's death.
        verdicts: An eventfd for each seat.
        trainable: The pickled trainable.
        options: The lane's settings.

    Attributes:
        output: Redirects the process's output.
        habit: Whether trials here save an epoch's checkpoint after its report.
    """

    def __init__(
        self,
        sock: socket.socket,
        page: memoryview[float],
        verdicts: Sequence[int],
        trainable: bytes | memoryview,
        options: LaneOptions,
    ) -> None:
        self.output = LaneOutput(options.log)
        super().__init__(options, page)
        self.home.streams = self.output.streams
        self.habit = SavingHabit()
        self._sock = sock
        self._send_lock = threading.Lock()
        self._verdicts = verdicts
        self._trainable = trainable

    def handle(self, kind: int, payload: bytes) -> None:
        """Carries out a message of the driver."""
        if kind == Kind.ANSWER:
            answer = wire.decode_question(payload)
            asking = self._trials.get(answer.trial)
            if asking is not None and asking.attempt == answer.attempt:
                asking.answered(answer.payload)
        elif kind == Kind.START:
            with self.room_for(len(payload)):
                seat, spec = pickle.loads(payload)
            trial = TrialSession(self, self._verdicts[seat], spec)
            self.adopt(trial)
            self.output.put_back()
            self.begin(trial.trial, trial.run)
        elif kind in _TOLD:
            number, *more = pickle.loads(payload)
            resident = self._trials.get(number)
            if resident is not None:
                _TOLD[kind](resident, *more)
        elif kind == Kind.TURN:
            self.turns.prefer(self._trials.get(pickle.loads(payload)))
        elif kind == Kind.RESIZE:
            self.resize(pickle.loads(payload))
        elif kind == Kind.EXIT:
            self.leave()

    def leave(self) -> NoReturn:
        """Ends the lane, and removes temporary directories if no trial may still use them.

        Should that take long, the driver kills the lane.
        """
        try:
            if not self._trials:
                remove_temporary()
        finally:
            os._exit(0)

    def room_for(self, size: int) -> AbstractContextManager[None]:
        """Lifts the cap while this thread, which must not fail, handles a large frame, such as a config.

        Small frames do not lift it, since meanwhile a trial could exceed the cap, too.
        """
        return self.memory.uncapped() if size >= LARGE else contextlib.nullcontext()

    def send(self, frame: bytes) -> None:
        with self._send_lock:
            try:
                self._sock.sendall(frame)
            except OSError:
                # The driver is gone. A trial's thread waits for the main thread to see the end of the stream and exit;
                # if a trial has closed the socket, the main thread never does.
                if threading.current_thread() is not threading.main_thread():
                    threading.Event().wait(HANG_UP_WITHIN)
                os._exit(1)

    # ---- for the trial that has the turn

    def load(self, spec: TrialSpec) -> tuple[Any, Any]:
        """Loads the trainable and the config, anew for every trial, so that no trial sees another's module globals."""
        # What this imports the script has imported, too.
        with self.imported.known():
            loaded = self._load(spec)
        settings.take_over_loggers()
        return loaded

    def _load(self, spec: TrialSpec) -> tuple[Any, Any]:
        for name in self.options.imports:
            # If the trainable needs the module, it raises the error itself.
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        with _loading("the trainable"):
            if not spec.packed:
                return pickle.loads(self._trainable), spec.config
            series = wire.load_series(self._trainable, spec.packed)
            trainable = next(series)
        with _loading(f"the config of trial {spec.trial}"):
            return trainable, next(series)

    def load_stop(self) -> StopRule | None:
        """Loads the run's stop rule, anew for every trial; None if it has none."""
        with _loading("stop="):
            rule: StopRule | None = pickle.loads(self.options.trials.stop) if self.options.trials.stop else None
            return rule

    def trial_over(self, trial: ResidentTrial, *, is_stuck: bool = False) -> bool:
        is_sound = super().trial_over(trial, is_stuck=is_stuck)
        self.output.redirect(-1)
        return is_sound


_NOT_FOUND = (
    "if the module is yours, put its folder into sys.path before cotune is called; if it is a package, install it "
    "where the lanes are"
)
_MADE_ANEW = (
    "what the script makes, such as a progress bar, may not survive the way to another process: make it inside the "
    "trainable, or in a module that the script imports. Lanes import modules anew: what can be done only once belongs "
    "under `if __name__ == '__main__':`"
)


@contextlib.contextmanager
def _loading(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise NotPicklable(
            f"{what} cannot be loaded in a lane process: {type(error).__name__}: {error}",
            hint=_NOT_FOUND if isinstance(error, ModuleNotFoundError) else _MADE_ANEW,
        ) from error
