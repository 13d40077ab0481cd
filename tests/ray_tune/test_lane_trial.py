"""A Ray Tune trial in a lane, without a lane."""

from __future__ import annotations

import pickle
import random
import sys
import traceback
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("ray")
torch = pytest.importorskip("torch")

from cotune.errors import InputError
from cotune.ray_tune.inbox import Call, Inbox
from cotune.ray_tune.lane_trial import LaneTrial
from cotune.session import TrialStopped
from cotune.sharing.inside.context import Context, Home


def lane(home=None, **what):
    return SimpleNamespace(home=home or Home(), has_shared_classes=False, **what)


def test_each_trial_draws_numbers_of_its_own(tmp_path):
    home = Home()
    before = Context(0, home)
    before.leave()
    drawn = []
    for seed in (1, 2):
        trial = LaneTrial(lane(home), 0, seed, tmp_path, dict, Inbox())
        trial.context.enter()
        drawn.append((torch.rand(1).item(), np.random.rand(), random.random()))
        trial.context.leave()
    before.enter()
    assert all(first != second for first, second in zip(*drawn, strict=True))


def test_a_trial_that_says_by_itself_that_it_was_stopped_has_failed(tmp_path):
    trial = LaneTrial(lane(survives=lambda error: True), 0, 1, tmp_path, dict, Inbox())
    ended = []
    trial._end, trial._ran_out = ended.append, lambda error: (False, None)
    told = trial._fails(TrialStopped())
    assert isinstance(told, InputError)
    assert [ending.outcome for ending in ended] == ["failed"]


def test_a_class_that_reports_is_told_to_return_its_metrics(tmp_path):
    trial = LaneTrial(lane(), 0, 1, tmp_path, dict, Inbox())
    with pytest.raises(InputError, match=r"(?s)class Trainable.*return the metrics"):
        trial.report({"loss": 1.0}, None)


def test_what_is_no_exception_is_told_with_where_it_was_raised(tmp_path):
    trial = LaneTrial(lane(survives=lambda error: True), 0, 1, tmp_path, dict, Inbox())
    trial._end, trial._ran_out = [].append, lambda error: (False, None)
    try:
        sys.exit(3)
    except SystemExit as error:
        told = trial._fails(error)
    assert "sys.exit(3)" in "".join(traceback.format_exception(told))
    assert str(told) == "SystemExit: 3"
    assert str(trial._fails(KeyboardInterrupt())) == "KeyboardInterrupt"


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_an_error_that_ray_cannot_encode_is_told_escaped(tmp_path, kind):
    """What open(..., errors="surrogateescape") has read of a Latin-1 file, say; Ray's worker dies of it."""
    trial = LaneTrial(lane(survives=lambda error: True), 0, 1, tmp_path, dict, Inbox())
    trial._end, trial._ran_out = [].append, lambda error: (False, None)
    try:
        raise kind("caf\udce9")
    except BaseException as error:
        told = trial._fails(error)
    text = "".join(traceback.format_exception(told))
    assert f"{kind.__name__}: caf\\udce9" in text
    assert "raise kind(" in text
    text.encode()


class TwoArguments(Exception):
    """As those of many libraries: unpickling calls the class with the text alone."""

    def __init__(self, code, reason):
        super().__init__(f"{code} {reason}")


class Unpicklable(Exception):
    def __reduce__(self):
        raise RuntimeError("holds a connection")


@pytest.mark.parametrize("error", [TwoArguments(503, "busy"), Unpicklable("503 busy")])
def test_an_error_that_the_driver_cannot_unpickle_is_told_as_its_traceback(tmp_path, error):
    trial = LaneTrial(lane(survives=lambda error: True), 0, 1, tmp_path, dict, Inbox())
    trial._end, trial._ran_out = [].append, lambda error: (False, None)
    try:
        raise error
    except Exception as raised:
        told = pickle.loads(pickle.dumps(trial._fails(raised)))
    assert f"{type(error).__name__}: 503 busy" in str(told)
    assert "raise error" in str(told)


def test_a_trial_that_catches_up_lets_its_lane_mates_run_and_stops_where_it_was(tmp_path):
    passed = []
    host = lane(turns=SimpleNamespace(pass_on=passed.append))
    trial = LaneTrial(host, 0, 1, tmp_path, dict, Inbox(), 3)
    trial.iteration_done = lambda: None
    trial._trainable = SimpleNamespace(iteration=1)

    def train():
        trial._trainable.iteration += 1
        return {}

    trial._trainable.train = train
    trial._catch_up()
    assert (trial._trainable.iteration, passed) == (3, [trial, trial])


def test_what_a_callback_calls_may_raise_without_an_end_of_the_trial(tmp_path):
    class Steps(SimpleNamespace):
        def bad(self):
            raise ValueError("a method of the user's")

        train = save = bad

    turns, caps = SimpleNamespace(take=bool, give_up=bool), []
    memory = SimpleNamespace(trim=lambda others_run: caps.append(others_run))
    host = lane(survives=lambda error: True, turns=turns, memory=memory)
    trial = LaneTrial(host, 0, 1, tmp_path, dict, Inbox())
    trial._make, trial._trainable, ended = None, Steps(stop=lambda: None), []
    trial._end, trial._ran_out, trial._unwinds = ended.append, lambda error: (False, None), lambda error: None
    for method, kind in [("bad", ValueError), ("missing", AttributeError)]:
        call = Call(method, (), {})
        trial._serve(call)
        assert isinstance(call.answer.exception(), kind)
        assert not ended
    assert caps == [True, True], "to look into an error may have lifted the cap"
    call = Call("train", (), {})
    trial._serve(call)
    assert isinstance(call.answer.exception(), ValueError)
    assert [ending.outcome for ending in ended] == ["failed"]
