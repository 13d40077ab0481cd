"""The actors of a run on a Ray cluster: those requested, those that have joined, those that are lost."""

from __future__ import annotations

import collections
import contextlib
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cotune import errors
from cotune.engines.local_options import LocalOptions
from cotune.engines.ray_member import Claim, Joined, Member
from cotune.packer import events as ev
from cotune.paths import working_directory
from cotune.script.pickling import Packed

LOOK_EVERY = 5.0
# Seconds after which a request is made smaller; less than LOOK_EVERY.
SHRINK_AFTER = 4.0
# Seconds for actors to join where nodes first install a runtime environment for the job.
SET_UP_WITHIN = 600.0
_SET_UPS = ("pip", "uv", "conda", "image_uri", "container")
LEAVE_WITHIN = 5.0
MAX_LOST_IN_A_ROW = 3
# Most seconds before an actor is requested again on a node on which none has come up.
MOST_WAIT = 300.0

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Membership:
    """An actor, as the driver sees it.

    Attributes:
        claim: The resources it holds or has requested.
        actor: Its handle.
        hello: Future that is done as soon as Ray has placed the actor.
        asked: When the actor was requested, or when its node had installed the runtime environment, if later.
        device: Name of its device in the run, once it has joined.
        local: The device's name on its own machine.
        probe: Future that is done once the node has installed its runtime environment; None if it need not, or has.
        commands: Calls to send with the next batch.
    """

    claim: Claim
    actor: Any
    hello: Any
    asked: float
    device: str = ""
    local: str = ""
    probe: Any = None
    commands: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)


def _nothing() -> None: ...


@dataclass(frozen=True, slots=True)
class _Shunned:
    """How many claims of a place are not requested, until when, and how long that is."""

    until: float
    wait: float
    count: int = 0


