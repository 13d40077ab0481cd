"""A lane on a Ray cluster: one long-lived actor in which many trials run, one after the other or by turns.

The process is an ordinary lane (`sharing.inside`) with another transport: it sends frames as answers to `beat()`, of
which the driver always has one call under way, and the driver's commands are calls of this actor.
"""

from __future__ import annotations

import array
import gc
import importlib
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import ray
from ray import cloudpickle

from cotune.ray_tune.forks import end_forks_on_sigterm
from cotune.ray_tune.inbox import Call, Inbox
from cotune.ray_tune.lane_trial import LaneTrial
from cotune.ray_tune.launches import watch_launches
from cotune.ray_tune.outbox import Outbox
from cotune.ray_tune.sessions import route_sessions
from cotune.ray_tune.site import Site, look_round
from cotune.sharing import cuda
from cotune.sharing.inside.host import Host
from cotune.sharing.inside.ray_session import let_gpus_be_shared
from cotune.sharing.lane_options import LaneOptions
from cotune.sharing.page import NOBODY, Page

BEAT_EVERY = 1.0
EVICT_AFTER = 2.0
RESIZED_WITHIN = 5.0
SWITCH_INTERVAL = 0.001

Key = tuple[int, int]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Beat:
    """News of a lane.

    Attributes:
        frames: Events, as `sharing.wire` encodes them.
        holder: The trial that has the turn, or None.
        quiet: Seconds since that trial's last iteration boundary.
        held: Bytes the process keeps from others.
        used: Bytes of the GPU in use by all processes; None for a CPU.
    """

    frames: list[bytes] = field(default_factory=list)
    holder: int | None = None
    quiet: float = 0.0
    held: int = 0
    used: int | None = None


@dataclass(frozen=True, slots=True)
class AttemptSpec:
    """An attempt at a trial, as it is sent to a lane.

    Attributes:
        trial: The trial's number in the brain.
        attempt: The number of the attempt.
        seed: Seeds torch, numpy and random.
        folder: The trial's folder.
        trainable: Number of the Trainable's class.
        pickled: That class, if the lane does not have it yet.
        kwargs: Arguments of the Trainable's constructor, pickled: unpickling a config may import modules, which must
            happen in the trial's thread and not in one of Ray's.
        checkpoint: The checkpoint to restore first, or None.
        reached: Iterations of the trial that Tune has results of.
        resizes: How often the lane had been told another quota before; Ray may deliver the attempt sooner.
    """

    trial: int
    attempt: int
    seed: int
    folder: str
    trainable: int
    pickled: bytes | None
    kwargs: bytes
    checkpoint: Any = None
    reached: int = 0
    resizes: int = 0

    @property
    def key(self) -> Key:
        return self.trial, self.attempt


class LaneHost(Host):
    """What the trials of a lane share; it sends frames to an outbox, and Ray collects what trials print."""

    def __init__(self, options: LaneOptions, outbox: Outbox) -> None:
        numbers = memoryview(array.array("d", [NOBODY, time.monotonic(), 0.0, 0.0]))
        super().__init__(options, cast("memoryview[float]", numbers))
        self.shown = Page(self.page)
        self._outbox = outbox

    def send(self, frame: bytes) -> None:
        self._outbox.put(frame)


def lane_actor(residents: int) -> Any:
    """The actor class of lanes with `residents` trials at once.

    Each call waits in one of Ray's threads for the trial's thread; a trial has few calls under way, and one thread must
    be free for `stop`.
    """
    # One thread for all resizes: several would race, and an older quota might stand in the end.
    groups = {"news": 1, "calls": 4 * residents + 4, "control": 2, "resizes": 1, "evictions": 2 * residents}
    return ray.remote(concurrency_groups=groups)(Lane)


