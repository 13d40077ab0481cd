"""The functions a trainable calls, with no run around them: a plain call of the trainable works."""

import math
import sys
import threading

import numpy as np
import pytest

import cotune
from cotune import session


class Recording:
    """A session that notes what it is asked."""

    def __init__(self, trial):
        self.trial = trial
        self.reports = []

    def report(self, metrics, step):
        self.reports.append((dict(metrics), step))

    def device(self):
        return f"device of {self.trial}"

    def restore(self):
        return None

    def shared(self, key, factory):
        return factory()


@pytest.fixture
def unbound():
    """Takes back whatever session a test makes current."""
    yield
    session.bind(None)
    session.set_holder(None)


@pytest.fixture(autouse=True)
def own_shared_objects(monkeypatch):
    monkeypatch.setattr(session, "_shared", {})


def test_report_prints_outside_of_a_run(capsys):
    cotune.report({"loss": 0.1234567891, "epoch": 3, "note": "ok"}, step=7)
    assert capsys.readouterr().out == "step 7: loss=0.123457, epoch=3, note=ok\n"


def test_report_without_a_step_prints_the_metrics_alone(capsys):
    cotune.report({"loss": math.nan})
    assert capsys.readouterr().out == "loss=nan\n"


def test_a_report_outside_of_a_run_is_printed_as_a_run_would_store_it(capsys):
    cotune.report({"eval": {"loss": np.float32(0.5), "parts": np.ones(2)}}, step=np.int64(2))
    assert capsys.readouterr().out == "step 2: eval/loss=0.5, eval/parts=[1.0, 1.0]\n"


@pytest.mark.parametrize(
    ("arguments", "step", "told"),
    [
        (3, None, r"report\(\) got 3"),
        (None, None, r"report\(\) got None"),
        ({"loss": object()}, None, "metric 'loss' is a object"),
        ({"a/b": 1, "a": {"b": 2}}, None, "metric 'a/b' is reported twice"),
        ({"loss": 1.0}, "a", "step='a'"),
        ({"loss": 1.0}, -1, "step=-1"),
    ],
)
def test_a_report_that_every_run_would_refuse_is_refused_outside_of_one_too(capsys, arguments, step, told):
    with pytest.raises(cotune.MetricError, match=told) as raised:
        cotune.report(arguments, step=step)
    assert raised.value.hint
    assert capsys.readouterr().out == ""


def test_there_is_nothing_to_restore_outside_of_a_run():
    assert cotune.restore() is None


def test_there_is_no_trial_outside_of_a_run():
    assert cotune.trial_id() is None


def test_a_checkpoint_outside_of_a_run_is_a_directory_that_is_gone_afterwards():
    with cotune.checkpoint() as path:
        assert path.is_dir()
        (path / "state.pt").write_bytes(b"x")
    assert not path.exists()


def test_a_checkpoint_outside_of_a_run_is_gone_also_after_an_error():
    with pytest.raises(ZeroDivisionError), cotune.checkpoint() as path:
        raise ZeroDivisionError
    assert not path.exists()


@pytest.mark.parametrize(("has_gpu", "device"), [(False, "cpu"), (True, "cuda:0")])
def test_the_device_outside_of_a_run_is_the_first_gpu_where_there_is_one(monkeypatch, has_gpu, device):
    class Torch:
        class cuda:
            is_available = staticmethod(lambda: has_gpu)

    monkeypatch.setitem(sys.modules, "torch", Torch)
    assert cotune.device() == device


def test_shared_builds_once():
    calls = []
    built = [cotune.shared("data", lambda: calls.append(1) or object()) for _ in range(3)]
    assert len(calls) == 1
    assert built[0] is built[1] is built[2]


def test_shared_keeps_keys_apart():
    assert cotune.shared("a", lambda: 1) == 1
    assert cotune.shared("b", lambda: 2) == 2


def test_shared_keeps_what_is_none_or_empty():
    calls = []
    for _ in range(2):
        assert cotune.shared("nothing", lambda: calls.append(1)) is None
    assert len(calls) == 1


def test_shared_tries_again_after_a_factory_that_raised():
    with pytest.raises(ZeroDivisionError):
        cotune.shared("data", lambda: 1 / 0)
    assert cotune.shared("data", lambda: 5) == 5


@pytest.mark.parametrize("is_in_trial", [True, False])
@pytest.mark.parametrize(
    ("key", "factory", "told"),
    [("data", 3, "factory=3, which cannot be called"), (["data"], list, r"key=\['data'\]"), (("a", []), list, "key=")],
)
def test_shared_refuses_a_wrong_key_or_factory(unbound, is_in_trial, key, factory, told):
    session.bind(Recording(1) if is_in_trial else None)
    with pytest.raises(cotune.InputError, match=told) as raised:
        cotune.shared(key, factory)
    assert "shared('data', load)" in raised.value.hint


def test_a_stop_passes_by_those_who_catch_exceptions():
    assert issubclass(cotune.TrialStopped, BaseException)
    assert not issubclass(cotune.TrialStopped, Exception)


def test_a_bound_session_gets_what_is_reported(unbound):
    mine = Recording(3)
    session.bind(mine)
    cotune.report({"loss": 1.0}, step=2)
    assert mine.reports == [({"loss": 1.0}, 2)]
    assert cotune.trial_id() == 3
    assert cotune.device() == "device of 3"


@pytest.mark.parametrize(("set_session", "seen"), [(session.bind, None), (session.set_holder, 4)])
def test_a_thread_speaks_for_the_trial_that_has_the_turn_and_for_no_other_threads(unbound, set_session, seen):
    set_session(Recording(4))
    told = []
    thread = threading.Thread(target=lambda: told.append(cotune.trial_id()))
    thread.start()
    thread.join(timeout=10)
    assert told == [seen]


def test_a_threads_own_session_goes_before_that_of_the_turn(unbound):
    session.bind(Recording(1))
    session.set_holder(Recording(2))
    assert cotune.trial_id() == 1