class Roster:
    """Requests an actor on every GPU, or on every node where no GPUs are used.

    Args:
        ray: The module, connected.
        gpus: Number of GPUs; None for all, including those that come later; 0 for CPUs only.
        packed: The trainable.
        folder: Folder for logs, on storage that every node sees.
        options: How trials run.
        listen: Called with every requested member, to start listening to it.

    Attributes:
        on_gpus: Whether GPUs are used.
        members: Requested members that are not lost.
        by_device: Members that have joined, by the name of their device.
        refusal: The error of the last member whose body has failed (`Down`).
        sets_up: Whether nodes first install something for this job, which takes minutes and looks like a full node.
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
        # Where no actor comes up, as on a node that is drained.
        self._shunned: dict[tuple[int, str], _Shunned] = {}
        self._lost: list[str] = []
        # Losses of actors that never came up; those lost together count as one, by the time of the first.
        self._lost_in_a_row = 0
        self._lost_at = -math.inf
        self._look_due = 0.0
        asked = ray.get_runtime_context().runtime_env
        # Of a `working_dir` each node has a copy, in which Ray starts the actor.
        self._directory = "" if asked.get("working_dir") else working_directory()
        self.sets_up = any(asked.get(what) for what in _SET_UPS)

    # ---- asked for

    def look(self) -> None:
        """Requests, every few seconds, the actors still missing; Ray starts them once their resources are free."""
        now = time.monotonic()
        if now < self._look_due:
            return
        self._look_due = now + LOOK_EVERY
        self._make_do(now)
        held = self._refused + collections.Counter(member.claim.place for member in self.members)
        held.update({place: shunned.count for place, shunned in self._shunned.items() if now < shunned.until})
        for claim in self._wanted():
            if held[claim.place]:
                held[claim.place] -= 1
            else:
                self._invite(claim)

    def _make_do(self, now: float) -> None:
        """Halves late requests of nodes that others also use, or cuts them to the free cores if these are fewer.

        While no cores are free, requests stay as they are, since they may still get all they ask for.
        """
        absent = [member for member in self.members if not member.device and member.claim.cpus > 1]
        for member in absent:
            if member.probe is not None and self._ray.wait([member.probe], timeout=0)[0]:
                member.probe, member.asked = None, now
        late = [member for member in absent if member.probe is None and now - member.asked > SHRINK_AFTER]
        # The sum over all nodes: Ray has no public way to ask per node.
        free = int(self._ray.available_resources().get("CPU", 0)) if late else 0
        for member in late if free else []:
            if self._ray.wait([member.hello], timeout=0)[0]:
                # The actor is placed, and just slow to start.
                continue
            self.members.discard(member)
            self._ray.kill(member.actor)
            self._invite(replace(member.claim, cpus=min(member.claim.cpus // 2, free)))

    def warn_if_short(self) -> None:
        if missing := self.gpus_missing():
            there = self._gpus_there()
            log.warning(
                "gpus=%d, but the cluster has %d now: waiting for the others. Where they never come, pass gpus=%d",
                *(there + missing, there, there),
            )

    def gpus_missing(self) -> int:
        """How many of the requested GPUs the cluster does not have."""
        return max(0, (self._gpus or 0) - self._gpus_there())

    def _gpus_there(self) -> int:
        return int(self._ray.cluster_resources().get("GPU", 0))

    def _wanted(self) -> Iterator[Claim]:
        if self.on_gpus:
            yield from [Claim(gpus=1, cpus=1)] * (self._gpus_there() if self._gpus is None else self._gpus)
            return
        for node in self._ray.nodes():
            cpus = int(node["Resources"].get("CPU", 0))
            if node["Alive"] and cpus:
                yield Claim(0, cpus, int(node["Resources"].get("memory", 0)), node["NodeID"])

    def _invite(self, claim: Claim) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        where = NodeAffinitySchedulingStrategy(claim.node, soft=False) if claim.node else "SPREAD"
        how = {"num_gpus": claim.gpus, "num_cpus": claim.cpus, "scheduling_strategy": where}
        # One thread for each direction, so that commands arrive in order while a poll waits. Set on the methods, since
        # calls over ray:// cannot choose a concurrency group.
        self._ray.method(concurrency_group="tell")(Member.do)
        self._ray.method(concurrency_group="hear")(Member.poll)
        actor_class = self._ray.remote(concurrency_groups={"tell": 1, "hear": 1}, max_restarts=0, **how)(Member)
        actor = actor_class.remote(self._packed, claim, self._folder, self._options, self._directory)
        member = Membership(claim, actor, actor.do.remote([]), time.monotonic())
        if self.sets_up and claim.node:
            member.probe = self._ray.remote(num_cpus=0, scheduling_strategy=where)(_nothing).remote()
        self.members.add(member)
        self._listen(member)

    # ---- joined

    def joined(self, member: Membership, joined: Joined, now: float) -> ev.DeviceFound:
        """Notes that an actor is up; returns its device, with a name that is unique in the run."""
        self._lost_in_a_row = 0
        self._shunned.pop(member.claim.place, None)
        member.device = self._free_name(joined)
        member.local = joined.device.device
        self.by_device[member.device] = member
        return replace(joined.device, device=member.device, time=now)

    def _free_name(self, joined: Joined) -> str:
        """A unique device name: nodes may share an address, and a node may be back before its loss is reported."""
        address, _, label = joined.name.partition("/")
        names = itertools.chain([joined.name], (f"{address}#{n}/{label}" for n in itertools.count(2)))
        return next(name for name in names if name not in self.by_device and name not in self._lost)

    # ---- gone

    def refuse(self, member: Membership, error: BaseException) -> None:
        """Removes a member whose body has failed; its claim is not requested again.

        Raises:
            BaseException: Its error, if there is no other member, joined or requested.
        """
        self.refusal = error
        if not self.members - {member}:
            raise error
        self._refused[member.claim.place] += 1
        self._book_out(member, f"{type(error).__name__}: {error}")

    def leave(self, member: Membership, why: str) -> None:
        """Removes a member that is lost.

        Raises:
            RunError: None has come up too many times in a row, and none is left or on its way.
        """
        self._book_out(member, why)
        if not member.device:
            if member.asked > self._lost_at:
                # Actors requested on nodes that are gone, which Ray has not noticed yet, are lost together.
                self._lost_in_a_row += 1
                self._lost_at = time.monotonic()
            shunned = self._shunned.get(member.claim.place, _Shunned(0.0, LOOK_EVERY / 2))
            if member.asked >= shunned.until:
                # Those that are lost together wait together.
                wait = min(2 * shunned.wait, MOST_WAIT)
                shunned = _Shunned(time.monotonic() + wait, wait)
            self._shunned[member.claim.place] = replace(shunned, count=shunned.count + 1)
        if self._lost_in_a_row >= MAX_LOST_IN_A_ROW and not self.by_device and not self.members:
            raise errors.RunError(
                f"no actor came up {self._lost_in_a_row} times in a row, and none is left; the last: {why}",
                hint="see `ray status`; what has run is kept, resume=True goes on with it",
            )

    def _book_out(self, member: Membership, why: str) -> None:
        self.members.discard(member)
        self.by_device.pop(member.device, None)
        if member.device:
            self._lost.append(member.device)
        # The actor may be alive but out of reach.
        with contextlib.suppress(Exception):
            self._ray.kill(member.actor)
        named = f"node {member.claim.node}" if member.claim.node else "a node"
        log.warning("%s is lost: %s", member.device or f"{named} that had not joined yet", why)
        self._look_due = 0.0

    def losses(self, now: float) -> list[ev.DeviceLost]:
        """Devices lost since the last call."""
        lost, self._lost = self._lost, []
        return [ev.DeviceLost(now, device) for device in lost]

    def close(self) -> None:
        """Ends all lanes, then all actors."""
        members, self.members = self.members, set()
        try:
            # Over ray://, each call raises once the connection is lost.
            with contextlib.suppress(Exception):
                leaving = [member.actor.leave.remote() for member in members if member.device]
                self._ray.wait(leaving, num_returns=len(leaving), timeout=LEAVE_WITHIN)
        finally:
            # Also if a Ctrl-C ends the wait.
            for member in members:
                with contextlib.suppress(Exception):
                    self._ray.kill(member.actor)
