"""Devices of a Ray cluster: one placement group per GPU, or per node where no GPU is used.

Ray cannot reserve "GPU k of node n". A group reserves some GPU; the first actor in it reports which one, and every
further lane of that device must report the same. Groups are asked for as trials need them, so that an autoscaling
cluster grows, and given back when nothing runs in them.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cotune.demand import MIB
from cotune.engines.others import OthersOnGpu
from cotune.packer import events as ev
from cotune.ray_tune import _private
from cotune.ray_tune.growth import grow
from cotune.ray_tune.lane import lane_actor
from cotune.ray_tune.site import Site
from cotune.ray_tune.slot import ClusterOptions, Slot
from cotune.sharing import cuda
from cotune.sharing.devices import CPU_SHARE, MAX_WIDTH

LANE_SHARE = 0.01
IDLE_AFTER = 10.0
PLACE_WITHIN = 3.0
# Seconds for which Ray may count CPUs as in use after they were given back.
SETTLES_WITHIN = 0.5
RAY_PROCESS_GUESS = 256 * MIB
MAX_LANES = int(1 / LANE_SHARE) - 4

log = logging.getLogger(__name__)


class Slots:
    """The devices that were asked for.

    Attributes:
        all: Devices that are up or not yet up.
        useless: Devices that are kept reserved, so that Ray does not grant them again.
        uses_gpus: Whether devices are GPUs, not nodes.
    """

    # When this process last gave a device back, perhaps at the end of an earlier experiment.
    _given_back = -math.inf

    def __init__(self, options: ClusterOptions) -> None:
        self.all: list[Slot] = []
        self.useless: list[Slot] = []
        self._options = options
        self._named = 0
        self._actor = lane_actor(options.residents)
        self._nodes = alive_nodes()
        gpus = self._total("GPU")
        self.uses_gpus = gpus >= 1 or options.asks_gpu if options.gpus is None else options.gpus > 0
        if self.uses_gpus and options.gpus is None and gpus < 1:
            log.warning(
                "the trials ask for a GPU, and the cluster has none now: they wait until it has. "
                "Where it never will, pass gpus=0"
            )
        elif options.gpus and options.gpus > gpus:
            log.warning(
                "gpus=%d, but the cluster has %d now: trials for the others wait until it has more. "
                "Where it never will, pass gpus=%d",
                *(options.gpus, gpus, gpus),
            )

    @property
    def up(self) -> list[Slot]:
        return [slot for slot in self.all if slot.site is not None]

    @property
    def most(self) -> int:
        """Number of devices in the cluster now, including those in use by others."""
        if self.uses_gpus:
            return int(self._total("GPU"))
        return sum(1 for node in self._nodes if node["Resources"].get("CPU", 0) >= 1)

    def look(self) -> list[Slot]:
        """Updates the list of nodes; returns the devices whose node is gone."""
        self._nodes = alive_nodes()
        alive = {node["NodeID"] for node in self._nodes}
        anywhere = next(iter(alive), None)
        for slot in [slot for slot in self.useless if slot.site is not None and slot.site.node not in alive]:
            # Ray would move its group to another node.
            self.useless.remove(slot)
            _give_back(slot)
        return [slot for slot in self.all if (slot.place or anywhere) not in alive]

    def say_what_is_missing(self) -> None:
        """Warns if no placement group is placed: trials wait then, and Tune reports nothing."""
        states = [placement_group_table(slot.group).get("state") for slot in self.all]
        if states and all(state == "PENDING" for state in states):
            free, asked = ray.available_resources(), self.all[0].group.bundle_specs[0]
            log.warning(
                "no trial can start yet: lanes need %s on one node, and of the cluster's %g CPUs and %g GPUs %g and %g "
                "are free",
                " and ".join(f"{asked[kind]:g} {kind}" for kind in ("CPU", "GPU") if kind in asked),
                *(self._total("CPU"), self._total("GPU"), free.get("CPU", 0.0), free.get("GPU", 0.0)),
            )

    # ---- coming

    def reserve(self, trials: int) -> None:
        """Asks for devices, at most one per trial, on nodes that were there a second ago.

        A node that has no room stays asked for, and another is asked for as well.
        """
        if self.uses_gpus:
            # One is asked for even if the cluster has none yet, or an autoscaler would never add one.
            limit = self._options.gpus or max(1, self.most - len(self.useless))
            while len(self.all) < min(limit, trials):
                self._add_gpu()
        elif not any(slot.place is None for slot in self.all):
            self._reserve_nodes(trials)

    def _reserve_nodes(self, trials: int) -> None:
        able = [node for node in self._nodes if node["Resources"].get("CPU", 0) >= 1]
        taken = [slot.place for slot in [*self.all, *self.useless]]
        nodes = [node for node in able if node["NodeID"] not in taken]
        most = trials - len(self.all)
        if nodes and most < len(nodes):
            most += sum(1 for slot in self.all if self._has_no_place(slot))
        if nodes and most > 0:
            free = self._free_cpus(nodes)
            # Nodes with room first, that is with the most free CPUs.
            nodes.sort(key=lambda node: -free.get(node["NodeID"], 0.0))
            for node in nodes[:most]:
                self._add_node(node, free.get(node["NodeID"], 0.0))
        elif not able and most > 0:
            # As with GPUs: asks for what one trial needs, on whatever node will come.
            cores = max(1, math.ceil(self._options.cores))
            self._add({"CPU": float(cores)}, cores, 1.0, None)

    def grow(self, is_wanted: bool, now: float) -> list[ev.DeviceChanged]:
        """Once a second: takes CPUs that have become free on nodes that are up.

        Args:
            is_wanted: Whether a trial waits.
            now: The time.
        """
        if self.uses_gpus or self._options.lanes or not (is_wanted or any(slot.asked_more for slot in self.up)):
            return []
        free = _private.free_cpus() if is_wanted else {}
        nodes, grown = {node["NodeID"]: node for node in self._nodes}, []
        for slot in self.up:
            if (site := slot.site) is None or (node := nodes.get(site.node)) is None:
                continue
            spare = min(int(free.get(site.node, 0.0) + 1e-6), int(node["Resources"].get("CPU", 0.0)) - slot.cores)
            reserved = sum(bundle["CPU"] for group in slot.groups for bundle in group.bundle_specs)
            if grow(slot, spare, self._width, partial(self._bundle, node, slot.cores, reserved)):
                capacity = self._capacity(slot, site, site.free)
                grown.append(ev.DeviceChanged(now, slot.name, capacity, self._width(slot.cores)))
        return grown

    def _free_cpus(self, nodes: Iterable[Mapping[str, Any]]) -> dict[str, float]:
        """Free CPUs, by node; waits a moment for CPUs that were just given back."""
        all_of_them = {node["NodeID"]: node["Resources"]["CPU"] for node in nodes}
        free = _private.free_cpus()
        while time.monotonic() - Slots._given_back < SETTLES_WITHIN and any(
            free.get(node, 0.0) < count for node, count in all_of_them.items()
        ):
            time.sleep(0.01)
            free = _private.free_cpus()
        return free

    def _has_no_place(self, slot: Slot) -> bool:
        is_late = slot.site is None and time.monotonic() - slot.asked > PLACE_WITHIN
        return is_late and placement_group_table(slot.group).get("state") == "PENDING"

    def _add_gpu(self) -> None:
        nodes = [node["Resources"] for node in self._nodes if node["Resources"].get("GPU", 0) >= 1]
        cores = min((int(node.get("CPU", 0) // node["GPU"]) for node in nodes), default=0)
        most = max((node["GPU"] for node in nodes), default=1)
        # One CPU, as a trial on a GPU usually asks for: the GPU's whole share of CPUs may never be free.
        self._add({"GPU": 1.0} | ({"CPU": 1.0} if cores else {}), max(cores, 1), 1 / most, None)

    def _add_node(self, node: Mapping[str, Any], free: float) -> None:
        # Only free CPUs: others may use the rest for long.
        cores = max(1, int(free + 1e-6))
        mates = sum(1 for other in self._nodes if other["NodeManagerHostname"] == node["NodeManagerHostname"])
        self._add(self._bundle(node, 0, 0.0, cores), cores, 1 / mates, node["NodeID"])

    def _bundle(self, node: Mapping[str, Any], held: int, reserved: float, cores: int) -> dict[str, float]:
        """The bundle that lanes would ask for as Ray's actors; other CPUs are left for tasks that trials start on Ray.

        Args:
            node: The node.
            held: CPUs that lanes may use already.
            reserved: CPUs of these that are reserved in Ray.
            cores: Further CPUs for lanes.
        """
        wanted = min(float(held + cores), max(1.0, self._width(held + cores) * self._options.cores))
        bundle = {"CPU": max(LANE_SHARE, wanted - reserved)}
        address = f"node:{node['NodeManagerAddress']}"
        if sum(1 for other in self._nodes if other["NodeManagerAddress"] == node["NodeManagerAddress"]) == 1:
            bundle |= {address: 0.001} if address in node["Resources"] else {}
        return bundle

    def _add(self, bundle: Mapping[str, float], cores: int, share: float, node: str | None) -> None:
        group = placement_group([dict(bundle)], strategy="STRICT_PACK")
        slot = Slot(group, cores, share, node, asked=time.monotonic())
        self.all.append(slot)
        is_there = len(self.all) + len(self.useless) <= self._total("GPU") if self.uses_gpus else node is not None
        if not is_there:
            # For processes in an unplaced group, an autoscaler would report again and again that no node fits them.
            slot.placed = slot.group.ready()
        else:
            self.start(slot)

    def start(self, slot: Slot) -> None:
        """Starts a device's first processes."""
        slot.placed = None
        for _ in range(max(1, min(self._options.lanes or 1, self._width(slot.cores)))):
            actor = self._spawn(slot)
            slot.spares.append((actor, actor.site.remote()))

    def _spawn(self, slot: Slot) -> Any:
        strategy = PlacementGroupSchedulingStrategy(slot.group, placement_group_bundle_index=0)
        resources = {"num_gpus": LANE_SHARE, "num_cpus": 0} if self.uses_gpus else {"num_cpus": LANE_SHARE}
        return self._actor.options(**resources, scheduling_strategy=strategy).remote(
            dict(self._options.environment), list(self._options.modules)
        )

    def _width(self, cores: int) -> int:
        most = int(cores / self._options.cores) if self._options.cores else cores
        return max(1, min(most, self._options.lanes or MAX_LANES, self._options.trials or MAX_LANES))

    def _total(self, resource: str) -> float:
        return float(sum(node["Resources"].get(resource, 0.0) for node in self._nodes))

    # ---- up

    def came_up(self, slot: Slot, answer: Any, now: float) -> ev.DeviceFound:
        """Takes in where the first process of a device runs; returns the event of the new device.

        Raises:
            RayError: The process has died instead.
        """
        slot.site = site = ray.get(answer)
        slot.spares.sort(key=lambda spare: spare[1] != answer)
        self._named += 1
        kind = "gpu" if site.accelerators else "cpu"
        slot.name = f"{kind}:{site.uuid or self._named - 1}@{site.node[:8]}"
        capacity = self._capacity(slot, site, site.free)
        if site.uuid:
            slot.others = OthersOnGpu(site.total, capacity, lambda free: self._capacity(slot, site, free))
        width = min(self._width(slot.cores), MAX_WIDTH) if site.uuid else self._width(slot.cores)
        context = cuda.CONTEXT_GUESS + cuda.ROUNDING if site.uuid else RAY_PROCESS_GUESS
        return ev.DeviceFound(now, slot.name, capacity, context, width)

    def _capacity(self, slot: Slot, site: Site, free: int) -> int:
        """Bytes that lanes may use on a device of which others leave `free` bytes."""
        margin = self._options.margin
        if site.uuid:
            return max(0, int(free * (1 - (margin or 0.0))) - cuda.RESERVE)
        # If several nodes are on one machine, each may have been started with its own part of the memory.
        given = next((node["Resources"].get("memory") for node in self._nodes if node["NodeID"] == site.node), None)
        part = math.inf if given is None else given * (slot.share if self.uses_gpus else 1.0)
        return int(min(free * slot.share * (CPU_SHARE if margin is None else 1 - margin), part))

    def process(self, slot: Slot) -> Any:
        """A process for a new lane: a spare one, or else a new one."""
        return slot.spares.pop(0)[0] if slot.spares else self._spawn(slot)

    # ---- going

    def idle(self, busy: Iterable[str], now: float) -> list[Slot]:
        """Devices that have been idle for `IDLE_AFTER` seconds, but never all devices.

        Args:
            busy: Names of the devices on which a trial runs.
            now: The time.
        """
        in_use, found = set(busy), []
        for slot in self.up:
            if slot.name in in_use:
                slot.idle_since = None
            elif slot.idle_since is None:
                slot.idle_since = now
            elif now - slot.idle_since > IDLE_AFTER:
                found.append(slot)
        return found[: len(self.up) - 1]

    def drop(self, slot: Slot, is_useless: bool = False) -> None:
        """Gives a device back, or sets it aside as useless; kills its processes that are not lanes."""
        self.all.remove(slot)
        for actor, _ in slot.spares:
            kill(actor)
        if is_useless:
            self.useless.append(slot)
        else:
            _give_back(slot)
            Slots._given_back = time.monotonic()

    def close(self) -> None:
        """Gives back the devices that were set aside."""
        for slot in self.useless:
            _give_back(slot)
        self.useless.clear()


def _give_back(slot: Slot) -> None:
    for group in slot.groups:
        remove_placement_group(group)


def alive_nodes() -> list[dict[str, Any]]:
    """Ray's nodes that are alive; asks the control store."""
    return [node for node in ray.nodes() if node["Alive"]]


def kill(actor: Any) -> None:
    """Kills an actor, if it exists."""
    try:
        ray.kill(actor)
    except (RayError, ValueError) as error:
        log.debug("not killed: %s", error)
