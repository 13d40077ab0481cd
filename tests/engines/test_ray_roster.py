"""Who is asked for on a Ray cluster, without Ray."""

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from cotune.engines import ray_roster
from cotune.engines.local_options import LocalOptions
from cotune.engines.ray_roster import Membership, Roster
from cotune.errors import RunError, StorageError
from cotune.sharing.lane_options import TrialOptions


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(time=100.0)
    monkeypatch.setattr(ray_roster, "time", SimpleNamespace(monotonic=lambda: now.time))
    return now


@pytest.fixture
def cluster():
    """Stands for Ray: nodes and their cores, of which so many are free; nobody has a place yet."""
    cluster = SimpleNamespace(cores={}, free=0.0, killed=[])
    cluster.nodes = lambda: [
        {"NodeID": name, "Alive": True, "Resources": {"CPU": float(cores)}} for name, cores in cluster.cores.items()
    ]
    cluster.put, cluster.cluster_resources = lambda value: value, dict
    cluster.available_resources = lambda: {"CPU": cluster.free} if cluster.free else {}
    cluster.wait = lambda answers, timeout: ([], answers)
    cluster.kill = cluster.killed.append
    cluster.environment = {}
    cluster.get_runtime_context = lambda: SimpleNamespace(runtime_env=cluster.environment)
    return cluster


@pytest.fixture
def roster(cluster, clock, monkeypatch):
    def invite(roster, claim):
        roster.members.add(Membership(claim, f"actor on {claim.node}", None, clock.time))

    monkeypatch.setattr(Roster, "_invite", invite)
    return Roster(cluster, 0, None, Path(), LocalOptions(TrialOptions("loss")), lambda member: None)


def asked(roster):
    return {member.claim.node: member.claim.cpus for member in roster.members}


def join(roster, node):
    member = next(member for member in roster.members if member.claim.node == node)
    member.device = node
    roster.by_device[node] = member
    return member


@pytest.mark.parametrize(("free", "least"), [(7.0, 4), (3.5, 3), (0.5, 8)])
def test_of_a_node_that_others_use_as_well_less_is_asked_for_while_others_run(roster, cluster, clock, free, least):
    cluster.cores = {"small": 1, "shared": 8}
    roster.look()
    join(roster, "small")
    cluster.free = free
    roster.look()
    assert asked(roster) == {"small": 1, "shared": 8}, "it may be on its way"
    clock.time += ray_roster.LOOK_EVERY
    roster.look()
    assert asked(roster) == {"small": 1, "shared": least}
    assert cluster.killed == ["actor on shared"] * (least < 8)


def test_nodes_that_install_something_first_are_given_the_time(cluster, clock, request):
    cluster.cores, cluster.free, cluster.environment = {"shared": 8}, 7.0, {"pip": ["cotune"]}
    roster = request.getfixturevalue("roster")
    roster.look()
    (member,) = roster.members
    member.probe, installed = "probe", []
    cluster.wait = lambda answers, timeout: ([one for one in answers if one in installed], answers)
    clock.time += 300.0
    roster.look()
    assert (asked(roster), cluster.killed) == ({"shared": 8}, [])
    installed.append("probe")
    for expected in (8, 4):
        clock.time += ray_roster.LOOK_EVERY
        roster.look()
        assert asked(roster) == {"shared": expected}


def test_a_node_that_cannot_go_on_ends_the_run_only_if_there_is_no_other_joined_or_on_its_way(roster, cluster):
    cluster.cores = dict.fromkeys("abcde", 2)
    roster.look()
    for name in "abcd":
        member = next(member for member in roster.members if member.claim.node == name)
        roster.refuse(member, StorageError(f"node {name} does not see the run folder", hint=""))
    roster.look()
    assert asked(roster) == {"e": 2}, "the others are not asked for again"
    with pytest.raises(StorageError, match="node e"):
        roster.refuse(*roster.members, StorageError("node e does not see the run folder", hint=""))


