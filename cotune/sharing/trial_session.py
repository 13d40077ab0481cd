"""A trial inside a lane: its thread, its turn, its boundaries, its measurements."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cotune import session, trainable
from cotune.errors import CotuneError, InputError, NoReport, StorageError
from cotune.paths import TrialFolder
from cotune.session import TrialStopped
from cotune.sharing import wire
from cotune.sharing.context import Context
from cotune.sharing.loan import TrialLoan
from cotune.sharing.memory import out_of_memory, text_of
from cotune.sharing.metrics import number_line, read_report, whole_step
from cotune.sharing.trial_meter import TrialMeter
from cotune.sharing.trial_waits import TrialWaits
from cotune.trial import TrialSpec

if TYPE_CHECKING:
    from cotune.sharing.host import Host

T = TypeVar("T")

FIRST_MEASURED = 2
MEASURE_EVERY = 0.5


class TrialSession:
    """One attempt at a trial, run by one thread.

    At every boundary, and in under 2 us when nothing is due: stop? measure? pass the turn on? The main thread of
    the lane asks for attention by setting `due` to 0 after the flag it sets.
    """

    def __init__(self, host: Host, verdicts: int, spec: TrialSpec, config: bytes = b"") -> None:
        self.trial = spec.trial
        self.attempt = spec.attempt
        self.folder = spec.folder
        self.gate = threading.Lock()
        self.gate.acquire()
        # One question at a time, whichever of its threads asks.
        self._asking = threading.Lock()
        self._host = host
        self._spec = spec
        self._config = config
        self._folder = TrialFolder(spec.folder)
        self._log = -1
        self._context: Context | None = Context(spec.seed, host.home)
        self._over = False
        self._stop = False
        self._threads: set[threading.Thread] = set()
        self._saving = False
        self._due = 0.0
        self._turn_due = math.inf
        self._turn_end = 0.0
        self._measure_due = 0.0
        self._reports = spec.reports
        self._steps = 0
        self._stepped: Callable[[], Any] = lambda: None
        self._iterations = 0
        self._sent_iterations = 0
        self._meter = TrialMeter(host)
        self._loan = TrialLoan(host, spec.trial)
        self._waits = TrialWaits(self, host, spec.trial, verdicts, self._meter)

    @property
    def persistent(self) -> int:
        return self._meter.persistent

    def left_threads(self) -> bool:
        """Whether threads that were started in its time live on, but for other trials' and harmless helpers."""
        return any(
            thread not in self._threads
            and not thread.name.startswith("trial-")
            and "TMonitor" not in type(thread).__name__
            for thread in threading.enumerate()
        )

    # ---- asked for by the lane's main thread

    def stop(self) -> None:
        self._stop = self._loan.is_stopping = True
        self._due = 0.0
        self._waits.wake()

    def pause(self) -> None:
        self._waits.pause()
        self._due = 0.0

    def resume(self) -> None:
        self._waits.resume()

    def park(self) -> None:
        self._waits.park()

    def answered(self, payload: bytes) -> None:
        self._waits.answered(payload)

    def grant(self, concurrency: int) -> None:
        self._loan.grant(concurrency)
        self._due = 0.0

    def turn_wanted(self) -> None:
        self._turn_due = 0.0
        self._due = 0.0
        self._waits.wake()

    def torch_loaded(self) -> None:
        """This trial has just imported torch."""
        if self._context is not None:
            self._context.seed_torch()

    def cupy_loaded(self) -> None:
        """This trial has just imported CuPy."""
        if self._context is not None:
            self._context.cupy_loaded()

    # ---- the turn

    def turn_begins(self) -> None:
        host = self._host
        session.set_holder(self)
        host.redirect(self._log)
        if self._context is not None:
            self._context.enter()
        now = time.monotonic()
        self._meter.begin(now)
        self._turn_end = now + host.options.quantum
        # In this order: whoever joins in between sets it to 0, which must stand.
        self._turn_due = math.inf
        if host.turns.others_wait:
            self._turn_due = self._turn_end
        host.page[1] = now
        host.page[0] = self.trial
        self._due = 0.0

    def turn_ends(self) -> None:
        host = self._host
        host.page[0] = -1.0
        session.set_holder(None)
        if not self._over:
            self._meter.read(time.monotonic())
            if self._context is not None:
                self._context.leave()

    # ---- boundaries

    def after_step(self, optimizer: Any) -> None:
        """A torch optimizer has made a step."""
        if self._stepped() is not optimizer:
            self._stepped = weakref.ref(optimizer)
            self._waits.parking.saw(optimizer)
        self._iterations = self._steps = self._steps + 1
        # As in `_boundary`, without the call.
        self._host.page[1] = now = time.monotonic()
        if now >= self._due:
            self._attend(now)

    def _boundary(self) -> None:
        now = time.monotonic()
        self._host.page[1] = now
        if now >= self._due:
            self._attend(now)

    def _attend(self, now: float) -> None:
        is_early = self._sent_iterations < self._iterations <= FIRST_MEASURED
        rests = self._waits.is_pausing and not self._loan.is_open
        if now >= self._measure_due or is_early or self._stop or self._loan.is_due or rests:
            self._meter.read(now)
            self._send_progress()
            self._measure_due = now + MEASURE_EVERY
        self._raise_if_stopped()
        if self._loan.is_due:
            self._loan.settle()
        if rests:
            self._rest()
            now = time.monotonic()
        if now >= self._turn_due:
            turns = self._host.turns
            self._turn_due = self._turn_end
            if now >= self._turn_end or turns.first_waits:
                # Should it keep the turn, it has another one.
                self._turn_due = self._turn_end = now + self._host.options.quantum
                turns.pass_on(self)
                self._raise_if_stopped()
        self._due = 0.0 if self._iterations < FIRST_MEASURED else min(self._measure_due, self._turn_due)
        if self._stop or self._turn_due == 0.0 or self._loan.is_asked or self._waits.is_pausing:
            self._due = 0.0

    def _rest(self) -> None:
        saved = self._folder.latest_checkpoint() is not None
        self._waits.rest(max(0, self._meter.persistent), saved, lambda: self._stop)
        # Not before: the driver may have granted something before it heard of the pause.
        self._loan.lapse()
        self._raise_if_stopped()

    def _raise_if_stopped(self) -> None:
        if self._stop:
            raise TrialStopped

    def _send_progress(self) -> None:
        count, loan, measured = self._iterations - self._sent_iterations, self._loan, self._meter.take()
        self._host.send(wire.encode_progress(self.trial, count, *measured, loan.splits, loan.most))
        loan.measured(measured.ephemeral)
        self._sent_iterations = self._iterations

    # ---- what the trainable calls

    def report(self, metrics: Mapping[str, Any], step: int | None) -> None:
        metric = self._host.options.metric
        if not metric:
            raise InputError(
                "cotune.report() was called in an Optuna objective",
                hint="call trial.report(value, step) there, and return the final value",
            )
        number = self._reports + 1
        where = number if step is None else whole_step(step)
        self._pass_on(where, *read_report(metrics, metric, number == 1, self.trial, where, time.time()))

    def observe(self, value: float, step: int) -> None:
        self._pass_on(step, value, number_line(self.trial, step, value, time.time()))

    def _pass_on(self, where: int, value: float, line: bytes) -> None:
        self._await_verdict()
        if self._waits.is_pausing and not self._loan.is_open:
            # Before this report: it is to stand where the one before was judged.
            self._attend(time.monotonic())
        self._reports += 1
        self._waits.unjudged = True
        self._host.send(wire.encode_report(self.trial, self.attempt, where, value, line))
        if self._host.options.lockstep:
            self._await_verdict()
        if self._steps == 0:
            self._iterations += 1
        self._boundary()

    def micro_batches(self, count: int) -> session.Loan:
        self._loan.splits = count
        return self._loan

    def ask(self, payload: bytes) -> bytes:
        with self._asking:
            if self._over:
                raise TrialStopped
            self._raise_if_stopped()
            self._waits.forget_answers()
            self._host.send(wire.encode_question(wire.Kind.ASK, self.trial, self.attempt, payload))
            while (answer := self._waits.answer()) is None:
                if self._stop:
                    self._meter.read(time.monotonic())
                    raise TrialStopped
        self._boundary()
        return answer

    def _await_verdict(self) -> None:
        """Waits for the verdict on the last report, and obeys it."""
        self._hear_verdict()
        if self._stop:
            self._meter.read(time.monotonic())
            raise TrialStopped

    def _hear_verdict(self) -> None:
        if self._waits.verdict():
            self._stop = self._loan.is_stopping = True

    @contextlib.contextmanager
    def checkpoint(self) -> Iterator[Path]:
        if self._saving:
            raise InputError("checkpoint() was called within checkpoint()", hint="save everything in one directory")
        self._saving = True
        try:
            with self._one_checkpoint() as path:
                yield path
        finally:
            self._saving = False

    @contextlib.contextmanager
    def _one_checkpoint(self) -> Iterator[Path]:
        try:
            path = self._folder.begin_checkpoint()
        except OSError as error:
            raise self._cannot_save(error) from error
        try:
            yield path
        except BaseException as error:
            shutil.rmtree(path, ignore_errors=True)
            if isinstance(error, OSError) and error.errno is not None and _is_below(error.filename, path):
                raise self._cannot_save(error) from error
            raise
        # The reports that the checkpoint stands behind must be safe before it is: once judged, they are.
        self._hear_verdict()
        try:
            self._folder.publish_checkpoint(path, self._reports)
        except OSError as error:
            raise self._cannot_save(error) from error

    def _cannot_save(self, error: OSError) -> StorageError:
        return StorageError(
            f"checkpoint of trial {self.trial} not saved under {self._folder.checkpoints}: {error.strerror or error}",
            hint="the previous checkpoint is still valid; make room, or pass storage= with a folder that has some",
        )

    def restore(self) -> Path | None:
        return self._folder.latest_checkpoint()

    def device(self) -> str:
        return self._host.memory.torch_device

    def shared(self, key: str, factory: Callable[[], T]) -> T:
        host = self._host
        if key not in host.shared:
            before = host.memory.read()[0]
            host.shared[key] = factory()
            grown = host.memory.read()[0] - before
            self._meter.shared(grown)
            host.hold_shared(grown)
        value: T = host.shared[key]
        return value

    # ---- the whole attempt

    def run(self) -> None:
        """The body of the trial's thread."""
        try:
            self._run()
        except BaseException:
            # A lane in which this fails is of no use: its death is reported, and its residents go on elsewhere.
            traceback.print_exc()
            os._exit(1)

    def _run(self) -> None:
        host = self._host
        host.memory.cap()
        session.bind(self)
        self._waits.begin()
        host.turns.take(self)
        self._threads = set(threading.enumerate())
        try:
            self._open_folder()
            host.redirect(self._log)
            host.restore_streams()
            ended = self._attempt()
        except BaseException as error:
            ended = self._explain(error)
        self._meter.read(time.monotonic(), final=True)
        self._send_progress()
        self._over = True
        if self._context is not None:
            self._context.close()
            self._context = None
        session.bind(None)
        if not host.trial_over(self) and host.shares_faults:
            # Whose fault it is cannot be told: all of them go on from their checkpoints in other lanes.
            os._exit(wire.FAULTED)
        host.page[0] = -1.0
        host.send(wire.encode_object(wire.Kind.ENDED, (self.trial, *ended)))
        host.turns.give_up(self)
        if self._log >= 0:
            os.close(self._log)

    def _open_folder(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            self._log = os.open(self._folder.log, flags, 0o644)
        except FileNotFoundError:
            self._folder.create()
            self._log = os.open(self._folder.log, flags, 0o644)

    def _attempt(self) -> tuple[str, int | None, str, str, bool]:
        """Runs the trainable.

        Returns:
            Outcome, bytes needed, name of the error's class, the error in a line, whether to try again is useless.
        """
        host = self._host
        try:
            self._raise_if_stopped()
            host.prepare_thread()
            function = host.load_trainable()
            if self._context is not None:
                self._context.adopt(function)
            config = host.load_config(self._config, self.trial) if self._config else self._spec.config
            self._raise_if_stopped()
            returned = trainable.call(function, config)
            self._leave_if_forked()
            del config
            del function
            if isinstance(returned, Mapping):
                self.report(returned, None)
            elif returned is not None and (self._reports == 0 or _is_number(returned)):
                self.report({host.options.metric: returned}, None)
            if self._reports == 0 and host.options.metric:
                raise NoReport(
                    "the trainable ended without a report",
                    hint=f"call cotune.report({{{host.options.metric!r}: ...}}), or return that number",
                )
            # What went wrong on the device behind its back would otherwise befall the next trial.
            host.memory.finish()
            if host.options.judged:
                self._await_verdict()
        except TrialStopped as stopped:
            traceback.clear_frames(stopped.__traceback__)
            return "stopped", None, "", "", False
        except BaseException as error:
            self._leave_if_forked(error)
            return self._explain(error)
        return "done", None, "", "", False

    def _leave_if_forked(self, error: BaseException | None = None) -> None:
        """A process that the trainable has forked ends where the trainable does, and says nothing for the trial."""
        if os.getpid() == self._host.process:
            return
        code: Any = 0
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            traceback.print_exception(error)
            code = 1
        os._exit(code & 0xFF)

    def _explain(self, error: BaseException) -> tuple[str, int | None, str, str, bool]:
        host = self._host
        if isinstance(error, SystemExit) and error.code in (None, 0) and self._reports:
            return "done", None, "", "", False
        is_memory, refused = out_of_memory(error)
        needed = None
        if is_memory:
            needed = self._meter.wanted(refused) if refused is not None else None
            host.memory.relax()
        text = f"sys.exit({error.code!r}) was called" if isinstance(error, SystemExit) else text_of(error)
        # A class of the user's own may be named like one of ours.
        name = type(error).__name__ if isinstance(error, CotuneError) else "TrialFailed"
        kind = type(error).__name__
        with contextlib.suppress(Exception):
            trace = "".join(traceback.format_exception(error))
            self._folder.error.write_text(trace, encoding="utf-8", errors="backslashreplace")
        _forget(error)
        if is_memory:
            return "out_of_memory", needed, name, text[:500], False
        final = isinstance(error, (InputError, NoReport))
        return "failed", None, name, text if isinstance(error, CotuneError) else f"{kind}: {text[:2000]}", final


def _is_number(value: object) -> bool:
    return (isinstance(value, (int, float)) and not isinstance(value, bool)) or hasattr(value, "item")


def _forget(error: BaseException) -> None:
    """Lets go of the frames, and so the tensors, that an exception and its causes keep alive."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        traceback.clear_frames(cause.__traceback__)
        cause.__traceback__, cause = None, cause.__cause__ or cause.__context__
    sys.last_value = None


def _is_below(name: object, path: Path) -> bool:
    return name is None or (isinstance(name, (str, bytes, os.PathLike)) and os.fsdecode(name).startswith(str(path)))
