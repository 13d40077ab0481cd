"""What the trials of a lane process share, however the lane talks to its driver."""

from __future__ import annotations

import contextlib
import gc
import importlib
import math
import os
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from cotune import session
from cotune.demand import MIB
from cotune.script import settings
from cotune.script.compiler_settings import CONFIGS
from cotune.sharing import wire
from cotune.sharing.cpu import CpuMemory
from cotune.sharing.inside.after_import import after_import
from cotune.sharing.inside.boundary import on_optimizer_step
from cotune.sharing.inside.children import uncap_children
from cotune.sharing.inside.context import Context, Home
from cotune.sharing.inside.dynamo import defer_dynamo
from cotune.sharing.inside.ending import Ending
from cotune.sharing.inside.graph_trees import give_graph_trees, keep_graphs_apart
from cotune.sharing.inside.import_settings import ImportSettings
from cotune.sharing.inside.leftovers import (
    children,
    disarm,
    forget_compiled,
    forget_types,
    has_process_group,
)
from cotune.sharing.inside.pools import idle_pool
from cotune.sharing.inside.process_limits import ProcessLimits
from cotune.sharing.inside.quiet_imports import quiet_imports
from cotune.sharing.inside.resident import ResidentTrial
from cotune.sharing.inside.stacks import Stacks
from cotune.sharing.inside.turns import Turns
from cotune.sharing.lane_options import LaneOptions
from cotune.sharing.memory import LaneMemory
from cotune.sharing.page import BOUNDARY, HELD, HOLDER, NOBODY, READ
from cotune.sharing.wire import Kind
from cotune.trial import Outcome

# Bytes that a thread may take besides its stack before it runs, and others meanwhile.
THREAD_TAKES = 64 * MIB
# Seconds without a boundary after which the memory figures on the page are read anew.
LOOK_AFTER = 1.0
# The number of the first hook of torch that is registered in a lane.
FIRST_HOOK = 1 << 32


