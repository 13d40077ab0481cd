"""This machine as a body: lanes are processes forked by a zygote.

Sweep ──instructions──▶ LocalEngine ──▶ ZygoteHandle (forks, kills, reaps)
      ◀──events, reports──            ──▶ LaneHandle, one per lane (socket pair, shared page)
"""

from __future__ import annotations

import contextlib
import errno
import math
import selectors
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from cotune import errors
from cotune.engines.base import Engine, Happened
from cotune.engines.bell import Bell
from cotune.engines.local_devices import LocalDevices
from cotune.engines.local_gpu import LocalGpu
from cotune.engines.local_lanes import LocalLanes
from cotune.engines.local_options import LocalOptions
from cotune.engines.local_zygote import LocalZygote
from cotune.engines.open_files import are_scarce, files_of_a_lane, raised_limit
from cotune.engines.others import is_short_of_memory
from cotune.engines.translation import carry_out, event_of, not_sent
from cotune.packer import events as ev
from cotune.packer import instructions as do
from cotune.script.pickling import Packed
from cotune.sharing import wire
from cotune.sharing.devices import DeviceInfo
from cotune.sharing.estimator import Estimator
from cotune.sharing.lane import LaneHandle, ended_how
from cotune.sharing.lane_options import LaneOptions
from cotune.sharing.wire import Kind
from cotune.sharing.zygote import ZygoteHandle
from cotune.trial import Estimated, Outcome, TrialSpec

WATCH_EVERY = 1.0
QUIET_AFTER = 1.0
EXIT_WITHIN = 5.0
# Seconds without a boundary after which nothing runs in a lane, instead of the next trial being about to begin.
RESTS_AFTER = 1.0
# Seconds for a forked lane to come up; creating a context on a busy GPU takes a few.
UP_WITHIN = 300.0


