"""A Ray cluster as a body: on every GPU, or on every node where none is used, an actor that is a local body.

RayEngine ──commands, in batches──▶ Member, an actor ──▶ LocalEngine ──▶ zygote, lanes
          ◀──events and reports, in batches──

What runs on a node is what runs without Ray: lanes forked from a warm zygote, with the same quotas and turns. Ray
finds the room, reserves it, brings actors and messages there, and says when a node is gone.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import logging
import queue
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cotune import errors
from cotune.engines.base import Engine
from cotune.engines.local import LocalOptions
from cotune.engines.orders import TO_LANES, TO_TRIALS
from cotune.engines.ray_member import Down, Joined, Member, Slot
from cotune.packer import events as ev
from cotune.packer import instructions as do
from cotune.sharing.pickling import pack
from cotune.trial import Question, Report, TrialSpec

JOIN_WITHIN = 60.0
SETTLE = 2.0
KNOCK_WITHIN = 5.0
SHRINK_AFTER = 5.0
LOOK_EVERY = 5.0
POLL_FOR = 10.0
LEAVE_WITHIN = 5.0
MAX_LOST_IN_A_ROW = 3

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Membership:
    """An actor, as the driver sees it.

    Attributes:
        slot: What it holds.
        actor: Its handle.
        device: The name of its device, once it has joined.
        local: The name it has there.
        hello: Answered as soon as it has its place.
        commands: What it is to be told next.
    """

    slot: Slot
    actor: Any
    hello: Any
    device: str = ""
    local: str = ""
    commands: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)


class RayEngine(Engine):
    """Lanes on the nodes of a Ray cluster.

    Args:
        cluster: `auto` for the cluster this process is connected to or finds, or an address as `ray.init` takes it.
        trainable: What the lanes run.
        gpus: How many GPUs; None for all there are, also those that come later; 0 for CPUs only.
        folder: For logs, on storage that every node sees.
        options: How trials run.

    Raises:
        NotPicklable: The trainable cannot be sent.
        DeviceError: There is no such cluster.
    """

    def __init__(self, cluster: str, trainable: Any, gpus: int | None, folder: Path, options: LocalOptions) -> None:
        self._packed = pack(trainable)
        self._gpus = gpus
        self._folder = folder
        self._options = options
        self._members: set[_Membership] = set()
        self._by_device: dict[str, _Membership] = {}
        self._by_lane: dict[int, _Membership] = {}
        self._by_trial: dict[int, _Membership] = {}
        self._homeless: list[str] = []
        self._arrived: queue.SimpleQueue[tuple[_Membership, Future[Any]] | None] = queue.SimpleQueue()
        self._lost_in_a_row = 0
        self._look_due = self._tick_due = 0.0
        self._closed = False
        self._refused: collections.Counter[tuple[int, str]] = collections.Counter()
        self._ray, self._is_ours = _connect(cluster)
        self._on_gpus = gpus > 0 if gpus is not None else self._ray.cluster_resources().get("GPU", 0) >= 1
        self._packed_ref = self._ray.put(self._packed)

    # ---- members

    def start(self) -> list[ev.DeviceFound]:
        """Begins with the devices that are there within a moment; others come as events.

        Raises:
            DeviceError: The cluster gives us nothing.
        """
        there = int(self._ray.cluster_resources().get("GPU", 0))
        if self._gpus is not None and self._gpus > there:
            log.warning("gpus=%d, but the cluster has %d now: waiting for the others", self._gpus, there)
        self._look()
        found: list[ev.DeviceFound] = []
        began = shrunk = time.monotonic()
        while len(self._by_device) < len(self._members) or not found:
            now = time.monotonic()
            if now - began > (SETTLE if found else JOIN_WITHIN):
                break
            if now - shrunk > SHRINK_AFTER:
                shrunk = now
                self._make_do()
            found += [event for event in self._gather(0.2) if isinstance(event, ev.DeviceFound)]
        if not found:
            raise errors.DeviceError(
                f"the cluster gave us nothing within {JOIN_WITHIN:.0f} s: "
                f"it has {_counts(self._ray.cluster_resources())}, {_counts(self._ray.available_resources())} free",
                hint="free some of it, or pass gpus= with what there is",
            )
        return found

    def _look(self) -> None:
        """Asks for an actor on everything that has none: what cannot be had now is had when it is free."""
        self._look_due = time.monotonic() + LOOK_EVERY
        held = self._refused + collections.Counter(member.slot.place for member in self._members)
        for slot in self._wanted():
            if held[slot.place]:
                held[slot.place] -= 1
            else:
                self._invite(slot)

    def _make_do(self) -> None:
        """Asks for half as many cores of nodes that others use as well."""
        absent = [member for member in self._members if not member.device and member.slot.cpus > 1]
        for member in absent:
            if self._ray.wait([member.hello], timeout=0)[0]:
                # It has its place, and takes its time.
                continue
            self._members.discard(member)
            self._ray.kill(member.actor)
            self._invite(replace(member.slot, cpus=member.slot.cpus // 2))

    def _wanted(self) -> Iterator[Slot]:
        if self._on_gpus:
            gpus = int(self._ray.cluster_resources().get("GPU", 0)) if self._gpus is None else self._gpus
            yield from [Slot(gpus=1, cpus=1)] * gpus
            return
        for node in self._ray.nodes():
            cpus = int(node["Resources"].get("CPU", 0))
            if node["Alive"] and cpus:
                yield Slot(0, cpus, int(node["Resources"].get("memory", 0)), node["NodeID"])

    def _invite(self, slot: Slot) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        where = NodeAffinitySchedulingStrategy(slot.node, soft=False) if slot.node else "SPREAD"
        how = {"num_gpus": slot.gpus, "num_cpus": slot.cpus, "scheduling_strategy": where}
        # A thread for each direction, so that commands arrive in order while a poll waits. Said of the methods, since
        # calls over ray:// cannot say it.
        self._ray.method(concurrency_group="tell")(Member.do)
        self._ray.method(concurrency_group="hear")(Member.poll)
        actor_class = self._ray.remote(concurrency_groups={"tell": 1, "hear": 1}, max_restarts=0, **how)(Member)
        actor = actor_class.remote(self._packed_ref, slot, self._folder, self._options)
        member = _Membership(slot, actor, actor.do.remote([]))
        self._members.add(member)
        self._ask(member)

    def _ask(self, member: _Membership) -> None:
        answer = member.actor.poll.remote(POLL_FOR).future()
        answer.add_done_callback(lambda done: self._arrived.put((member, done)))

    def _joined(self, member: _Membership, joined: Joined) -> ev.DeviceFound:
        self._lost_in_a_row = 0
        member.device = self._free_name(joined)
        member.local = joined.device.device
        self._by_device[member.device] = member
        return replace(joined.device, device=member.device, time=self.now())

    def _free_name(self, joined: Joined) -> str:
        """Several nodes may have one address, and a node may be back before its loss is told."""
        address, _, label = joined.name.partition("/")
        names = itertools.chain([joined.name], (f"{address}#{n}/{label}" for n in itertools.count(2)))
        return next(name for name in names if name not in self._by_device and name not in self._homeless)

    def _leave(self, member: _Membership, why: str) -> None:
        """Books out an actor that is gone, or failed, with its lanes."""
        self._members.discard(member)
        self._by_lane = {lane: other for lane, other in self._by_lane.items() if other is not member}
        self._by_trial = {trial: other for trial, other in self._by_trial.items() if other is not member}
        self._by_device.pop(member.device, None)
        if member.device:
            self._homeless.append(member.device)
        # It may only be out of reach.
        with contextlib.suppress(Exception):
            self._ray.kill(member.actor)
        log.warning("%s is lost: %s", member.device or "a node that had not joined yet", why)
        self._lost_in_a_row += 1
        if self._lost_in_a_row >= MAX_LOST_IN_A_ROW and not self._by_device:
            raise errors.RunError(
                f"{self._lost_in_a_row} nodes in a row were lost, and none is left; the last: {why}",
                hint="see `ray status`; what has run is kept, resume=True goes on with it",
            )
        self._look_due = 0.0

    # ---- instructions

    def execute(self, instruction: do.Instruction, spec: TrialSpec | None = None) -> None:
        member: _Membership | None = None
        if isinstance(instruction, do.OpenLane):
            member = self._by_device.get(instruction.device)
            if member is not None:
                self._by_lane[instruction.lane] = member
                instruction = replace(instruction, device=member.local)
        elif isinstance(instruction, do.StartTrial):
            member = self._by_lane.get(instruction.lane)
            if member is not None:
                self._by_trial[instruction.trial] = member
        elif isinstance(instruction, TO_TRIALS):
            member = self._by_trial.get(instruction.trial)
        elif isinstance(instruction, TO_LANES):
            member = self._by_lane.get(instruction.lane)
        if member is not None:
            member.commands.append(("execute", (instruction, spec)))

    def verdict(self, trial: int, attempt: int) -> None:
        member = self._by_trial.get(trial)
        if member is not None:
            member.commands.append(("verdict", (trial, attempt)))

    def answer(self, trial: int, attempt: int, payload: bytes) -> None:
        member = self._by_trial.get(trial)
        if member is not None:
            member.commands.append(("answer", (trial, attempt, payload)))

    def _flush(self) -> None:
        for member in self._members:
            if member.commands:
                commands, member.commands = member.commands, []
                member.actor.do.remote(commands)

    # ---- events

    def now(self) -> float:
        return time.monotonic()

    def wake(self) -> None:
        self._arrived.put(None)

    def poll(self, timeout: float) -> list[ev.Event | Report | Question]:
        self._flush()
        if self.now() >= self._look_due:
            self._look()
        happened = self._gather(max(0.0, min(timeout, self._tick_due - self.now())))
        if self.now() >= self._tick_due:
            self._tick_due = self.now() + 1.0
            happened.append(ev.Tick(self.now()))
        if self._homeless and self._by_device:
            # Not before there is another: without any device the brain would give up.
            happened += [ev.DeviceLost(self.now(), device) for device in self._homeless]
            self._homeless = []
        return happened

    def _gather(self, timeout: float) -> list[ev.Event | Report | Question]:
        happened: list[ev.Event | Report | Question] = []
        with contextlib.suppress(queue.Empty):
            arrived = self._arrived.get(timeout=timeout)
            while True:
                if arrived is not None and arrived[0] in self._members:
                    happened += self._hear(*arrived)
                arrived = self._arrived.get_nowait()
        return happened

    def _hear(self, member: _Membership, answer: Future[Any]) -> list[ev.Event | Report | Question]:
        from ray.exceptions import RayError

        try:
            items = answer.result()
        except RayError as error:
            self._leave(member, str(error).splitlines()[0])
            return []
        self._ask(member)
        happened: list[ev.Event | Report | Question] = []
        for item in items:
            if isinstance(item, Joined):
                happened.append(self._joined(member, item))
            elif isinstance(item, Down):
                if not any(other is not member for other in self._by_device.values()):
                    raise item.error
                self._refused[member.slot.place] += 1
                self._leave(member, f"{type(item.error).__name__}: {item.error}")
                break
            else:
                happened += self._translate(member, item)
        return happened

    def _translate(
        self, member: _Membership, item: ev.Event | Report | Question
    ) -> Iterator[ev.Event | Report | Question]:
        if isinstance(item, (Report, Question)):
            yield item
        elif isinstance(item, ev.DeviceChanged):
            yield replace(item, time=self.now(), device=member.device)
        elif not isinstance(item, ev.Tick):
            if isinstance(item, ev.LaneLost):
                self._by_lane.pop(item.lane, None)
            elif isinstance(item, ev.TrialEnded):
                self._by_trial.pop(item.trial, None)
            yield replace(item, time=self.now())

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        members, self._members = self._members, set()
        leaving = [member.actor.leave.remote() for member in members if member.device]
        with contextlib.suppress(Exception):
            self._ray.wait(leaving, num_returns=len(leaving), timeout=LEAVE_WITHIN)
        for member in members:
            with contextlib.suppress(Exception):
                self._ray.kill(member.actor)
        if self._is_ours:
            self._ray.shutdown()


def _counts(resources: dict[str, float]) -> str:
    return f"{resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs"


def _connect(cluster: str) -> tuple[Any, bool]:
    """Ray, connected; and whether it was not before."""
    try:
        import ray
    except ImportError as error:
        raise errors.DeviceError(
            f"cluster={cluster!r} needs Ray, which is not installed", hint="pip install 'cotune[ray]'"
        ) from error
    if ray.is_initialized():
        return ray, False
    try:
        _knock(cluster)
        ray.init(address=cluster, log_to_driver=False, logging_level=logging.ERROR)
    except (Exception, SystemExit) as error:
        raise errors.DeviceError(
            f"there is no Ray cluster at {cluster!r}: {str(error).partition(chr(10))[0]}",
            hint="start one with `ray start --head`, pass its address as cluster=, or leave cluster= out",
        ) from error
    return ray, True


def _knock(cluster: str) -> None:
    """Finds out at once if nobody listens at an address, for which Ray takes 80 s and then ends the process."""
    host, _, port = cluster.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), KNOCK_WITHIN).close()
