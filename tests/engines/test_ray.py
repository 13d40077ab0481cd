"""The Ray engine on a real cluster of this machine."""

from concurrent.futures import Future
from queue import SimpleQueue
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from cotune.engines import ray as engine_module
from cotune.engines.local_options import LocalOptions
from cotune.engines.ray import RayEngine
from cotune.engines.ray_member import Down
from cotune.errors import RunError, StorageError
from cotune.packer import DeviceFound, TrialEnded
from cotune.script.pickling import pack
from cotune.sharing.lane_options import TrialOptions
from cotune.testing import EngineUnderTest, RealEngineConformance, behave
from cotune.trial import Outcome

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def started(in_ray, tmp_path_factory):
    """An engine on a cluster of one node, with this process in it."""
    in_ray.start(gpus=0)
    folder = tmp_path_factory.mktemp("engine")
    engine = RayEngine("auto", pack(behave), 0, folder, LocalOptions(TrialOptions("loss"), residents=2))
    with EngineUnderTest(engine, folder) as under_test:
        yield under_test


class TestRayEngine(RealEngineConformance):
    @pytest.fixture
    def engine(self, started, tmp_path):
        started.begin_anew(tmp_path)
        return started


def test_a_node_that_comes_while_the_start_waits_for_the_first_is_invited():
    members, by_device, found = [], {}, object.__new__(DeviceFound)
    come, waits = iter([[], [], ["late"]]), iter(range(5))
    engine = object.__new__(RayEngine)
    engine._roster = SimpleNamespace(
        members=members, by_device=by_device, warn_if_short=bool, gpus_missing=bool, sets_up=False
    )
    engine._roster.look = lambda: members.extend(next(come, []))

    def gather(timeout):
        next(waits)
        by_device.update(dict.fromkeys(members))
        return [found] * len(members)

    engine._gather = gather
    assert engine.start() == [found]


def test_gpus_that_never_come_are_waited_for_until_all_is_over():
    looks, engine = iter(range(3)), object.__new__(RayEngine)
    engine._roster = SimpleNamespace(
        members=[], by_device={}, warn_if_short=bool, gpus_missing=lambda: 1, sets_up=False, look=lambda: next(looks)
    )
    engine._gather = lambda timeout: []
    assert engine.start(lambda: next(looks) == 2) == []


def test_where_the_only_node_with_room_cannot_go_on_the_start_says_why(monkeypatch):
    monkeypatch.setattr(engine_module, "JOIN_WITHIN", -1.0)
    engine = object.__new__(RayEngine)
    engine._roster = SimpleNamespace(
        members=["busy"], by_device={}, refusal=StorageError("no folder", hint=""), sets_up=False
    )
    engine._roster.look = engine._roster.warn_if_short = engine._roster.gpus_missing = lambda: None
    with pytest.raises(StorageError, match="no folder"):
        engine.start()


def test_what_the_last_node_has_said_counts_before_its_failure_ends_the_run():
    def refuse(member, error):
        raise error

    member, answer, ended = SimpleNamespace(), Future(), TrialEnded(0.0, 3, Outcome.DONE)
    answer.set_result([ended, Down(RunError("no lane comes up", hint=""))])
    engine = object.__new__(RayEngine)
    engine._roster = SimpleNamespace(members=[member], refuse=refuse)
    engine._by_lane, engine._by_trial, engine._failure, engine._listen = {}, {}, None, lambda member: None
    engine._arrived = SimpleQueue()
    engine._arrived.put((member, answer))
    assert [(event.trial, event.outcome) for event in engine._gather(0)] == [(3, Outcome.DONE)]
    with pytest.raises(RunError, match="no lane comes up"):
        engine._gather(0)


@pytest.mark.parametrize("calls", ["_listen", "_flush"])
def test_what_nodes_have_said_counts_before_a_lost_connection_ends_the_run(calls):
    members, engine = ["one node", "another"], object.__new__(RayEngine)
    engine._roster = SimpleNamespace(members=members, look=bool, losses=lambda now: [])
    engine._by_lane, engine._by_trial, engine._failure, engine._unsent, engine._tick_due = {}, {}, None, [], 1e12
    engine._listen, engine._flush, engine._arrived = Mock(), Mock(), SimpleQueue()
    getattr(engine, calls).side_effect = ConnectionError("Client is shutting down.")
    for trial, member in enumerate(members):
        answer: Future[list[TrialEnded]] = Future()
        answer.set_result([TrialEnded(0.0, trial, Outcome.DONE)])
        engine._arrived.put((member, answer))
    assert [(event.trial, event.outcome) for event in engine.poll(0)] == [(0, Outcome.DONE), (1, Outcome.DONE)]
    with pytest.raises(RunError, match="connection to the cluster is lost: Client is shutting down") as lost:
        engine.poll(0)
    assert "resume=True" in lost.value.hint


@pytest.mark.parametrize("call", ["warn_if_short", "look"])
def test_a_connection_that_is_lost_while_nodes_join_is_said_to_be(call):
    engine = object.__new__(RayEngine)
    engine._roster = Mock(by_device={}, members=[], sets_up=False)
    getattr(engine._roster, call).side_effect = ConnectionError("Client is shutting down.")
    with pytest.raises(RunError, match="connection to the cluster is lost: Client is shutting down"):
        engine.start()


@pytest.mark.parametrize(("is_ours", "shutdowns"), [(True, 1), (False, 0)])
def test_a_connection_of_its_own_is_closed_again_where_the_cluster_takes_nothing(
    tmp_path, monkeypatch, is_ours, shutdowns
):
    ray = Mock(**{"put.side_effect": OSError("no room in the object store")})
    monkeypatch.setattr(engine_module, "_connect", lambda cluster: (ray, is_ours))
    with pytest.raises(OSError, match="no room"):
        RayEngine("auto", pack(behave), 0, tmp_path, LocalOptions(TrialOptions("loss")))
    assert ray.shutdown.call_count == shutdowns