class LocalEngine(Engine):
    """Lanes on the devices of this machine.

    Args:
        packed: The trainable, which the lanes run.
        devices: The devices to use.
        folder: Folder for the logs of the zygote and the lanes.
        options: How trials run.

    Raises:
        DeviceError: MPS was requested and cannot be used (raised by `start()`).
        RunError: All its GPUs are lost (raised by `start()`), or no process can be started.
    """

    def __init__(self, packed: Packed, devices: Sequence[DeviceInfo], folder: Path, options: LocalOptions) -> None:
        self._options = options
        self._devices = LocalDevices(devices, folder)
        self._folder = folder
        modules = [*packed.modules, *options.preload]
        self._packed, self.can_estimate = packed, packed.rehearses
        self.uses_gpus = any(info.is_cuda for info in devices)
        if self.uses_gpus:
            modules.append("torch")
        self._threads = options.threads or min(max(1, info.cores // 4) if info.is_cuda else 1 for info in devices)
        self._lanes = LocalLanes()
        self._more_files = contextlib.ExitStack()
        self._pending: list[Happened] = []
        self._watch_due = math.inf
        self._closed = False
        self._selector = selectors.DefaultSelector()
        self._bell = Bell()
        # The data of a key is the function to call when it is readable.
        self._selector.register(self._bell, selectors.EVENT_READ, self._bell.hush)
        log = folder / "zygote.log"
        start = partial(self._new_zygote, modules, log)
        self._zygote = LocalZygote(self._selector, self._hear_zygote, start, log)
        self._estimator = Estimator(self._selector, self._zygote.get, lambda told: self._pending.append(told))
        self._zygote.get()

    def start(self, is_over: Callable[[], bool] = lambda: False) -> list[ev.DeviceFound]:
        self._devices.watch(self._options.mps)
        self._watch_due = self.now() + WATCH_EVERY
        return self._devices.found(self.now(), self._options.residents + self._options.paused)

    def now(self) -> float:
        return time.monotonic()

    def wake(self) -> None:
        self._bell.ring()

    # ---- instructions

    def execute(self, instruction: do.Instruction, spec: TrialSpec | None = None) -> None:
        if isinstance(instruction, do.OpenLane):
            self._open(instruction)
        elif isinstance(instruction, do.StartTrial):
            assert spec is not None
            self._start(instruction, spec)
        elif isinstance(instruction, do.ToTrial):
            carry_out(instruction, self._lanes.of(instruction.trial))
        elif isinstance(instruction, do.ToLane):
            carry_out(instruction, self._lanes.get(instruction.lane))

    def _start(self, start: do.StartTrial, spec: TrialSpec) -> None:
        lane = self._lanes.get(start.lane)
        if lane is None:
            return
        gpu = self._gpu_of(lane)
        if gpu is not None:
            gpu.forget(start.trial)
        try:
            lane.start(wire.sendable(spec, self._packed.series))
        except errors.NotPicklable as error:
            self._pending.append(not_sent(start.trial, error, self.now()))
            self.wake()
            return
        self._lanes.starts(start.trial, lane)

    def estimate(self, trial: int, config: Mapping[str, Any]) -> None:
        try:
            assert self._packed.series is not None
            self._estimator.begin(trial, self._packed.series.then(config, f"the config of trial {trial}"))
        except (errors.NotPicklable, OSError) as error:
            self._pending.append(Estimated(trial, None, str(error), 0.0))
            self.wake()

    def verdict(self, trial: int, attempt: int) -> None:
        lane = self._lanes.of(trial)
        if lane is not None:
            lane.verdict(trial, attempt)

    def answer(self, trial: int, attempt: int, payload: bytes) -> None:
        lane = self._lanes.of(trial)
        if lane is not None:
            lane.answer(trial, attempt, payload)

    def _open(self, instruction: do.OpenLane) -> None:
        info = self._devices.there.get(instruction.device)
        if info is None:
            # The device was given up; the brain gets that event soon.
            return
        gpu = self._devices.gpus.get(info.name)
        mps = gpu.client_environment(instruction.lane, apart=instruction.apart) if gpu is not None else None
        how = self._options
        options = LaneOptions(
            lane=instruction.lane,
            device=info.name,
            uuid=info.uuid,
            cores=info.cores,
            quota=instruction.quota,
            threads=self._threads,
            seats=how.residents + how.paused,
            trials=how.trials,
            log=self._folder / f"lane-{instruction.lane}.log",
            environment=mps or {},
            imports=self._packed.imports,
            named=self._packed.named,
        )
        files = files_of_a_lane(options.seats)
        try:
            # Not before the zygote has begun, so that trials have the limit that the script has.
            if are_scarce(files):
                self._more_files.enter_context(raised_limit())
            lane = LaneHandle(self._zygote.get(), options, gpu.dismiss if gpu is not None and mps else None)
        except OSError as error:
            mend = f"each lane takes {files} files of this process: raise `ulimit -n`, or pass fewer lanes="
            if error.errno == errno.EFBIG:
                mend = "raise the limit of a file's size (`ulimit -f`)"
            raise errors.RunError(
                f"lane {instruction.lane} cannot be opened: {error.strerror or error}",
                hint=f"{mend}; what has run so far is kept",
            ) from error
        self._lanes.add(lane)
        self._selector.register(lane, selectors.EVENT_READ, partial(self._hear_lane, lane))

    def _gpu_of(self, lane: LaneHandle) -> LocalGpu | None:
        return self._devices.gpus.get(lane.options.device)

    # ---- events

    def poll(self, timeout: float) -> list[Happened]:
        # Here, after the events of the last call have been returned.
        self._give_up_devices()
        due = min(self._watch_due, self._estimator.due) - self.now()
        wait = 0.0 if self._pending else max(0.0, min(timeout, due))
        for key, _ in self._selector.select(wait):
            key.data()
        self._estimator.look()
        if self.now() >= self._watch_due:
            self._watch()
        happened, self._pending = self._pending, []
        return happened

    def _hear_lane(self, lane: LaneHandle) -> None:
        if self._lanes.get(lane.lane) is not lane:
            # In the same round the zygote has reported the lane's end, and the lane was forgotten.
            return
        frames = lane.receive()
        if frames:
            self._decode(lane, frames)
        if frames is None or lane.is_broken:
            # The lane's process is ending, or has lost its socket; the zygote reports its exit status.
            self._selector.unregister(lane)
            if lane.is_broken:
                lane.kill()
            else:
                lane.bury()

    def _decode(self, lane: LaneHandle, frames: Iterable[tuple[int, bytes]]) -> None:
        pending = self._pending
        for kind, payload in frames:
            if kind == Kind.REPORT:
                pending.append(wire.decode_report(payload))
            elif kind == Kind.ASK:
                pending.append(wire.decode_question(payload))
            else:
                event = event_of(kind, payload, lane.lane, self.now())
                if not self._fails_with_device(lane, event):
                    pending.append(self._noted(lane, event))

    def _fails_with_device(self, lane: LaneHandle, event: ev.Event) -> bool:
        """Whether a trial has failed because its device is lost; the device's loss then ends the trial."""
        is_failure = isinstance(event, ev.TrialEnded) and event.outcome is Outcome.FAILED
        return is_failure and self._devices.note_loss(lane.options.device)

    def _noted(self, lane: LaneHandle, event: ev.Event) -> ev.Event:
        """Notes what an event of a lane means for this engine; returns it with what a lane cannot measure itself."""
        gpu = self._gpu_of(lane)
        if isinstance(event, ev.IterationsDone) and gpu is not None:
            return replace(event, busy=gpu.busy(event.trial, event.time, len(self._lanes.on(gpu.name))))
        if isinstance(event, ev.TrialEnded):
            self._lanes.ended(event.trial)
            if gpu is not None:
                gpu.forget(event.trial)
                if is_short_of_memory(event, lane.quota):
                    self._refused(gpu)
        elif isinstance(event, ev.LaneReady):
            lane.is_up = True
            self._devices.lane_up(lane.options.device)
        return event

    def _new_zygote(self, modules: list[str], log: Path) -> ZygoteHandle:
        packed = self._packed
        return ZygoteHandle(modules, packed.blob, self._threads, log, packed.own, packed.settings)

    def _hear_zygote(self, zygote: ZygoteHandle) -> None:
        message = zygote.receive()
        if message is None:
            self._zygote_died()
            return
        what, lane, value = message
        if what == "forked":
            self._estimator.forked(lane)
            if (handle := self._lanes.get(lane)) is not None:
                handle.forked_at = self.now()
        elif what == "gone" and (handle := self._lanes.get(lane)) is not None:
            detail = ended_how(value, handle.options.log)
            self._lane_gone(handle, detail, value)
            # An MPS client that did not come up does not count: the next lanes are no clients. If trials run in other
            # lanes, the device goes on with these; others may only hold paused trials.
            lanes = self._lanes.on(handle.options.device)
            are_running = any(lane.is_up and lane.page.rests < RESTS_AFTER for lane in lanes)
            if not handle.is_up and not handle.options.is_mps_client and not are_running:
                self._devices.lane_stillborn(handle.options.device, detail)

    def _end_start(self) -> None:
        """Ends a zygote that still imports, perhaps for ever, and so cannot kill a lane as requested."""
        if not self._zygote.is_starting or not any(lane.is_killed for lane in self._lanes):
            return
        self._zygote.end()
        for lane in list(self._lanes):
            self._lane_gone(lane, "it was not up yet when it was to end")

    def _zygote_died(self) -> None:
        # Lanes die with their zygote.
        self._zygote.died()
        lanes, detail = list(self._lanes), "the process that forks lanes was killed"
        for lane in lanes:
            self._lane_gone(lane, detail, with_others=True)
        # Counted once per device, however many lanes were waiting.
        for device in {lane.options.device for lane in lanes if not lane.is_up}:
            self._devices.lane_stillborn(device, detail)

    def _lane_gone(
        self, lane: LaneHandle, detail: str, status: int | None = None, *, with_others: bool = False
    ) -> None:
        holder = lane.page.holder
        self._decode(lane, lane.drain())
        gpu = self._gpu_of(lane)
        # Where a lane's quota is the GPU's memory, it says nothing about what the process lacked.
        refused = lane.refused(status, holder) if gpu is None else None
        self._forget(lane)
        if gpu is not None:
            gpu.lane_gone(lane, status)
            if not lane.is_up:
                # Before LaneLost, or the brain would open the next lane with the memory this one was refused.
                self._refused(gpu)
        self._pending.append(ev.LaneLost(self.now(), lane.lane, holder, detail, with_others, refused))

    def _forget(self, lane: LaneHandle) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(lane)
        self._lanes.forget(lane)

    def _give_up_devices(self) -> None:
        """Gives up useless devices: kills their lanes, whose messages are no longer read."""
        for device in self._devices.give_up():
            for lane in self._lanes.on(device):
                lane.kill()
                self._forget(lane)
            self._devices.release(device)
            self._pending.append(ev.DeviceLost(self.now(), device))

    def _refused(self, gpu: LocalGpu) -> None:
        """Called when a lane was refused memory within its quota: other programs may have taken it."""
        capacity = gpu.refused_capacity(self._lanes.on(gpu.name))
        if capacity is not None:
            self._pending.append(ev.DeviceChanged(self.now(), gpu.name, capacity))

    def _watch(self) -> None:
        """Once a second, looks for lanes without progress, lost GPUs and memory that other programs take or return."""
        now = self.now()
        late, self._watch_due = now - self._watch_due, now + WATCH_EVERY
        self._end_start()
        for lane in self._lanes:
            if late > WATCH_EVERY:
                # This process did not run, so perhaps lanes did not either: a container was paused, a job suspended.
                lane.excuse(late)
            if now - lane.leaves_since > EXIT_WITHIN or (not lane.is_up and now - lane.forked_at > UP_WITHIN):
                # The lane cannot read its messages, as while native code holds the GIL, or it hangs at its start.
                lane.kill()
            page, seconds = lane.page, lane.page.quiet
            if seconds > QUIET_AFTER:
                self._pending.append(ev.LaneQuiet(now, lane.lane, page.holder, seconds, page.held))
        for gpu in self._devices.gpus.values():
            self._devices.note_loss(gpu.name)
            capacity = gpu.changed_capacity(self._lanes.on(gpu.name))
            if capacity is not None:
                self._pending.append(ev.DeviceChanged(now, gpu.name, capacity))
        self._pending.append(ev.Tick(now))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        leaving = [lane.lane for lane in self._lanes if lane.is_up and not lane.has_trials]
        # Each of it, even if a Ctrl-C interrupts one of the others.
        with contextlib.ExitStack() as closing:
            closing.enter_context(self._more_files)
            closing.callback(self._let_go)
            closing.callback(self._selector.close)
            closing.callback(self._devices.close)
            closing.callback(self._zygote.end, leaving)
            closing.callback(self._estimator.close)
            self._lanes.close()

    def _let_go(self) -> None:
        """Forgets the trainable, which may be large: a traceback that somebody keeps may keep this object."""
        self._packed = replace(self._packed, blob=b"", series=None)
