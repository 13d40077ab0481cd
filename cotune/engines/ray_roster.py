"""The actors of a run on a Ray cluster: who is asked for, who has joined, who has left."""

from __future__ import annotations

import collections
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cotune import errors
from cotune.engines.local_options import LocalOptions
from cotune.engines.ray_member import Joined, Member, Slot
from cotune.packer import events as ev
from cotune.sharing.pickling import Packed

LOOK_EVERY = 5.0
# Less than from one look to the next.
SHRINK_AFTER = 4.0
# Where nodes have to install something for the job before anything of it starts.
SET_UP_WITHIN = 600.0
_SET_UPS = ("pip", "uv", "conda", "image_uri", "container")
LEAVE_WITHIN = 5.0
MAX_LOST_IN_A_ROW = 3

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Membership:
    """An actor, as the driver sees it.

    Attributes:
        slot: What it holds.
        actor: Its handle.
        device: The name of its device, once it has joined.
        local: The name it has there.
        hello: Answered as soon as it has its place.
        asked: When it was asked for, or its node had installed what it had to.
        probe: Answered when it has; None where it need not, or has.
        commands: What it is to be told next.
    """

    slot: Slot
    actor: Any
    hello: Any
    asked: float
    device: str = ""
    local: str = ""
    probe: Any = None
    commands: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)


def _nothing() -> None: ...


