"""What Tune asks for against what the brain and the lanes are told, without a cluster."""

from __future__ import annotations

import pickle
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")

from ray.exceptions import OutOfMemoryError, RayActorError, RaySystemError, RayTaskError
from ray.tune.trainable.function_trainable import FunctionTrainable

from cotune.demand import MIB
from cotune.packer import Packer, PackerOptions
from cotune.packer import events as ev
from cotune.packer import instructions as do
from cotune.ray_tune import lane
from cotune.ray_tune.actor_lane import ActorLane
from cotune.ray_tune.broker import Broker
from cotune.ray_tune.inbox import NotHere
from cotune.ray_tune.ticket import Held, Ticket
from cotune.sharing.inside.stacks import Stacks
from cotune.sharing.wire import Kind, decode
from cotune.trial import Outcome


class Lanes:
    """Stands for the cluster: lanes are up at once, and what they are called is written down."""

    def __init__(self):
        self.called = []
        self.executed = []
        self.lanes = {}

    def now(self):
        return 0.0

    def reserve(self, trials): ...

    def lane(self, number):
        return self.lanes[number]

    def execute(self, instruction):
        self.executed.append(instruction)
        if isinstance(instruction, do.OpenLane):
            actor = SimpleNamespace(
                call=SimpleNamespace(remote=lambda *args: self.called.append(args)),
                interrupt=SimpleNamespace(remote=lambda key: self.called.append(("interrupt", key))),
                evict=SimpleNamespace(remote=lambda key: self.called.append(("evict", key))),
            )
            self.lanes[instruction.lane] = SimpleNamespace(
                actor=actor, calls={}, unheard=[], trainables=set(), resizes=0
            )


def trial(name):
    return SimpleNamespace(
        trial_id=name,
        trainable_name="train",
        config={},
        local_path="",
        checkpoint=None,
        latest_checkpoint_result=None,
        last_result={},
    )


@pytest.fixture
def lanes():
    return Lanes()


@pytest.fixture
def broker(lanes):
    packer = Packer(PackerOptions(width=1))
    packer.handle(ev.DeviceFound(0.0, "cpu:0", 1000 * MIB, 0, 1))
    return Broker(packer, lanes)


def test_a_trial_that_is_cancelled_before_its_first_call_makes_room_at_once(broker, lanes):
    first, second = broker.ask(trial("a")), broker.ask(trial("b"))
    assert first.lane is not None
    assert second.lane is None

    broker.let_go(first)

    assert first.over
    assert second.lane is not None
    assert not any(isinstance(instruction, do.CloseLane) for instruction in lanes.executed)
    assert lanes.called == []


def test_the_brain_hears_at_once_of_devices_that_come_up_together(lanes):
    class Listens(Packer):
        heard = ()

        def handle(self, *events):
            self.heard += (events,)
            return super().handle(*events)

    broker = Broker(Listens(PackerOptions(width=2)), lanes)
    found = [ev.DeviceFound(0.0, f"gpu:{number}", 1000 * MIB) for number in range(2)]
    lanes.poll = lambda: found
    broker.pump()
    assert broker.packer.heard == (tuple(found),), "else waiting trials would crowd on the first"


def test_the_first_call_of_an_attempt_says_what_the_trial_is(broker, lanes):
    ticket = broker.ask(trial("a"))
    broker.seat(ticket, dict, {"x": 1})
    broker.call(ticket, "train", (), {})
    broker.call(ticket, "train", (), {})

    attempts = [args[-1] for args in lanes.called]
    assert pickle.loads(attempts[0].kwargs) == {"x": 1}
    assert attempts[1] is None
    assert [args[1] for args in lanes.called] == [0, 1]


def test_a_function_that_has_ended_is_not_asked_for_a_model(broker, lanes):
    ticket = broker.ask(trial("a"))
    broker.seat(ticket, FunctionTrainable, {})
    broker.call(ticket, "train", (), {})
    broker._feed(ev.TrialEnded(0.0, ticket.number, Outcome.DONE))
    broker._answers.append("nothing")
    assert broker.call(ticket, "export_model", (["model"],), {}) == "nothing"
    assert [args[2] for args in lanes.called] == ["train"]


def test_a_trial_draws_other_numbers_behind_a_checkpoint(broker):
    def seed(name, checkpoint=None):
        ticket = Ticket(0, trial(name), trainable=(0, b""))
        ticket.trial.checkpoint = checkpoint
        return broker._attempt(ticket, SimpleNamespace(trainables=set(), resizes=0)).seed

    saved = [SimpleNamespace(path=f"run/a/checkpoint_{n:06}") for n in range(2)]
    assert seed("a") == seed("a")
    assert len({seed("a"), seed("b"), seed("a", saved[0]), seed("a", saved[1])}) == 4


