"""A Ray cluster as a body: one placement group per GPU (or per node without one), lanes as actors inside it.

There is no "GPU k of node n" in Ray. A group reserves some GPU; the first actor in it says which one that has become,
and every further lane of that device must say the same. Groups are asked for as trials need them, so that a cluster
that grows is made to, and given back when nothing runs in them.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cotune import errors
from cotune.demand import MIB
from cotune.engines.frames import event_of
from cotune.packer import events as ev
from cotune.packer import instructions as do
from cotune.ray_tune.lane import Beat, Site, lane_actor
from cotune.sharing import cuda, wire
from cotune.sharing.devices import CPU_SHARE, GPU_MAX_WIDTH
from cotune.sharing.host import LaneOptions

LANE_SHARE = 0.01
QUANTUM = 0.05
QUIET_AFTER = 1.5
WATCH_EVERY = 1.0
IDLE_AFTER = 10.0
CAPACITY_STEP = 256 * MIB
CPU_CONTEXT_GUESS = 256 * MIB
MAX_STILLBORN = 5
MAX_LANES = int(1 / LANE_SHARE) - 4

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """How lanes are made.

    Attributes:
        gpus: GPUs to use at most; None for all the cluster has, 0 for none.
        cores: CPUs a trial asks for, which bounds how many lanes pay.
        margin: Share of a device's memory that is left alone; None for the usual.
        lanes: Lanes per device if that is fixed; as many are started ahead.
        residents: Trials that may share a lane.
        environment: For the lanes' processes.
        modules: To be imported ahead.
    """

    gpus: int | None
    cores: float
    margin: float | None
    lanes: int | None
    residents: int
    environment: Mapping[str, str]
    modules: Sequence[str]


@dataclass(eq=False)
class Slot:
    """A placement group and what has become of it.

    Attributes:
        group: The placement group.
        cores: CPUs in it.
        share: Part of its node's memory that is its own, where memory is what it has.
        node: The node it was meant for, if any.
        name: The device's, once it is up.
        site: Where it is, once it is up.
        spares: Processes that are no lanes yet, and their answers to `site()`.
        lanes: The lanes.
        idle_since: When nothing ran here any more.
    """

    group: Any
    cores: int
    share: float
    node: str | None
    name: str = ""
    site: Site | None = None
    capacity: int = 0
    spares: list[tuple[Any, Any]] = field(default_factory=list)
    lanes: dict[int, LaneHandle] = field(default_factory=dict)
    idle_since: float | None = None


@dataclass(eq=False)
class LaneHandle:
    """The driver's side of a lane.

    Attributes:
        lane: Its number in the brain.
        actor: Its process.
        slot: Its device.
        news: The call of `beat()` under way.
        opening: The call of `open()`, until it is answered.
        last: The last beat, and when it came.
        calls: The last call of each trial in it; a lane is closed when these are answered.
        leaving: It is to be closed.
        trainables: Numbers of the pickled classes it has.
        pid: Its process, once that has opened.
        unheard: Calls of trials that were stopped: whatever they raise is nobody's concern any more.
    """

    lane: int
    actor: Any
    slot: Slot
    news: Any
    opening: Any
    last: Beat | None = None
    last_at: float = 0.0
    ready: bool = False
    calls: dict[int, Any] = field(default_factory=dict)
    leaving: bool = False
    trainables: set[int] = field(default_factory=set)
    pid: int | None = None
    unheard: list[Any] = field(default_factory=list)


class Cluster:
    """Lanes on the devices of a Ray cluster. Not for more than one thread."""

    def __init__(self, options: ClusterOptions) -> None:
        self._options = options
        self._slots: list[Slot] = []
        self._lanes: dict[int, LaneHandle] = {}
        self._named = 0
        self._stillborn = 0
        self._watch_due = 0.0
        self._pending: list[ev.Event] = []
        self._lost: list[str] = []
        self._actor = lane_actor(options.residents)
        self._nodes = _nodes()
        gpus = self._total("GPU")
        self.uses_gpus = gpus >= 1 if options.gpus is None else options.gpus > 0
        if options.gpus and options.gpus > gpus:
            log.warning(
                "gpus=%d, but the cluster has %d now: trials for the others wait until it has more. "
                "Where it never will, pass gpus=%d",
                *(options.gpus, gpus, gpus),
            )

    @property
    def devices(self) -> list[Slot]:
        return [slot for slot in self._slots if slot.site is not None]

    @property
    def is_watch_due(self) -> bool:
        return self.now() >= self._watch_due

    def lane(self, number: int) -> LaneHandle | None:
        return self._lanes.get(number)

    # ---- devices come and go

    def reserve(self, trials: int) -> None:
        """Asks for devices, one a trial at most, on nodes that were there a second ago."""
        if self.uses_gpus:
            limit = self._options.gpus or int(self._total("GPU"))
            while len(self._slots) < min(limit, trials):
                self._add_gpu()
        else:
            taken = [slot.site.node if slot.site else slot.node for slot in self._slots]
            for node in self._nodes:
                if len(self._slots) < trials and node["NodeID"] not in taken and node["Resources"].get("CPU", 0) >= 1:
                    self._add_node(node)

    def _add_gpu(self) -> None:
        nodes = [node["Resources"] for node in self._nodes if node["Resources"].get("GPU", 0) >= 1]
        cores = min((int(node.get("CPU", 0) // node["GPU"]) for node in nodes), default=0)
        most = max((node["GPU"] for node in nodes), default=1)
        # One CPU, as any trial on a GPU would ask for: all of the GPU's part may never be free.
        self._add({"GPU": 1.0} | ({"CPU": 1.0} if cores else {}), max(cores, 1), 1 / most, None)

    def _add_node(self, node: Mapping[str, Any]) -> None:
        nodes, cpus = self._nodes, max(self._total("CPU"), 1.0)
        # Others may use a part of the CPUs for long.
        free = ray.available_resources().get("CPU", 0.0) / cpus
        held = sum(slot.cores for slot in self._slots) / cpus
        cores = max(1, int(node["Resources"]["CPU"] * min(1.0, free + held) + 1e-6))
        bundle = {"CPU": float(cores)}
        address = f"node:{node['NodeManagerAddress']}"
        if sum(1 for other in nodes if other["NodeManagerAddress"] == node["NodeManagerAddress"]) == 1:
            bundle |= {address: 0.001} if address in node["Resources"] else {}
        mates = sum(1 for other in nodes if other["NodeManagerHostname"] == node["NodeManagerHostname"])
        self._add(bundle, cores, 1 / mates, node["NodeID"])

    def _add(self, bundle: Mapping[str, float], cores: int, share: float, node: str | None) -> None:
        slot = Slot(placement_group([dict(bundle)], strategy="STRICT_PACK"), cores, share, node)
        for _ in range(max(1, min(self._options.lanes or 1, self._width(cores)))):
            actor = self._spawn(slot)
            slot.spares.append((actor, actor.site.remote()))
        self._slots.append(slot)

    def _spawn(self, slot: Slot) -> Any:
        strategy = PlacementGroupSchedulingStrategy(slot.group, placement_group_bundle_index=0)
        resources = {"num_gpus": LANE_SHARE, "num_cpus": 0} if self.uses_gpus else {"num_cpus": LANE_SHARE}
        return self._actor.options(**resources, scheduling_strategy=strategy).remote(
            dict(self._options.environment), list(self._options.modules)
        )

    def _width(self, cores: int) -> int:
        most = int(cores / self._options.cores) if self._options.cores else cores
        return max(1, min(most, self._options.lanes or MAX_LANES))

    def _total(self, resource: str) -> float:
        return float(sum(node["Resources"].get(resource, 0.0) for node in self._nodes))

    def _is_up(self, slot: Slot, site: Site) -> None:
        slot.site = site
        self._named += 1
        kind = "gpu" if site.accelerators else "cpu"
        slot.name = f"{kind}:{site.uuid or self._named - 1}@{site.node[:8]}"
        slot.capacity = self._capacity(slot, site.free)
        width = min(self._width(slot.cores), GPU_MAX_WIDTH) if site.uuid else self._width(slot.cores)
        context = cuda.CONTEXT_GUESS + cuda.ROUNDING if site.uuid else CPU_CONTEXT_GUESS
        self._pending.append(ev.DeviceFound(self.now(), slot.name, slot.capacity, context, width))

    def _capacity(self, slot: Slot, free: int) -> int:
        margin = self._options.margin
        if slot.site is not None and slot.site.uuid:
            return max(0, int(free * (1 - (margin or 0.0))) - cuda.RESERVE)
        return int(free * slot.share * (CPU_SHARE if margin is None else 1 - margin))

    def release_idle(self, busy: Iterable[str]) -> None:
        """Gives back devices on which nothing has run for a while, all but one."""
        now, in_use = self.now(), set(busy)
        for slot in self.devices:
            if slot.name in in_use:
                slot.idle_since = None
            elif slot.idle_since is None:
                slot.idle_since = now
            elif now - slot.idle_since > IDLE_AFTER and len(self._slots) > 1:
                self._drop(slot)

    def _drop(self, slot: Slot) -> None:
        """Lets a device go, with all that runs there."""
        self._slots.remove(slot)
        for lane in slot.lanes.values():
            self._lanes.pop(lane.lane, None)
            _look_away([*lane.unheard, *lane.calls.values()])
            _kill(lane.actor)
        for actor, _ in slot.spares:
            _kill(actor)
        remove_placement_group(slot.group)
        if slot.site is not None:
            self._lost.append(slot.name)

    # ---- instructions

    def execute(self, instruction: do.Instruction) -> None:
        """Carries out what is about lanes; what is about trials is not for us."""
        if isinstance(instruction, do.OpenLane):
            self._open(instruction)
        elif isinstance(instruction, do.ResizeLane):
            if instruction.lane in self._lanes:
                self._lanes[instruction.lane].actor.resize.remote(instruction.quota)
        elif isinstance(instruction, do.CloseLane) and instruction.lane in self._lanes:
            lane = self._lanes[instruction.lane]
            lane.leaving = True
            if instruction.kill:
                lane.calls.clear()
            self._leave(lane)

    def _leave(self, lane: LaneHandle) -> None:
        """Closes a lane once what Tune has asked there is answered: a result may be on its way."""
        calls = list(lane.calls.values())
        if not calls or len(ray.wait(calls, num_returns=len(calls), timeout=0)[0]) == len(calls):
            _kill(lane.actor)

    def _open(self, instruction: do.OpenLane) -> None:
        slot = next((slot for slot in self.devices if slot.name == instruction.device), None)
        if slot is None or slot.site is None:
            return
        actor = slot.spares.pop(0)[0] if slot.spares else self._spawn(slot)
        options = LaneOptions(
            lane=instruction.lane,
            uuid=slot.site.uuid,
            cores=slot.cores,
            quota=instruction.quota,
            threads=max(1, int(self._options.cores)),
            quantum=QUANTUM,
            seats=self._options.residents,
            lockstep=False,
            judged=True,
            metric="",
            log=Path(),
        )
        lane = LaneHandle(instruction.lane, actor, slot, actor.beat.remote(), actor.open.remote(options))
        lane.last_at = self.now()
        self._lanes[lane.lane] = slot.lanes[lane.lane] = lane

    # ---- events

    def now(self) -> float:
        return time.monotonic()

    def futures(self) -> list[Any]:
        """What is worth waking up for."""
        found = [lane.news for lane in self._lanes.values()]
        found += [lane.opening for lane in self._lanes.values() if lane.opening is not None]
        found += [ref for slot in self._slots if slot.site is None for _, ref in slot.spares[:1]]
        return found

    def poll(self) -> list[ev.Event]:
        """What happened; does not wait."""
        futures = self.futures()
        ready = set(ray.wait(futures, num_returns=len(futures), timeout=0)[0]) if futures else set()
        for slot in list(self._slots):
            if slot.site is None and slot.spares and slot.spares[0][1] in ready:
                self._hear_site(slot)
        for lane in list(self._lanes.values()):
            if lane.opening in ready:
                self._hear_opening(lane)
            if lane.news in ready and lane.lane in self._lanes:
                self._hear_beat(lane)
            if lane.leaving:
                self._leave(lane)
            lane.unheard = _look_away(lane.unheard)
        if self.is_watch_due:
            self._watch()
        happened, self._pending = self._pending, []
        if self._lost and self.devices:
            # Not before there is another: without any device the brain would give up.
            happened += [ev.DeviceLost(self.now(), device) for device in self._lost]
            self._lost = []
        return happened

    def _hear_site(self, slot: Slot) -> None:
        try:
            self._is_up(slot, ray.get(slot.spares[0][1]))
        except RayError as error:
            self._drop(slot)
            self._count_stillborn(str(error))

    def _hear_opening(self, lane: LaneHandle) -> None:
        opening, lane.opening = lane.opening, None
        try:
            site = ray.get(opening)
        except RayActorError:
            # The beat has died of the same, and says so.
            return
        except RayError as error:
            _kill(lane.actor)
            self._count_stillborn(str(error))
            return
        lane.pid = site.pid
        if lane.slot.site is not None and site.place != lane.slot.site.place:
            log.error("lane %d of %s is at %s: closed", lane.lane, lane.slot.name, site.place)
            _kill(lane.actor)
            self._count_stillborn(f"Ray has put a process for {lane.slot.name} on {site.place}")

    def _count_stillborn(self, detail: str) -> None:
        self._stillborn += 1
        if self._stillborn >= MAX_STILLBORN:
            raise errors.RunError(
                f"{MAX_STILLBORN} lanes in a row died before they were up: {detail}",
                hint="importing what the trainable uses must work on every node, and cotune be installed there",
            )

    def _hear_beat(self, lane: LaneHandle) -> None:
        try:
            beat: Beat = ray.get(lane.news, timeout=0)
        except GetTimeoutError:
            return
        except RayError as error:
            self._lane_gone(lane, error)
            return
        lane.news = lane.actor.beat.remote()
        lane.last, lane.last_at = beat, self.now()
        for frame in beat.frames:
            event = event_of(*wire.decode(frame), lane.lane, lane.last_at)
            if isinstance(event, ev.LaneReady):
                lane.ready, self._stillborn = True, 0
            self._pending.append(event)
        if beat.quiet > QUIET_AFTER:
            self._pending.append(ev.LaneQuiet(self.now(), lane.lane, beat.holder, beat.quiet))

    def _lane_gone(self, lane: LaneHandle, error: RayError) -> None:
        slot = lane.slot
        if slot.site is not None and slot.site.node not in {node["NodeID"] for node in _nodes()}:
            self._drop(slot)
            return
        self._lanes.pop(lane.lane, None)
        slot.lanes.pop(lane.lane, None)
        # It may only be out of reach.
        _kill(lane.actor)
        holder = lane.last.holder if lane.last else None
        self._pending.append(ev.LaneLost(self.now(), lane.lane, holder, _first_line(error)))
        if not lane.ready:
            self._count_stillborn(_first_line(error))

    def _watch(self) -> None:
        """Once a second: nodes that are gone, lanes that say nothing, what others do to our GPUs."""
        now = self.now()
        self._watch_due = now + WATCH_EVERY
        self._nodes = _nodes()
        alive = {node["NodeID"] for node in self._nodes}
        for slot in list(self._slots):
            if (slot.site.node if slot.site else slot.node or next(iter(alive), None)) not in alive:
                self._drop(slot)
            elif slot.site is not None and slot.site.uuid:
                self._watch_others(slot)
        for lane in self._lanes.values():
            silent = now - lane.last_at
            if lane.ready and silent > 3 * WATCH_EVERY:
                # Native code holds the interpreter: the last to have had the turn has it still.
                holder = lane.last.holder if lane.last else None
                self._pending.append(ev.LaneQuiet(now, lane.lane, holder, silent))
        self._pending.append(ev.Tick(now))

    def _watch_others(self, slot: Slot) -> None:
        """What others leave us of a GPU: the bytes in use that our lanes do not report are theirs."""
        beats = [lane.last for lane in slot.lanes.values() if lane.ready]
        known = [beat for beat in beats if beat is not None and beat.used is not None and beat.quiet < WATCH_EVERY]
        if not known or len(known) < len(slot.lanes) or slot.site is None:
            return
        others = max(0, max(beat.used or 0 for beat in known) - sum(beat.held for beat in known))
        capacity = self._capacity(slot, slot.site.total - others)
        if abs(capacity - slot.capacity) >= CAPACITY_STEP:
            slot.capacity = capacity
            self._pending.append(ev.DeviceChanged(self.now(), slot.name, capacity))

    def close(self) -> None:
        """Ends every lane and gives everything back."""
        if ray.is_initialized():
            for slot in list(self._slots):
                self._drop(slot)
        self._slots.clear()
        self._lanes.clear()
        self._pending.clear()


def _nodes() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _kill(actor: Any) -> None:
    try:
        ray.kill(actor)
    except (RayError, ValueError) as error:
        log.debug("not killed: %s", error)


def _look_away(calls: list[Any]) -> list[Any]:
    """Takes the answers that are there, or Ray would print the errors among them; gives the calls still under way."""
    done, others = ray.wait(calls, num_returns=len(calls), timeout=0) if calls else ([], [])
    for answer in done:
        with contextlib.suppress(Exception):
            ray.get(answer)
    return list(others)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
