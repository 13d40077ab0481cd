"""Devices of a cluster and the lanes on them, without Ray."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

ray = pytest.importorskip("ray")

from ray.exceptions import ActorDiedError, RaySystemError, RayTaskError

from cotune.demand import GIB
from cotune.engines.others import SETTLE, OthersOnGpu
from cotune.errors import RunError
from cotune.packer import DeviceLost, LaneLost
from cotune.ray_tune import cluster as module
from cotune.ray_tune import slots as slots_module
from cotune.ray_tune.actor_lane import ActorLane
from cotune.ray_tune.cluster import Cluster
from cotune.ray_tune.lane import Beat
from cotune.ray_tune.slot import Slot
from cotune.ray_tune.slots import Slots
from cotune.sharing.inside.ending import Ending
from cotune.sharing.wire import Kind, encode_object
from cotune.trial import Outcome


@pytest.fixture
def gpu():
    """A GPU of 16 GiB with two lanes, of which no figure is in doubt; `look` is what a second passing does."""
    cluster = object.__new__(Cluster)
    cluster._pending = []
    slot = Slot(None, 4, 1.0, None, "gpu:0", others=OthersOnGpu(16 * GIB, 16 * GIB, lambda free: free))

    def look(*beats):
        cluster._lanes = {
            n: ActorLane(
                n, None, slot, None, None,
                last=beat, last_at=0.0 if beat == SILENT else cluster.now(), ready=beat is not None,
            )
            for n, beat in enumerate(beats)
        }  # fmt: skip
        cluster._watch_others(slot, slot.others)
        told, cluster._pending = [event.capacity for event in cluster._pending], []
        return told

    for _ in range(SETTLE):
        look(beat(0, 0), beat(0, 0))
    return look


def beat(held, used):
    return Beat([], None, 3.0, held, used)


SILENT = beat(GIB + 1, 7 * GIB)


def test_what_no_lane_holds_is_taken_by_others(gpu):
    # Beats are not of the same moment: the largest figure is the careful one.
    told = [gpu(beat(2 * GIB, 6 * GIB), beat(GIB, 7 * GIB)) for _ in range(2)]
    assert told == [[], [12 * GIB]], "two looks must agree"
    assert gpu(beat(2 * GIB, 6 * GIB), beat(GIB, 7 * GIB)) == []


@pytest.mark.parametrize("other", [None, beat(GIB, None), SILENT])
def test_nothing_is_concluded_beside_a_lane_whose_figure_is_not_known(gpu, other):
    assert gpu(beat(GIB, 7 * GIB), other) == []
    assert gpu(beat(GIB, 7 * GIB), beat(GIB, 7 * GIB)) == [], "nor at once when it is"


def test_nothing_is_concluded_where_no_lane_tells(gpu):
    assert gpu() == []


@pytest.mark.parametrize(("needed", "told"), [(GIB, [12 * GIB]), (4 * GIB, []), (None, [])])
def test_what_others_have_taken_is_told_ahead_of_a_trial_that_was_refused_what_its_lane_may_hold(
    monkeypatch, needed, told
):
    cluster = object.__new__(Cluster)
    slot = Slot(None, 4, 1.0, None, "gpu:0", others=OthersOnGpu(16 * GIB, 16 * GIB, lambda free: free))
    cluster._pending = []
    cluster._lanes = {
        n: ActorLane(n, Mock(), slot, "beat", None, last=beat(n * GIB, 6 * GIB), ready=True, quota=4 * GIB)
        for n in (1, 2)
    }
    ended = encode_object(Kind.ENDED, (7, *Ending(Outcome.OUT_OF_MEMORY, needed)))
    monkeypatch.setattr(module.ray, "get", lambda answer, timeout: Beat([ended], None, 0.0, GIB, 7 * GIB))
    cluster._hear_beat(cluster._lanes[1])
    *changes, end = cluster._pending
    assert [event.capacity for event in changes] == told
    assert (end.trial, end.outcome) == (7, Outcome.OUT_OF_MEMORY)


def test_a_device_on_which_no_lane_comes_up_is_set_aside_unless_it_is_the_last(monkeypatch, caplog):
    given_back = []
    monkeypatch.setattr(slots_module, "remove_placement_group", given_back.append)
    cluster, slots = object.__new__(Cluster), object.__new__(Slots)
    broken, sound = (Slot(name, 4, 1.0, None, name, site=SimpleNamespace(node="node")) for name in ("gpu:0", "gpu:1"))
    slots.all, slots.useless, slots.uses_gpus, slots._nodes = [broken, sound], [], True, [{"Resources": {"GPU": 2.0}}]
    cluster._slots, cluster._lanes, cluster._pending = slots, {}, []
    cluster._lanes[0] = ActorLane(0, None, broken, None, None, ready=True)
    for _ in range(7):
        cluster._lane_stillborn(broken, "no room beside the one that is up")
    assert slots.up == [broken, sound]
    cluster._lanes.clear()
    for _ in range(7):
        cluster._lane_stillborn(broken, "no CUDA-capable device is detected")
    assert (slots.up, slots.useless) == ([sound], [broken])
    assert [(type(event), event.device) for event in cluster._pending] == [(DeviceLost, "gpu:0")]
    assert "gpu:0 is given up: 5 lanes in a row died before they were up: no CUDA-capable device" in caplog.text
    for _ in range(4):
        cluster._lane_stillborn(sound, "no room")
    with pytest.raises(RunError, match="5 lanes in a row died before they were up: no room"):
        cluster._lane_stillborn(sound, "no room")
    assert given_back == [], "or Ray would give it to us again"
    slots.close()
    assert given_back == ["gpu:0"]


def test_a_lane_that_cannot_open_counts_once_and_says_why(monkeypatch):
    cluster, slots, said = object.__new__(Cluster), object.__new__(Slots), []
    slot = Slot(None, 4, 1.0, None, "gpu:0", site=SimpleNamespace(node="node"))
    lane = ActorLane(3, "actor", slot, "beat", "open")
    slots.all = [slot]
    cluster._slots, cluster._lanes, cluster._pending = slots, {3: lane}, []
    errors = {"open": RayTaskError("open", "Traceback ...", OSError("no device")), "beat": ActorDiedError()}

    def get(answer, timeout=None):
        raise errors[answer]

    monkeypatch.setattr(module.ray, "get", get)
    monkeypatch.setattr(module, "kill", lambda actor: None)
    monkeypatch.setattr(module, "alive_nodes", lambda: [{"NodeID": "node"}])
    slot.stillborn.another = said.append
    cluster._hear_opening(lane)
    cluster._hear_beat(lane)
    assert said == ["no device"]
    assert [(type(event), event.detail) for event in cluster._pending] == [(LaneLost, "no device")]


def test_a_lane_that_could_not_hear_of_a_quota_is_deaf(monkeypatch):
    def get(answers):
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer

    remote = SimpleNamespace(resize=SimpleNamespace(remote=lambda number, quota: quota))
    lane = ActorLane(3, remote, None, None, None)
    monkeypatch.setattr(ray, "wait", lambda calls, **_: (calls[:1], calls[1:]))
    monkeypatch.setattr(ray, "get", get)
    assert not lane.is_deaf()
    lane.resize(1000)
    cause = RaySystemError("System error", "MemoryError")
    lane.resize(RayTaskError("resize", "MemoryError", cause).as_instanceof_cause())
    assert [lane.is_deaf(), lane.is_deaf(), lane.is_deaf()] == [False, True, True]


@pytest.mark.parametrize(("lanes", "is_done", "waits"), [(1, True, False), (2, True, True), (2, False, False)])
def test_answers_wait_only_where_there_are_many_lanes(monkeypatch, lanes, is_done, waits):
    monkeypatch.setattr(module, "MANY", 2)
    monkeypatch.setattr(module.ray, "wait", lambda calls, **how: (calls[:1] if is_done else [], calls))
    cluster = object.__new__(Cluster)
    cluster._lanes = {n: SimpleNamespace(calls={n: "an answer"}) for n in range(lanes)}
    assert cluster.answers_wait() is waits
