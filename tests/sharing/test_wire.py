"""Messages arrive whole, however the stream is cut."""

import itertools
import math
import pickle
import socket
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotune.errors import NotPicklable
from cotune.script.pickling import Series
from cotune.sharing import wire
from cotune.sharing.wire import Frames, Kind
from cotune.trial import Report, TrialSpec

frames = st.lists(st.tuples(st.sampled_from(list(Kind)), st.binary(max_size=300)), max_size=6)


def received(stream, cuts=()):
    """The frames of each piece of a stream that is sent piece by piece over a real socket."""
    edges = [0, *sorted(cuts), len(stream)]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reader = Frames(theirs, set(Kind))
        for start, end in itertools.pairwise(edges):
            if end > start:
                ours.sendall(stream[start:end])
                yield list(reader.receive())
        ours.close()
        assert reader.receive() is None


def receive_all(stream, cuts=()):
    return list(itertools.chain(*received(stream, cuts)))


def payload_of(frame):
    ((_, payload),) = receive_all(frame)
    return payload


@given(frames, st.data())
def test_frames_arrive_whole_and_in_order_wherever_the_stream_is_cut(sent, data):
    stream = b"".join(wire.encode(kind, payload) for kind, payload in sent)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=10))
    assert receive_all(stream, cuts) == sent


@given(frames)
@settings(max_examples=20)
def test_frames_arrive_byte_by_byte(sent):
    stream = b"".join(wire.encode(kind, payload) for kind, payload in sent)
    assert receive_all(stream, range(len(stream))) == sent


def test_a_frame_that_is_not_whole_yet_is_kept():
    frame = wire.encode(Kind.REPORT, b"x" * 100)
    assert list(received(frame, [50])) == [[], [(Kind.REPORT, b"x" * 100)]]


def test_messages_are_pickled_by_pickle_itself_whatever_a_trial_puts_in_its_place(monkeypatch):
    monkeypatch.setattr(pickle, "dumps", lambda *_, **__: b"x")
    assert pickle.loads(payload_of(wire.encode_object(Kind.ENDED, (7, "done")))) == (7, "done")


def test_the_end_of_the_stream_is_none():
    ours, theirs = socket.socketpair()
    with theirs:
        ours.close()
        assert Frames(theirs, set(Kind)).receive() is None


def test_an_end_that_leaves_without_reading_is_an_end():
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(b"never read")
        ours.close()
        assert Frames(theirs, set(Kind)).receive() is None


@pytest.mark.parametrize(
    "text", [b"INFO: a line of some log", b"test\n", b"one\t2\n", "größer\n".encode(), b"\0\0\0\0\x14"]
)
def test_what_is_no_frame_of_a_lane_is_the_end_of_the_stream_behind_those_that_are(text):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(wire.encode(Kind.REPORT, b"x") + text)
        reader = Frames(theirs, wire.FROM_LANES)
        assert reader.receive() == [(Kind.REPORT, b"x")]
        assert reader.is_broken
        assert reader.receive() is None


def test_a_frame_cut_off_by_the_end_of_the_stream_is_lost():
    assert receive_all(wire.encode(Kind.REPORT, b"x" * 100)[:50]) == []


def test_a_frame_larger_than_one_read_arrives_whole_over_a_real_socket():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        payload = bytes(range(256)) * 4096
        sender = threading.Thread(target=ours.sendall, args=[wire.encode(Kind.START, payload)])
        sender.start()
        reader, got = Frames(theirs, set(Kind)), []
        while not got:
            got.extend(reader.receive())
        sender.join(timeout=20)
        assert got == [(Kind.START, payload)]


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**63 - 1), st.floats(), st.binary(max_size=200))
def test_a_report_arrives_as_it_was_sent(trial, step, value, line):
    got = wire.decode_report(payload_of(wire.encode_report(trial, 3, step, value, line)))
    assert (got.trial, got.attempt, got.step, got.line) == (trial, 3, step, line)
    assert got.value == value or (math.isnan(got.value) and math.isnan(value))
    assert isinstance(got, Report)


def test_an_object_arrives_as_it_was_sent():
    assert pickle.loads(payload_of(wire.encode_object(Kind.HOLDS, (1, 2, True)))) == (1, 2, True)


def test_a_trial_arrives_with_a_config_that_only_cloudpickle_can_send():
    spec = TrialSpec(3, 1, {"activation": lambda x: x + 1}, 5, Path("/runs/a"))
    series = Series("the trainable", "it")
    got = pickle.loads(pickle.dumps(wire.sendable(spec, series)))
    assert (got.trial, got.attempt, got.seed, got.folder) == (3, 1, 5, Path("/runs/a"))
    _, config = wire.load_series(series.first, got.packed)
    assert config["activation"](1) == 2


def test_a_trial_arrives_with_a_plain_config_in_it():
    spec = TrialSpec(3, 1, {"lr": 0.1, "name": "a", "deep": True, "none": None}, 5, Path("/runs/a"))
    assert wire.sendable(spec, Series(None, "it")) is spec


def test_a_trial_whose_config_cannot_be_sent_is_named():
    with pytest.raises(NotPicklable, match="the config of trial 3"):
        wire.sendable(TrialSpec(3, 0, {"generator": (x for x in ())}, 5, Path("/")), Series(None, "it"))


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.binary(max_size=200))
def test_a_question_and_its_answer_arrive_as_they_were_sent(trial, attempt, payload):
    for kind in (Kind.ASK, Kind.ANSWER):
        got = wire.decode_question(payload_of(wire.encode_question(kind, trial, attempt, payload)))
        assert (got.trial, got.attempt, got.payload) == (trial, attempt, payload)
