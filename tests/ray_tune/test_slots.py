"""Devices of a cluster, without Ray."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

ray = pytest.importorskip("ray")

from cotune.demand import GIB
from cotune.packer import DeviceFound
from cotune.ray_tune import growth
from cotune.ray_tune import slots as module
from cotune.ray_tune.site import Site
from cotune.ray_tune.slot import ClusterOptions, Slot
from cotune.ray_tune.slots import Slots


def test_a_device_is_up_with_the_first_of_its_processes_which_is_its_first_lane(monkeypatch):
    slots = object.__new__(Slots)
    slots._options = ClusterOptions(0, False, 1.0, None, 2, None, 1, {}, [])
    slots.uses_gpus, slots._named, slots._nodes = False, 0, []
    site = Site("node", (), "", 8 * GIB, 8 * GIB, 17, "host", "10.0.0.1")
    monkeypatch.setattr(module.ray, "get", lambda answer: site)
    slot = Slot(None, 2, 1.0, None, spares=[("slow", "answer of slow"), ("quick", "answer of quick")])
    assert slot.news == ["answer of slow", "answer of quick"]
    assert isinstance(slots.came_up(slot, "answer of quick", 0.0), DeviceFound)
    assert slot.news == []
    assert [slots.process(slot) for _ in range(2)] == ["quick", "slow"]


@pytest.mark.parametrize(
    ("given", "on_gpus", "share", "capacity"),
    [
        (None, False, 1.0, 6 * GIB),
        (2 * GIB, False, 0.5, 2 * GIB),
        (2 * GIB, True, 0.5, GIB),
        (99 * GIB, False, 1.0, 6 * GIB),
    ],
)
def test_a_node_has_no_more_memory_than_ray_was_given_there(given, on_gpus, share, capacity):
    slots = object.__new__(Slots)
    slots._options = ClusterOptions(0, False, 1.0, None, 2, None, 1, {}, [])
    slots._options = replace(slots._options, margin=0.25)
    slots.uses_gpus = on_gpus
    slots._nodes = [{"NodeID": "node", "Resources": {} if given is None else {"memory": given}}]
    site = Site("node", (), "", 8 * GIB, 8 * GIB, 17, "host", "10.0.0.1")
    assert slots._capacity(Slot(None, 2, share, None), site, 8 * GIB) == capacity


@pytest.mark.parametrize(("state", "said"), [("PENDING", True), ("CREATED", False)])
def test_that_others_leave_no_room_for_lanes_is_said(state, said, monkeypatch, caplog):
    there = object.__new__(Slots)
    there.all = [Slot(SimpleNamespace(bundle_specs=[{"CPU": 1.0}]), 1, 1.0, None)]
    there._nodes = [{"Resources": {"CPU": 2.0}}]
    monkeypatch.setattr(module, "placement_group_table", lambda group: {"state": state})
    monkeypatch.setattr(ray, "available_resources", dict)
    there.say_what_is_missing()
    assert ("lanes need 1 CPU on one node, and of the cluster's 2 CPUs" in caplog.text) == said


def test_what_was_set_aside_on_a_node_that_is_gone_is_given_back_or_it_would_move_to_another(monkeypatch):
    given_back = []
    monkeypatch.setattr(module, "remove_placement_group", given_back.append)
    monkeypatch.setattr(module, "alive_nodes", lambda: [{"NodeID": "here"}])
    slots = object.__new__(Slots)
    here, gone = (Slot(f"on {node}", 1, 1.0, None, site=SimpleNamespace(node=node)) for node in ("here", "gone"))
    slots.all, slots.useless = [], [here, gone]
    assert slots.look() == []
    assert (slots.useless, given_back) == ([here], ["on gone"])


@dataclass(eq=False)
class Group:
    bundle_specs: list

    def ready(self):
        return self


@pytest.fixture
def cluster(monkeypatch):
    """Stands for Ray: nodes of four CPUs, of which so many are free, groups without a place, and the time."""
    cluster = SimpleNamespace(free={}, returning={}, placed=set(), time=0.0)

    def state(group):
        return {"state": "CREATED" if group in cluster.placed else "PENDING"}

    def slots(*names):
        made = object.__new__(Slots)
        made._options, made.uses_gpus = ClusterOptions(0, False, 1.0, None, None, None, 1, {}, []), False
        made._nodes = [
            {"NodeID": name, "NodeManagerAddress": name, "NodeManagerHostname": name, "Resources": {"CPU": 4.0}}
            for name in names
        ]
        made.all, made.useless = [], []
        return made

    monkeypatch.setattr(module, "placement_group", lambda bundles, strategy: Group(bundles))
    monkeypatch.setattr(module, "placement_group_table", state)

    def sleep(seconds):
        cluster.time += seconds
        cluster.free |= cluster.returning

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: cluster.time, sleep=sleep))
    monkeypatch.setattr(module, "remove_placement_group", lambda group: None)
    monkeypatch.setattr(Slots, "_given_back", -math.inf)
    monkeypatch.setattr(module._private, "free_cpus", lambda: cluster.free)
    monkeypatch.setattr(Slots, "start", lambda slots, slot: None)
    cluster.slots = slots
    return cluster


def test_cpus_of_what_was_set_aside_are_not_taken_for_those_of_others(cluster):
    cluster.free = {"sound": 4.0}
    slots = cluster.slots("broken", "sound")
    slots.useless = [Slot(SimpleNamespace(bundle_specs=[{"CPU": 4.0}]), 4, 1.0, "broken")]
    slots.reserve(9)
    assert [(slot.node, slot.cores) for slot in slots.all] == [("sound", 4)]


def test_of_a_node_no_more_is_taken_than_trials_can_use(cluster):
    cluster.free = {"a": 4.0}
    slots = cluster.slots("a")
    slots._options = replace(slots._options, trials=2)
    slots.reserve(1)
    assert slots.all[0].group.bundle_specs == [{"CPU": 2.0}]


def test_nodes_with_room_are_asked_first_and_for_what_is_free_there(cluster):
    cluster.free = {"busy": 0.5, "shared": 2.5, "free": 4.0}
    slots = cluster.slots("busy", "shared", "free")
    slots.reserve(2)
    assert [(slot.node, slot.cores) for slot in slots.all] == [("free", 4), ("shared", 2)]
    slots.reserve(3)
    assert [(slot.node, slot.cores) for slot in slots.all[2:]] == [("busy", 1)]


def test_where_no_node_has_a_cpu_what_one_trial_asks_for_is_asked_for_until_it_has_a_place(cluster):
    slots = cluster.slots()
    slots._options = replace(slots._options, cores=2.0)
    slots.reserve(5)
    (slot,) = slots.all
    assert (slot.group.bundle_specs, slot.cores, slot.node) == ([{"CPU": 2.0}], 2, None)
    cluster.free = {"new": 4.0, "newer": 4.0}
    slots._nodes = cluster.slots("new", "newer")._nodes
    slots.reserve(5)
    assert slots.all == [slot], "it may be on either of them"
    slot.site = SimpleNamespace(node="new")
    slots.reserve(5)
    assert [(slot.place, slot.cores) for slot in slots.all] == [("new", 2), ("newer", 4)]


@pytest.mark.parametrize(("each", "first", "then"), [(1.0, 3.0, 1.0), (2.0, 2.0, 2.0), (0.0, 1.0, 0.01)])
def test_of_cpus_that_others_leave_so_many_are_reserved_as_trials_ask_for(cluster, monkeypatch, each, first, then):
    cluster.free = {"a": 3.0}
    slots = cluster.slots("a")
    slots._options = replace(slots._options, cores=each, lanes=None)
    slots.reserve(1)
    (slot,) = slots.all
    assert slot.group.bundle_specs == [{"CPU": first}]
    slot.site = Site("a", (), "", 8 * GIB, 8 * GIB, 17, "host", "10.0.0.1")
    asked = []
    monkeypatch.setattr(growth, "placement_group", lambda bundles, strategy: asked.append(bundles))
    cluster.free = {"a": 4.0 - first}
    for _ in range(growth.STEADY):
        assert slots.grow(True, 0.0) == []
    assert asked == [[{"CPU": then}]]


@pytest.mark.parametrize(("returning", "cores"), [(4.0, 4), (0.0, 1)])
def test_what_the_experiment_before_has_just_given_back_is_waited_for_but_not_for_what_others_use(
    cluster, returning, cores
):
    cluster.free = {"a": 4.0}
    before = cluster.slots("a")
    before.reserve(1)
    cluster.free, cluster.returning = {"a": 0.0}, {"a": returning}
    before.drop(before.all[0])
    slots = cluster.slots("a")
    slots.reserve(1)
    assert slots.all[0].cores == cores
    assert cluster.time < module.SETTLES_WITHIN + 0.1


def test_a_node_on_which_others_leave_no_room_does_not_count_as_the_device_that_a_trial_waits_for(cluster):
    slots = cluster.slots("a", "b", "c")
    slots.reserve(1)
    assert [slot.node for slot in slots.all] == ["a"]
    cluster.time = module.PLACE_WITHIN
    slots.reserve(1)
    assert len(slots.all) == 1, "it may be placed any moment"
    cluster.time += 0.1
    slots.reserve(1)
    assert [slot.node for slot in slots.all] == ["a", "b"]
    cluster.placed.add(slots.all[1].group)
    cluster.time += module.PLACE_WITHIN + 0.1
    slots.reserve(1)
    assert len(slots.all) == 2, "it has its place, and its processes take their time"


def test_devices_without_a_place_are_no_reason_to_give_back_all_that_are_up(cluster):
    slots = cluster.slots("a", "b", "c")
    slots.reserve(3)
    for slot in slots.all[:2]:
        slot.name, slot.site = slot.node, SimpleNamespace(node=slot.node)
    assert slots.idle([], 0.0) == []
    assert [slot.name for slot in slots.idle([], module.IDLE_AFTER + 1)] == ["a"]