class Lane:
    """The process of a lane.

    Args:
        environment: Environment variables to set before anything heavy is imported.
        modules: Modules that trials will import, so that they count for the bare lane and not for the first trial.
    """

    def __init__(self, environment: Mapping[str, str], modules: Sequence[str]) -> None:
        os.environ.update(environment)
        sys.setswitchinterval(SWITCH_INTERVAL)
        self._modules: Sequence[str] = modules
        self._outbox = Outbox()
        self._host: LaneHost | None = None
        self._watch: cuda.GpuWatch | None = None
        self._opened = threading.Event()
        self._resizes = 0
        self._resized = threading.Condition()
        self._trials: dict[Key, LaneTrial] = {}
        self._inboxes: dict[Key, Inbox] = {}
        self._closed = Inbox()
        self._closed.close()
        self._registering = threading.Lock()
        self._trainables: dict[int, Future[bytes]] = {}

    def __repr__(self) -> str:
        # Ray puts this before each line that trials print, and into errors; it asks at the start.
        return f"lane {self._host.options.lane}" if self._host is not None else "lane"

    @ray.method(concurrency_group="control")  # type: ignore[untyped-decorator]
    def site(self) -> Site:
        """Where the process runs; answered once the imports are done."""
        with self._registering:
            self._import()
        return look_round()

    @ray.method(concurrency_group="control")  # type: ignore[untyped-decorator]
    def open(self, options: LaneOptions) -> Site:
        """Becomes a lane; a `READY` frame follows."""
        site: Site = self.site()
        route_sessions()
        watch_launches()
        end_forks_on_sigterm()
        let_gpus_be_shared()
        self._host = LaneHost(options, self._outbox)
        if options.uuid:
            self._watch = cuda.GpuWatch(options.uuid)
        self._host.start()
        self._opened.set()
        return site

    @ray.method(concurrency_group="news")  # type: ignore[untyped-decorator]
    def beat(self) -> Beat:
        """Waits for news, for a second at most."""
        due = time.monotonic() + BEAT_EVERY
        frames = self._outbox.take(BEAT_EVERY)
        late = time.monotonic() - due
        host = self._host
        if host is None:
            return Beat(frames)
        if late > BEAT_EVERY:
            # This thread did not run. If native code held the interpreter meanwhile, the driver has noticed.
            host.shown.excuse(late)
        host.look()
        shown, used = host.shown, self._watch.used() if self._watch else None
        return Beat(frames, shown.holder, shown.quiet, shown.held, used)

    @ray.method(concurrency_group="calls")  # type: ignore[untyped-decorator]
    def call(
        self,
        key: Key,
        number: int,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        attempt: AttemptSpec | None,
    ) -> Any:
        """Calls a trial's Trainable, after the calls with lower numbers; the first call brings the attempt."""
        call = Call(method, args, kwargs)
        if method == "stop":
            # The present call ends at the trial's next boundary; then the trial's thread takes this one.
            self._stop(key)
        self._inbox(key).put(number, call)
        if attempt is not None:
            self._begin(attempt)
        return call.answer.result()

    def _inbox(self, key: Key) -> Inbox:
        """The calls to a trial, which may come before its thread has begun, and after it has ended."""
        with self._registering:
            return self._inboxes.setdefault(key, Inbox())

    def _begin(self, attempt: AttemptSpec) -> None:
        if attempt.pickled is not None:
            self._trainable(attempt.trainable).set_result(attempt.pickled)
        self._opened.wait()
        assert self._host is not None
        if not self._host.begin(attempt.trial, partial(self._run, attempt)):
            self._inbox(attempt.key).close()

    @ray.method(concurrency_group="control")  # type: ignore[untyped-decorator]
    def interrupt(self, key: Key) -> None:
        """Stops a trial at its next boundary."""
        self._stop(key)

    @ray.method(concurrency_group="evictions")  # type: ignore[untyped-decorator]
    def evict(self, key: Key) -> None:
        """Ends a trial even if it reaches no boundary; its lane-mates go on."""
        trial = self._stop(key)
        while trial is not None and key in self._trials:
            time.sleep(EVICT_AFTER)
            if trial.abandon():
                self._forget(key)

    def _stop(self, key: Key) -> LaneTrial | None:
        """Stops a trial, even if its first call is still on its way: Ray keeps no order among concurrency groups."""
        with self._registering:
            trial = self._trials.get(key)
            if trial is None:
                self._inboxes.setdefault(key, Inbox()).is_unwanted = True
        if trial is not None:
            trial.stop()
        return trial

    @ray.method(concurrency_group="resizes")  # type: ignore[untyped-decorator]
    def resize(self, number: int, quota: int) -> None:
        """Changes the quota for the `number`th time; a `RESIZED` frame follows."""
        self._opened.wait()
        assert self._host is not None
        try:
            self._host.resize(quota)
        finally:
            with self._resized:
                self._resizes = number
                self._resized.notify_all()

    def _import(self) -> None:
        for name in self._modules:
            try:
                importlib.import_module(name)
            except Exception as error:
                # A trial that needs the module will raise the error itself.
                log.debug("not imported ahead: %s: %s", name, error)
        self._modules = ()
        # Imported objects stay: collections after a trial need not look at them.
        gc.freeze()

    def _run(self, attempt: AttemptSpec) -> None:
        """The body of a trial's thread."""
        assert self._host is not None
        with self._resized:
            # Not for ever: Ray may fail to unpack a call for want of memory.
            self._resized.wait_for(lambda: self._resizes >= attempt.resizes, RESIZED_WITHIN)
        self._host.memory.cap()
        make, folder = partial(self._make, attempt), Path(attempt.folder)
        inbox = self._inbox(attempt.key)
        trial = LaneTrial(self._host, attempt.trial, attempt.seed, folder, make, inbox, attempt.reached)
        self._host.adopt(trial)
        with self._registering:
            self._trials[attempt.key] = trial
            if inbox.is_unwanted:
                trial.stop()
        try:
            trial.run()
        finally:
            self._forget(attempt.key)

    def _trainable(self, number: int) -> Future[bytes]:
        """The future of a pickled class, which may still be on its way."""
        with self._registering:
            return self._trainables.setdefault(number, Future())

    def _make(self, attempt: AttemptSpec) -> Any:
        """Makes the Trainable; unpickles its class anew, so that it does not share globals with earlier trials."""
        cls = cloudpickle.loads(self._trainable(attempt.trainable).result())
        trainable = cls(**cloudpickle.loads(attempt.kwargs))
        if attempt.checkpoint is not None:
            trainable.restore(attempt.checkpoint)
        return trainable

    def _forget(self, key: Key) -> None:
        with self._registering:
            self._trials.pop(key, None)
            # A lane runs thousands of trials: those that are over share an inbox.
            self._inboxes[key] = self._closed