def test_a_node_on_which_nothing_comes_up_is_asked_less_and_less_often_while_another_comes_up(roster, cluster, clock):
    cluster.cores = {"drained": 2, "fine": 2}
    asked_at = []
    for _ in range(60):
        roster.look()
        for member in [member for member in roster.members if member.claim.node == "drained"]:
            asked_at.append(clock.time)
            roster.leave(member, "the node is drained")
        clock.time += 1.0
    assert asked(roster) == {"fine": 2}
    assert [later - sooner for sooner, later in pairwise(asked_at)] == pytest.approx([5.0, 10.0, 20.0], abs=5.0)
    (member,) = roster.members
    with pytest.raises(RunError, match="no actor came up 4 times in a row, and none is left"):
        roster.leave(member, "it is gone, too")


def test_a_gpu_on_which_nothing_comes_up_is_asked_for_less_and_less_often(cluster, clock, request):
    cluster.cluster_resources = lambda: {"GPU": 2.0}
    request.getfixturevalue("roster")
    roster = Roster(cluster, 2, None, Path(), LocalOptions(TrialOptions("loss")), lambda member: None)
    roster.look()
    sound, *_ = roster.members
    sound.device = "sound"
    roster.by_device["sound"] = sound
    asked_at = []
    for _ in range(60):
        roster.look()
        for member in roster.members - {sound}:
            asked_at.append(clock.time)
            roster.leave(member, "its driver fails")
        clock.time += 1.0
    assert [later - sooner for sooner, later in pairwise(asked_at)] == pytest.approx([5.0, 10.0, 20.0], abs=5.0)


def test_gpus_that_come_are_asked_for_while_others_are_lost(cluster, clock, request):
    cluster.cluster_resources = lambda: {"GPU": 9.0}
    request.getfixturevalue("roster")
    roster = Roster(cluster, 1, None, Path(), LocalOptions(TrialOptions("loss")), lambda member: None)
    roster._gpus = None
    roster.look()
    sound, *others = roster.members
    sound.device = "sound"
    roster.by_device["sound"] = sound
    for member in others:
        roster.leave(member, "the node of all eight is gone before they are up")
    cluster.cluster_resources = lambda: {"GPU": 11.0}
    roster.look()
    assert len(roster.members) == 3, "two are new"
    clock.time += 2 * ray_roster.LOOK_EVERY
    roster.look()
    assert len(roster.members) == 11, "eight lost together wait no longer than one"


def test_a_run_whose_nodes_are_all_lost_at_once_waits_for_others(roster, cluster, clock):
    cluster.cores = dict.fromkeys("abcd", 2)
    roster.look()
    for name in "abcd":
        roster.leave(join(roster, name), "the machines are gone")
    # Ray has not noticed it yet.
    roster.look()
    clock.time += 1.0
    for member in list(roster.members):
        roster.leave(member, "its node is gone")
    cluster.cores = {"new": 2}
    clock.time += ray_roster.LOOK_EVERY
    roster.look()
    assert asked(roster) == {"new": 2}


def test_a_run_ends_where_actors_come_up_nowhere(roster, cluster, clock):
    def try_for_a_minute():
        for _ in range(60):
            roster.look()
            clock.time += 1.0
            for member in list(roster.members):
                roster.leave(member, "cotune is not installed there")

    cluster.cores = dict.fromkeys("abcd", 2)
    told = "no actor came up 3 times in a row, and none is left; the last: cotune is not installed there"
    with pytest.raises(RunError, match=told):
        try_for_a_minute()
    assert clock.time < 130.0


def test_the_last_device_that_is_lost_is_said_to_be(roster, cluster, clock):
    cluster.cores = {"only": 2}
    roster.look()
    roster.leave(join(roster, "only"), "the node is gone")
    assert [lost.device for lost in roster.losses(clock.time)] == ["only"]
    assert roster.losses(clock.time) == []


def test_a_lost_connection_does_not_keep_a_run_from_being_closed(roster, cluster):
    """Or that error would hide the one that ends the run."""

    def lost():
        raise ConnectionError("Client is shutting down.")

    cluster.cores = {"n1": 4, "n2": 4}
    roster.look()
    for node in cluster.cores:
        join(roster, node).actor = SimpleNamespace(leave=SimpleNamespace(remote=lost))
    roster.close()
    assert len(cluster.killed) == 2
    assert not roster.members