class Host(ABC):
    """A lane as its trials see it: its memory, its turns, its messages to the driver.

    Args:
        options: The lane's settings.
        page: The page that the driver reads (`sharing.page`).

    Attributes:
        shared: Objects built once for all trials.
        shared_lock: Held while one of them is built.
        shared_bytes: What these objects take.
        level: Bytes in use at the last reading; what is taken from there on belongs to the trial that has the turn.
        home: The process-wide state that every trial starts with.
        imported: What modules have set when trials imported them.
        process: This process's id, which tells it from a process that a trial has forked.
        stacks: Of the threads that are started in it.
    """

    def __init__(self, options: LaneOptions, page: memoryview[float]) -> None:
        self.options = options
        self.page = page
        self.turns = Turns()
        self.shared: dict[str, Any] = {}
        self.shared_lock = threading.RLock()
        self.level = 0
        self._trials: dict[int, ResidentTrial] = {}
        self._context_level = 0
        self.shared_bytes = 0
        self._residue, self._tainted = 0, False
        self.stacks = Stacks()
        self._warm = False
        self._tracing = threading.gettrace(), threading.getprofile()
        self.process = os.getpid()
        self._limits = ProcessLimits()
        self._wreckage: list[BaseException] = []
        if options.uuid:
            from cotune.sharing.cuda import lane_environment
            from cotune.sharing.inside.cuda_memory import CudaMemory

            os.environ.update(lane_environment(options.uuid) | options.environment)
            self.memory: LaneMemory = CudaMemory()
        else:
            # "cuda if available" in a trainable must not put the trials of a CPU lane onto a GPU, unmeasured.
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
            self.memory = CpuMemory(options.cores)
        self.home = Home()
        self.imported = ImportSettings()

    @abstractmethod
    def send(self, frame: bytes) -> None:
        """Sends a frame to the driver; may be called from any thread."""

    # ---- for the lane

    def start(self) -> None:
        """Measures the process as the bare lane, and tells the driver that the lane is ready."""
        # A process that a trial forks is not the trial: its reports are printed, its steps are no boundaries.
        os.register_at_fork(after_in_child=lambda: session.leave_process(self.shared))
        uncap_children(self.memory)
        session.mark_threads()
        on_optimizer_step(self._after_step, self._torch_loaded, self.memory.loading)
        for library in ("tensorflow", "jax", "catboost", "polars", "ray", "ray.tune", "ray.train"):
            after_import(library, lambda module: None, self.memory.loading)
        after_import("cupy", self._cupy_loaded)
        for name in CONFIGS:
            after_import(name, lambda module: settings.take_over_compiler(module.__name__))
        quiet_imports(self._importing)
        self.page[HOLDER] = NOBODY
        context = self.memory.start()
        self._context_level = self.level = self.memory.read()[0]
        self.memory.set_quota(self.options.quota)
        if not self.options.uuid:
            self.stacks.shrink()
        self.show_held()
        self.send(wire.encode_object(Kind.READY, (context,)))

    def begin(self, trial: int, run: Callable[[], None]) -> bool:
        """Starts a trial's thread.

        If none can be started now, the trial has run out of memory: neither it nor its lane-mates are to blame.

        Args:
            trial: The trial's number.
            run: The body of the thread; a lane in which it raises is useless, and ends.
        """
        # A trace function left by an earlier trial may raise in every new thread.
        threading.settrace(self._tracing[0])
        threading.setprofile(self._tracing[1])
        # Without memory for its stack a thread ends before it begins, and start() waits for ever. A lane-mate that
        # computes meanwhile must not get all there is.
        is_alone = self._trials.keys() <= {trial}
        self.memory.uncap(math.inf if is_alone else THREAD_TAKES + self.stacks.full_size)
        if is_alone:
            # An ended trial may have set it.
            threading.stack_size(0)
        try:
            with self.stacks.full():
                _thread_of(trial, run).start()
        except RuntimeError as error:
            self.memory.cap()
            self._trials.pop(trial, None)
            ending = Ending(Outcome.OUT_OF_MEMORY, None, "TrialFailed", str(error))
            self.send(wire.encode_object(Kind.ENDED, (trial, *ending)))
            return False
        return True

    def adopt(self, trial: ResidentTrial) -> None:
        """Adds a trial to the residents."""
        self._trials[trial.trial] = trial

    def resize(self, quota: int) -> None:
        """Changes the quota, in bytes, and tells the driver which one now holds."""
        quota = self.memory.set_quota(quota)
        self.show_held()
        self.send(wire.encode_object(Kind.RESIZED, (quota,)))

    def show_held(self) -> None:
        """Puts the bytes held, as of the last reading, on the page."""
        self.page[HELD], self.page[READ] = self.memory.held(), time.monotonic()

    def look(self) -> None:
        """Updates the bytes held on the page while a trial takes long to reach a boundary."""
        if self.page[HOLDER] >= 0 and time.monotonic() - self.page[BOUNDARY] > LOOK_AFTER:
            self.memory.read()
            self.show_held()

    @property
    def has_shared_classes(self) -> bool:
        """Whether there are shared objects, and no trial, even a paused one, whose classes a new trial would take."""
        return bool(self.shared) and not self._trials

    # ---- for the trial that has the turn

    def prepare_thread(self) -> None:
        """Prepares the thread of a trial that begins: its number of threads, what its script and modules have set."""
        # Its log has what it is warned of, also if that is in the log of an earlier trial.
        settings.filters_changed()
        settings.take_over_in_thread(on_gpu=bool(self.options.uuid))
        give_graph_trees()
        self._set_threads()
        self.imported.apply()

    def _set_threads(self) -> None:
        torch = sys.modules.get("torch")
        if torch is not None and hasattr(torch, "set_num_threads"):
            torch.set_num_threads(self.options.threads)

    def hold_shared(self, grown: int) -> None:
        """Books bytes that a trial has just allocated to the lane, whichever trial has the turn."""
        self.level += grown
        self.shared_bytes += max(0, grown)
        self._send_holds()

    @property
    def others_may_run(self) -> bool:
        """Whether another resident waits for the turn and the holder does nothing that its work would break off.

        While a shared object is built, it might wait for that, with the turn.
        """
        holder, memory = self.turns.holder, self.memory
        builds = holder is not None and holder.builds
        return self.turns.others_wait and not builds and not memory.is_recording() and not memory.is_profiled()

    @property
    def shares_faults(self) -> bool:
        """Whether a broken device context may be another trial's fault."""
        return bool(self._trials) or self.options.is_mps_client

    def trial_over(self, trial: ResidentTrial, *, is_stuck: bool = False) -> bool:
        """Frees what an ended trial used, and tells the driver what it left behind.

        Args:
            trial: The ended trial.
            is_stuck: Whether its thread, or its work on the device, still runs and may never end.

        Returns:
            Whether other trials can go on in this process.
        """
        self._trials.pop(trial.trial, None)
        if self.turns.first is trial:
            self.turns.prefer(None)
        residents = list(self._trials.values())
        if not self._wreckage:
            self._tidy(others_run=bool(residents))
        others = sum(other.persistent for other in residents)
        self.level = self.memory.read()[0]
        if residents:
            self.memory.reset_peak()
        else:
            self.memory.forget_peaks()
        residue = self.level - self._context_level - self.shared_bytes - others
        is_sound = is_stuck or (not self._wreckage and self.memory.is_sound())
        pool = idle_pool()
        # Also in a tainted lane, where its lane-mates go on.
        tainted = not self._limits.put_back() or not is_sound
        tainted = tainted or trial.left_threads(pool.threads, residents) or has_process_group()
        tainted = tainted or (not residents and bool(children(pool.processes)))
        tainted = tainted or self._limits.are_files_left(bool(residents))
        if abs(residue - self._residue) > MIB or tainted != self._tainted:
            self._residue, self._tainted = max(0, residue), tainted
            self._send_holds()
        return is_sound

    def survives(self, error: BaseException) -> bool:
        """Whether another trial can run here after this error; if not, the error and all it refers to is kept alive.

        Freeing a tensor may query its device, and that ends a process whose device is broken.
        """
        if not self._wreckage and self.memory.is_sound():
            return True
        self._wreckage.append(error)
        return False

    def _tidy(self, *, others_run: bool) -> None:
        if not others_run:
            disarm()
        forget_compiled(others_run=others_run)
        forget_types()
        gc.collect()
        if not self._warm and not others_run:
            # The first trial's imports stay for good; without the freeze every full collection would scan them. What a
            # lane-mate holds does not stay.
            self._warm = True
            gc.freeze()
        self.memory.trim(others_run=others_run)

    def _send_holds(self) -> None:
        self.send(wire.encode_object(Kind.HOLDS, (self.shared_bytes, self._residue, self._tainted)))

    @property
    def _context(self) -> Context | None:
        """The process-wide state of the trial that has the turn."""
        holder = self.turns.holder
        return holder.context if holder is not None else None

    # ---- set-up

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        trial: Any = session.bound()
        if trial is None:
            # A thread that a trial has started counts for it while the trial's own only waits for its end.
            trial = session.starter_of(threading.current_thread())
            if trial is None or not trial.is_waiting_here(for_its_end=False):
                return
        trial.after_step(optimizer)

    def _torch_loaded(self) -> None:
        """Called once torch is imported; does the part of the running trial's set-up that needs torch."""
        defer_dynamo(self.memory.loading)
        if self.options.uuid:
            keep_graphs_apart(sys.modules["torch"])
        settings.take_over_torch(on_gpu=bool(self.options.uuid))
        # Hooks of the script come with their numbers. One that a trial adds must not take the place of one of them.
        handles: Any = importlib.import_module("torch.utils.hooks").RemovableHandle
        handles.next_id = max(handles.next_id, FIRST_HOOK)
        context = self._context
        if context is not None:
            context.seed_torch()
            self._set_threads()

    @contextlib.contextmanager
    def _importing(self) -> Iterator[None]:
        """Wraps an import: its random draws and settings do not count as those of the trial that causes it."""
        holder, context = self.turns.holder, self._context
        if holder is not None and context is not None and holder.runs_here() and not self.memory.is_recording():
            with context.no_draws(), self.imported.noted(with_filters=not context.catches_warnings):
                yield
        else:
            yield

    def _cupy_loaded(self, _cupy: ModuleType) -> None:
        context = self._context
        if context is not None:
            context.cupy_loaded()


def _thread_of(trial: int, run: Callable[[], None]) -> threading.Thread:
    # Python makes no thread where a hook for errors is None, to which a trial may set it. A lane-mate keeps its own.
    hooks = getattr(sys, "excepthook", None), getattr(threading, "excepthook", None)
    sys.excepthook, threading.excepthook = sys.__excepthook__, threading.__excepthook__
    try:
        return threading.Thread(target=_run_or_exit, args=(run,), name=f"trial-{trial}", daemon=True)
    finally:
        sys.excepthook, threading.excepthook = hooks  # type: ignore[assignment]


def _run_or_exit(run: Callable[[], None]) -> None:
    """Ends the process if the thread of a trial raises."""
    try:
        run()
    except BaseException:
        # The death of the lane is reported, and its residents go on in others.
        try:
            traceback.print_exc()
        finally:
            # Even if printing fails: otherwise the trial would keep the turn, or the driver wait for it, for ever.
            os._exit(1)