class Roster:
    """Asks for an actor on every GPU, or on every node where none is used.

    Args:
        ray: The module, connected.
        gpus: How many GPUs; None for all there are, also those that come later; 0 for CPUs only.
        packed: What the lanes run.
        folder: For logs, on storage that every node sees.
        options: How trials run.
        listen: Called with everyone who is asked for: it speaks first.

    Attributes:
        members: All that are asked for, and have not left.
        by_device: Those that have joined, by the name of their device.
        refusal: Why the last one could not go on that said so itself.
        sets_up: Nodes install something for this job first, which takes minutes and looks like a node that has no room.
    """

    def __init__(
        self,
        ray: Any,
        gpus: int | None,
        packed: Packed,
        folder: Path,
        options: LocalOptions,
        listen: Callable[[Membership], None],
    ) -> None:
        self.members: set[Membership] = set()
        self.by_device: dict[str, Membership] = {}
        self.refusal: BaseException | None = None
        self._ray = ray
        self._gpus = gpus
        self.on_gpus = gpus > 0 if gpus is not None else self._gpus_there() >= 1
        self._packed = ray.put(packed)
        self._folder = folder
        self._options = options
        self._listen = listen
        self._refused: collections.Counter[tuple[int, str]] = collections.Counter()
        self._lost: list[str] = []
        self._lost_in_a_row = 0
        self._look_due = 0.0
        asked = ray.get_runtime_context().runtime_env
        self.sets_up = any(asked.get(what) for what in _SET_UPS)

    # ---- asked for

    def look(self) -> None:
        """Now and then asks for an actor on everything that has none: what cannot be had now is had when it is free."""
        now = time.monotonic()
        if now < self._look_due:
            return
        self._look_due = now + LOOK_EVERY
        self._make_do(now)
        held = self._refused + collections.Counter(member.slot.place for member in self.members)
        for slot in self._wanted():
            if held[slot.place]:
                held[slot.place] -= 1
            else:
                self._invite(slot)

    def _make_do(self, now: float) -> None:
        """Asks for half as many cores of nodes that others use as well, or for what is left if that is less.

        Nodes that have nothing left stay asked for as they are: they may get all of it.
        """
        absent = [member for member in self.members if not member.device and member.slot.cpus > 1]
        for member in absent:
            if member.probe is not None and self._ray.wait([member.probe], timeout=0)[0]:
                member.probe, member.asked = None, now
        late = [member for member in absent if member.probe is None and now - member.asked > SHRINK_AFTER]
        # Of all nodes: which has how much free is not public.
        free = int(self._ray.available_resources().get("CPU", 0)) if late else 0
        for member in late if free else []:
            if self._ray.wait([member.hello], timeout=0)[0]:
                # It has its place, and takes its time.
                continue
            self.members.discard(member)
            self._ray.kill(member.actor)
            self._invite(replace(member.slot, cpus=min(member.slot.cpus // 2, free)))

    def warn_if_short(self) -> None:
        if missing := self.gpus_missing():
            there = self._gpus_there()
            log.warning(
                "gpus=%d, but the cluster has %d now: waiting for the others. Where they never come, pass gpus=%d",
                *(there + missing, there, there),
            )

    def gpus_missing(self) -> int:
        """How many the cluster would have to get to have as many as were asked for."""
        return max(0, (self._gpus or 0) - self._gpus_there())

    def _gpus_there(self) -> int:
        return int(self._ray.cluster_resources().get("GPU", 0))

    def _wanted(self) -> Iterator[Slot]:
        if self.on_gpus:
            yield from [Slot(gpus=1, cpus=1)] * (self._gpus_there() if self._gpus is None else self._gpus)
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
        actor = actor_class.remote(self._packed, slot, self._folder, self._options)
        member = Membership(slot, actor, actor.do.remote([]), time.monotonic())
        if self.sets_up and slot.node:
            member.probe = self._ray.remote(num_cpus=0, scheduling_strategy=where)(_nothing).remote()
        self.members.add(member)
        self._listen(member)

    # ---- joined

    def joined(self, member: Membership, joined: Joined, now: float) -> ev.DeviceFound:
        """An actor is up; gives its device, by a name of its own."""
        self._lost_in_a_row = 0
        member.device = self._free_name(joined)
        member.local = joined.device.device
        self.by_device[member.device] = member
        return replace(joined.device, device=member.device, time=now)

    def _free_name(self, joined: Joined) -> str:
        """Several nodes may have one address, and a node may be back before its loss is told."""
        address, _, label = joined.name.partition("/")
        names = itertools.chain([joined.name], (f"{address}#{n}/{label}" for n in itertools.count(2)))
        return next(name for name in names if name not in self.by_device and name not in self._lost)

    # ---- gone

    def refuse(self, member: Membership, error: BaseException) -> None:
        """Books out one that cannot go on; its place is not asked for again.

        Raises:
            BaseException: There is no other, joined or on its way.
        """
        self.refusal = error
        if not self.members - {member}:
            raise error
        self._refused[member.slot.place] += 1
        self._book_out(member, f"{type(error).__name__}: {error}")

    def leave(self, member: Membership, why: str) -> None:
        """Books out one that is gone.

        Raises:
            RunError: It is one too many.
        """
        self._book_out(member, why)
        self._lost_in_a_row += 1
        if self._lost_in_a_row >= MAX_LOST_IN_A_ROW and not self.by_device:
            raise errors.RunError(
                f"{self._lost_in_a_row} nodes in a row were lost, and none is left; the last: {why}",
                hint="see `ray status`; what has run is kept, resume=True goes on with it",
            )

    def _book_out(self, member: Membership, why: str) -> None:
        self.members.discard(member)
        self.by_device.pop(member.device, None)
        if member.device:
            self._lost.append(member.device)
        # It may only be out of reach.
        with contextlib.suppress(Exception):
            self._ray.kill(member.actor)
        named = f"node {member.slot.node}" if member.slot.node else "a node"
        log.warning("%s is lost: %s", member.device or f"{named} that had not joined yet", why)
        self._look_due = 0.0

    def losses(self, now: float) -> list[ev.DeviceLost]:
        """Devices that are gone; not before there is another, since without any the brain would give up."""
        if not self.by_device:
            return []
        lost, self._lost = self._lost, []
        return [ev.DeviceLost(now, device) for device in lost]

    def close(self) -> None:
        """Ends every actor, and every lane before."""
        members, self.members = self.members, set()
        leaving = [member.actor.leave.remote() for member in members if member.device]
        with contextlib.suppress(Exception):
            self._ray.wait(leaving, num_returns=len(leaving), timeout=LEAVE_WITHIN)
        for member in members:
            with contextlib.suppress(Exception):
                self._ray.kill(member.actor)
