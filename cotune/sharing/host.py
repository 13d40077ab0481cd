"""Inside a lane process: the main thread on the socket, a thread per resident trial.

driver ──OPEN, START, RESIZE, EXIT, STOP, PAUSE, RESUME, PARK, ANSWER, GRANT, TURN──▶ main thread ──flags──▶ trials
driver ──verdicts─────────────────────────────────▶ trial threads
driver ◀─READY, RESIZED──────────────────────────── main thread
driver ◀─REPORT, ASK, PROGRESS, GRANTED, HOLDS, PAUSED, PARKED, ENDED─ trial thread that has the turn
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from cotune import session
from cotune.demand import MIB
from cotune.errors import NotPicklable
from cotune.sharing import wire
from cotune.sharing.after_import import after_import
from cotune.sharing.boundary import on_optimizer_step
from cotune.sharing.context import Home
from cotune.sharing.cpu import CpuMemory
from cotune.sharing.lane_output import LaneOutput
from cotune.sharing.memory import LaneMemory
from cotune.sharing.ray_session import serve_ray_tune
from cotune.sharing.resident import ResidentTrial
from cotune.sharing.trial_session import TrialSession
from cotune.sharing.turns import Turns
from cotune.sharing.wire import Kind

THREAD_STACK = 2 * MIB
HANG_UP_WITHIN = 5.0
# What a trial is told, without further words.
_TOLD = {
    Kind.STOP: ResidentTrial.stop,
    Kind.PAUSE: ResidentTrial.pause,
    Kind.RESUME: ResidentTrial.resume,
    Kind.PARK: ResidentTrial.park,
}


@dataclass(frozen=True, slots=True)
class LaneOptions:
    """What a lane is told when it opens.

    Attributes:
        lane: Its number.
        uuid: The GPU it belongs to; empty for the CPU.
        cores: Cores its device stands for.
        quota: Bytes it may hold, context included.
        threads: Threads for one operation.
        quantum: Seconds of a turn.
        seats: Trials it may host at once, paused ones included.
        lockstep: Whether a report waits for the verdict on itself.
        judged: Whether a verdict may be to stop: only then the end of a trial waits for the last one.
        metric: The run's metric; empty where a trial need not report, and its end is told by a question.
        log: Where output goes that belongs to no trial.
        environment: Set before the device is touched.
        is_mps_client: The lane shares its device context with others, and so their faults.
    """

    lane: int
    uuid: str
    cores: int
    quota: int
    threads: int
    quantum: float
    seats: int
    lockstep: bool
    judged: bool
    metric: str
    log: Path
    environment: dict[str, str] = field(default_factory=dict)
    is_mps_client: bool = False


def serve(
    sock: socket.socket, page: memoryview[float], verdicts: Sequence[int], trainable: bytes | memoryview
) -> NoReturn:
    """Runs a lane until the driver says or is gone."""
    frames = wire.Frames(sock)
    backlog: list[tuple[int, bytes]] = []
    while not backlog:
        received = frames.receive()
        if received is None:
            os._exit(0)
        backlog.extend(received)
    options: LaneOptions = pickle.loads(backlog.pop(0)[1])
    host = Host(sock, page, verdicts, trainable, options, LaneOutput(options.log))
    serve_ray_tune(options.threads)
    host.start()
    for kind, payload in backlog:
        host.handle(kind, payload)
    while (received := frames.receive()) is not None:
        for kind, payload in received:
            host.handle(kind, payload)
    os._exit(0)


class Host:
    """What the trials of a lane share.

    Attributes:
        page: Seen by the driver also after our death: who has the turn (-1 nobody), when the last boundary was,
            and the bytes this process keeps from others.
        process: Its id; a process that a trial has forked has another.
        output: Where what is printed goes.
        shared: Objects built once for all trials.
        level: Bytes in use when the turn last ended, the peak being counted from there.
    """

    def __init__(
        self,
        sock: socket.socket,
        page: memoryview[float],
        verdicts: Sequence[int],
        trainable: bytes | memoryview,
        options: LaneOptions,
        output: LaneOutput,
    ) -> None:
        self.options = options
        self.output = output
        self.process = os.getpid()
        self.page = page
        self.turns = Turns()
        self.shared: dict[str, Any] = {}
        self._sock = sock
        self._send_lock = threading.Lock()
        self._verdicts = verdicts
        self._trainable = trainable
        self._sessions: dict[int, ResidentTrial] = {}
        self.level = 0
        self._context_level = 0
        self._shared_bytes = 0
        self._held = (0, 0, False)
        self._warm = False
        if options.uuid:
            from cotune.sharing import cuda

            os.environ.update(cuda.lane_environment(options.uuid) | options.environment)
            self.memory: LaneMemory = cuda.CudaMemory()
        else:
            # "cuda if available" in a trainable must not put CPU lanes, unmeasured, onto somebody's GPU.
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
            self.memory = CpuMemory(options.cores)
        self.home = Home()

    def start(self) -> None:
        # A process that a trial forks is not the trial: its reports print, its steps are no boundaries.
        os.register_at_fork(after_in_child=_leave_session)
        on_optimizer_step(self._after_step, self._torch_loaded, self.memory.loading)
        for library in ("tensorflow", "jax"):
            after_import(library, lambda module: None, self.memory.loading)
        after_import("cupy", self._cupy_loaded)
        self.page[0] = -1.0
        context = self.memory.start()
        self._context_level = self.level = self.memory.read()[0]
        self.memory.set_quota(self.options.quota)
        self.page[2] = self.memory.held()
        self.send(wire.encode_int(Kind.READY, context))

    def handle(self, kind: int, payload: bytes) -> None:
        """Does what the driver asks."""
        if kind == Kind.ANSWER:
            answer = wire.decode_question(payload)
            asking = self._sessions.get(answer.trial)
            if asking is not None and asking.attempt == answer.attempt:
                asking.answered(answer.payload)
        elif kind == Kind.START:
            seat, spec, config = wire.decode_start(payload)
            trial = TrialSession(self, self._verdicts[seat], spec, config)
            self._sessions[trial.trial] = trial
            threading.stack_size(0)
            # Without room for its stack a thread ends before it begins, and start() waits for ever.
            self.memory.uncap()
            threading.Thread(target=trial.run, name=f"trial-{trial.trial}", daemon=True).start()
            # Threads of trials: what a stack reserves counts against the quota of a CPU lane.
            threading.stack_size(THREAD_STACK)
        elif kind in _TOLD:
            resident = self._sessions.get(wire.decode_int(payload))
            if resident is not None:
                _TOLD[Kind(kind)](resident)
        elif kind == Kind.GRANT:
            trial_number, concurrency = wire.decode_grant(payload)
            resident = self._sessions.get(trial_number)
            if resident is not None:
                resident.grant(concurrency)
        elif kind == Kind.TURN:
            self.turns.prefer(self._sessions.get(wire.decode_int(payload)))
        elif kind == Kind.RESIZE:
            quota = self.memory.set_quota(wire.decode_int(payload))
            self.page[2] = self.memory.held()
            self.send(wire.encode_int(Kind.RESIZED, quota))
        elif kind == Kind.EXIT:
            os._exit(0)

    def send(self, frame: bytes) -> None:
        with self._send_lock:
            try:
                self._sock.sendall(frame)
            except OSError:
                # Nobody listens any more. A trial waits for the main thread to see the end of the stream, which it
                # does not where the trial has closed the socket under it.
                if threading.current_thread() is not threading.main_thread():
                    threading.Event().wait(HANG_UP_WITHIN)
                os._exit(1)

    # ---- for the trial that has the turn

    def load_trainable(self) -> Any:
        """The trainable, anew for every trial: its module globals are then not its predecessor's."""
        return _load(self._trainable, "the trainable")

    def load_config(self, config: bytes, trial: int) -> Any:
        """The config of a trial, if it was pickled apart."""
        return _load(config, f"the config of trial {trial}")

    def prepare_thread(self) -> None:
        torch = sys.modules.get("torch")
        if torch is not None and hasattr(torch, "set_num_threads"):
            torch.set_num_threads(self.options.threads)

    def hold_shared(self, grown: int) -> None:
        self._shared_bytes += max(0, grown)
        self._send_holds(self._held[1], self._held[2])

    @property
    def shares_faults(self) -> bool:
        """Whether a broken device context may be another trial's work."""
        return bool(self._sessions) or self.options.is_mps_client

    def trial_over(self, trial: ResidentTrial, *, is_stuck: bool = False) -> bool:
        """Returns what an ended trial used, and tells what it left behind.

        Args:
            trial: It is over.
            is_stuck: Its thread is not, and may never be; nor may what it computes on the device.

        Returns:
            Whether anything can go on in this process.
        """
        self._sessions.pop(trial.trial, None)
        if self.turns.first is trial:
            self.turns.prefer(None)
        residents = list(self._sessions.values())
        gc.collect()
        if not self._warm:
            # What the first trial imported stays for good; a full collection would look at it every time.
            self._warm = True
            gc.freeze()
        self.memory.trim(shared=bool(residents))
        others = sum(max(0, other.persistent) for other in residents)
        self.output.redirect(-1)
        self.level = self.memory.read()[0]
        self.memory.reset_peak()
        residue = self.level - self._context_level - self._shared_bytes - others
        is_sound = is_stuck or self.memory.is_sound()
        tainted = not is_sound or trial.left_threads() or (not residents and bool(_children()))
        if abs(residue - self._held[1]) > MIB or tainted != self._held[2]:
            self._send_holds(max(0, residue), tainted)
        return is_sound

    def _send_holds(self, residue: int, tainted: bool) -> None:
        self._held = (self._shared_bytes, residue, tainted)
        self.send(wire.encode_object(Kind.HOLDS, self._held))

    # ---- set-up

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        trial = getattr(session._local, "session", None)
        if trial is not None:
            trial.after_step(optimizer)

    def _torch_loaded(self) -> None:
        """Torch was imported by a trial: what was done for it before, torch has missed."""
        holder = self.turns.holder
        if isinstance(holder, ResidentTrial):
            holder.torch_loaded()
            self.prepare_thread()

    def _cupy_loaded(self, _cupy: ModuleType) -> None:
        holder = self.turns.holder
        if isinstance(holder, ResidentTrial):
            holder.cupy_loaded()


def _leave_session() -> None:
    session.bind(None)
    session.set_holder(None)


def _load(blob: bytes | memoryview, what: str) -> Any:
    try:
        return pickle.loads(blob)
    except Exception as error:
        raise NotPicklable(
            f"{what} cannot be loaded in a lane process: {type(error).__name__}: {error}",
            hint="it must not need what only the driver has; import what it uses inside the function",
        ) from error


def _children() -> list[int]:
    """Living child processes, without Python's own helpers."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    found: list[int] = []
    try:
        tasks = os.listdir("/proc/self/task")
    except OSError:
        # Out of file descriptors, for one: which is no reason to lose the end of a trial.
        return []
    for task in tasks:
        with contextlib.suppress(OSError):
            text = Path(f"/proc/self/task/{task}/children").read_text(encoding="ascii")
            found.extend(pid for pid in map(int, text.split()) if _counts(pid))
    return found


def _counts(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return False
    helpers = (b"resource_tracker", b"forkserver", b"compile_worker")
    return state != "Z" and not any(helper in command for helper in helpers)