def test_a_trial_that_was_stopped_between_two_lanes_is_not_run_again(broker, lanes):
    ticket = broker.ask(trial("a"))
    broker.seat(ticket, dict, {})
    broker.call(ticket, "train", (), {})
    broker._feed(ev.LaneLost(0.0, 1, None, "killed"))
    assert (ticket.attempt, ticket.calls) == (1, 0)
    broker._answers.append("stopped")
    assert broker.call(ticket, "stop", (), {}) == "stopped"

    assert not broker.takes_over(ticket, Held("train", RayActorError(), lambda: None, lambda error: None), 0)

    assert ticket.over
    assert broker.packer.unfinished == 0


def test_a_trial_under_which_lanes_died_as_often_as_they_may_is_tried_again_by_tune_once_a_time(broker, lanes):
    def deaths(ticket):
        broker.seat(ticket, dict, {})
        count = 0
        while not ticket.over:
            lane = max(lanes.lanes)
            broker._feed(ev.LaneReady(0.0, lane, 0))
            broker._feed(ev.LaneLost(0.0, lane, None, "killed"))
            count += 1
        return count

    assert [deaths(broker.ask(trial("a"))) for _ in range(3)] == [3, 1, 1]
    assert deaths(broker.ask(trial("b"))) == 3


def test_a_trial_has_the_time_to_clean_up_that_tune_gives_it(broker, lanes):
    """Ray has it that this is 600 s, or TUNE_FORCE_TRIAL_CLEANUP_S; then Tune kills."""
    ticket = broker.ask(trial("a"))
    broker.seat(ticket, dict, {})
    broker.call(ticket, "train", (), {})
    broker.call(ticket, "stop", (), {})
    broker._feed(ev.Tick(599.0))
    killed = [instruction for instruction in lanes.executed if isinstance(instruction, do.CloseLane)]
    assert killed == []

    lanes.now = lambda: 600.0
    broker.evict(ticket)
    for seconds in range(600, 607):
        broker._feed(ev.Tick(float(seconds)))

    assert lanes.executed[-1] == do.CloseLane(1, kill=True)


def test_a_function_that_hangs_when_it_is_stopped_has_no_such_time(broker, lanes):
    ticket = broker.ask(trial("a"))
    broker.seat(ticket, FunctionTrainable, {})
    broker.call(ticket, "train", (), {})
    broker.call(ticket, "stop", (), {})
    broker._feed(ev.Tick(6.0))
    assert lanes.executed[-1] == do.CloseLane(1, kill=True)


@pytest.mark.parametrize("how", ["interrupt", "evict"])
def test_a_trial_that_is_stopped_before_its_first_call_has_arrived_stops(how, monkeypatch):
    stopped = []

    class Fake:
        def __init__(self, host, number, *rest):
            self.stop = lambda: stopped.append(number)

        def run(self):
            stopped.append("runs")

    monkeypatch.setattr(lane, "LaneTrial", Fake)
    process = lane.Lane({}, ())
    process._host = SimpleNamespace(memory=SimpleNamespace(cap=lambda: None), adopt=lambda trial: None)
    process._opened.set()
    getattr(process, how)((3, 0))
    process._run(lane.AttemptSpec(3, 0, 0, "", 0, None, b""))
    assert stopped == [3, "runs"]


def test_a_trial_begins_with_the_last_quota_that_its_lane_was_told_before(monkeypatch):
    quotas = []

    class Fake:
        def __init__(self, *_): ...

        def run(self):
            quotas.append("runs")

    monkeypatch.setattr(lane, "LaneTrial", Fake)
    process, told = lane.Lane({}, ()), []
    remote = SimpleNamespace(resize=SimpleNamespace(remote=lambda *args: told.append(args)))
    handle = ActorLane(1, remote, None, None, None)
    handle.resize(1000)
    handle.resize(2000)
    memory = SimpleNamespace(cap=lambda: None)
    process._host = SimpleNamespace(memory=memory, adopt=lambda trial: None, resize=quotas.append)
    process._opened.set()
    attempt = lane.AttemptSpec(3, 0, 0, "", 0, None, b"", resizes=handle.resizes)
    thread = threading.Thread(target=process._run, args=(attempt,))
    thread.start()
    for args in told:
        process.resize(*args)
    thread.join(10)
    assert quotas == [1000, 2000, "runs"]


def test_what_a_trial_has_every_thread_traced_with_does_not_keep_the_next_from_starting(monkeypatch):
    def refuse(*_):
        raise ValueError("traced")

    begun = threading.Event()
    monkeypatch.setattr(lane.Lane, "_run", lambda process, attempt: begun.set())
    process, host = lane.Lane({}, ()), object.__new__(lane.LaneHost)
    host.memory, host._trials = SimpleNamespace(uncap=lambda spare: None), {}
    host._tracing = threading.gettrace(), threading.getprofile()
    host.stacks = Stacks()
    process._host = host
    process._opened.set()
    threading.settrace(refuse)
    try:
        process._begin(lane.AttemptSpec(3, 0, 0, "", 0, None, b""))
        assert begun.wait(10)
        assert threading.gettrace() is host._tracing[0]
    finally:
        threading.settrace(host._tracing[0])


def test_where_no_further_thread_can_be_had_the_brain_hears_of_it_and_the_call_is_made_again(monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    process, caps = lane.Lane({}, ()), []
    process._host = host = object.__new__(lane.LaneHost)
    host.memory = SimpleNamespace(cap=lambda: caps.append(1), uncap=lambda spare: caps.append(-1))
    host._tracing = None, None
    host._trials, host._outbox, host.stacks = {}, process._outbox, Stacks()
    process._opened.set()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(NotHere):
        process.call((3, 0), 0, "train", (), {}, lane.AttemptSpec(3, 0, 0, "", 0, b"", b""))
    assert sum(caps) == 0
    (frame,) = process._outbox.take(0.0)
    kind, payload = decode(frame)
    assert (kind, pickle.loads(payload)[:2]) == (Kind.ENDED, (3, Outcome.OUT_OF_MEMORY))


@pytest.mark.parametrize("error", [RayActorError(), OutOfMemoryError("the node was short of memory")])
def test_a_call_that_failed_since_its_lane_is_gone_is_made_again(broker, lanes, error):
    ticket = broker.ask(trial("a"))
    broker.seat(ticket, FunctionTrainable, {})
    broker.call(ticket, "train", (), {})
    again = []
    assert broker.takes_over(ticket, Held("train", error, lambda: again.append("train"), again.append), ticket.attempt)
    broker._feed(ev.LaneLost(0.0, 1, None, "died"))
    assert again == ["train"]


def test_a_lane_where_ray_could_not_unpack_a_call_for_want_of_memory_is_given_up(broker, lanes):
    ticket = broker.ask(trial("a"))
    broker.seat(ticket, FunctionTrainable, {})
    broker.call(ticket, "train", (), {})
    lane, again = ticket.lane, []
    cause = RaySystemError("Unable to allocate internal buffer", "MemoryError: Unable to allocate internal buffer.")
    error = RayTaskError("call", str(cause), cause).as_instanceof_cause()
    assert broker.takes_over(ticket, Held("train", error, lambda: again.append("train"), again.append), ticket.attempt)
    assert (lane.missed, again) == (True, [])
    broker._feed(ev.LaneLost(0.0, 1, None, "killed"))
    assert again == ["train"]
    other = RayTaskError("call", "", RaySystemError("no module", "ImportError")).as_instanceof_cause()
    assert not broker.takes_over(ticket, Held("train", other, again.clear, again.append), ticket.attempt)


def test_why_nothing_runs_is_said_once(broker, lanes, monkeypatch, caplog):
    broker._feed(ev.DeviceChanged(0.0, "cpu:0", 0))
    broker.ask(trial("a"))
    lanes.has_devices = True
    for now in (1.0, 10.0, 30.0, 60.0):
        monkeypatch.setattr(lanes, "now", lambda now=now: now)
        broker._say_what_is_missing()
    (said,) = [record.message for record in caplog.records if "nothing runs" in record.message]
    assert "trial a waits" in said


def test_answers_go_before_news_where_there_always_is_some(broker, lanes, monkeypatch):
    polled = []
    lanes.is_watch_due, lanes.futures = False, lambda: ["news"]
    monkeypatch.setattr(broker, "pump", lambda: polled.append(True))
    lanes.answers_wait = lambda: False
    assert (broker.futures(), polled) == (["news"], [])
    lanes.answers_wait = lambda: True
    assert (broker.futures(), polled) == ([], [])
    monkeypatch.setattr(lanes, "now", lambda: 1.0)
    assert (broker.futures(), polled) == ([], [True]), "but they are taken now and then"


@pytest.mark.parametrize("how", ["ends", "moves"])
def test_no_answer_is_waited_for_that_was_taken_long_ago(broker, lanes, how):
    ticket = broker.ask(trial("a"))
    broker.seat(ticket, FunctionTrainable, {})
    broker.call(ticket, "train", (), {})
    lane = ticket.lane
    assert list(lane.calls) == [ticket.number]
    if how == "ends":
        broker._feed(ev.TrialEnded(0.0, ticket.number, Outcome.DONE))
        broker._answers.append("stopped")
        broker.call(ticket, "stop", (), {})
    else:
        broker._retry(ticket, "out of memory")
    assert lane.calls == {}


def test_a_trial_whose_last_answer_is_lost_with_its_lane_each_time_is_not_run_for_ever(broker, lanes):
    ticket, told = broker.ask(trial("a")), []
    broker.seat(ticket, dict, {})
    runs = 0
    while not told:
        broker.call(ticket, "train", (), {})
        runs += 1
        broker._feed(ev.TrialEnded(0.0, ticket.number, Outcome.FAILED))
        lane = max(lanes.lanes)
        if not broker.takes_over(ticket, Held("train", RayActorError(), lambda: None, told.append), ticket.attempt):
            told.append("Tune")
        broker._feed(ev.LaneLost(0.0, lane, None, "killed"))
    assert (runs, told) == (3, ["Tune"])
    assert broker.packer.unfinished == 0
