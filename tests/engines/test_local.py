import contextlib
import errno
import math
import os
import signal
import time
from dataclasses import replace
from unittest import mock

import pytest

import cotune
from cotune.engines import local, local_gpu
from cotune.engines.local import LocalEngine
from cotune.engines.local_gpu import LocalGpu
from cotune.engines.local_options import LocalOptions
from cotune.errors import RunError
from cotune.packer.events import DeviceLost, IterationsDone, LaneLost, TrialEnded, TrialPaused
from cotune.packer.instructions import OpenLane, PauseTrial, StopTrial
from cotune.paths import TrialFolder
from cotune.script.pickling import pack
from cotune.sharing.devices import DeviceInfo, find_devices
from cotune.sharing.lane import LaneHandle
from cotune.sharing.lane_options import TrialOptions
from cotune.sharing.wire import FAULTED
from cotune.testing import EngineUnderTest, RealEngineConformance, behave
from cotune.trial import Estimated, Outcome, Report

HOW = LocalOptions(TrialOptions("loss"))


class TestLocalEngine(RealEngineConformance):
    @pytest.fixture
    def engine(self, tmp_path):
        devices = find_devices(devices=["cpu:0@4GiB"])
        engine = LocalEngine(pack(behave), devices, tmp_path, LocalOptions(TrialOptions("loss"), residents=2))
        with EngineUnderTest(engine, tmp_path) as under_test:
            yield under_test


@pytest.mark.parametrize(("number", "hint"), [(errno.EMFILE, "ulimit -n"), (errno.EFBIG, "ulimit -f")])
def test_a_lane_for_which_a_limit_leaves_no_file_is_told_with_a_way_out(tmp_path, monkeypatch, number, hint):
    def refused(*given):
        raise OSError(number, os.strerror(number))

    engine = LocalEngine(pack(behave), find_devices(devices=["cpu:0@4GiB"]), tmp_path, HOW)
    monkeypatch.setattr(local, "LaneHandle", refused)
    with pytest.raises(RunError, match=f"lane 3 cannot be opened: {os.strerror(number)}") as told:
        engine.execute(OpenLane(3, "cpu:0", 1 << 30))
    assert hint in told.value.hint
    engine.close()


def test_a_trial_for_whose_estimate_a_limit_leaves_no_file_has_none(tmp_path, monkeypatch):
    class Rehearsed:
        def rehearse(self, config): ...

    engine = LocalEngine(pack(Rehearsed), find_devices(devices=["cpu:0@4GiB"]), tmp_path, HOW)
    with contextlib.closing(engine):
        monkeypatch.setattr(os, "pipe2", mock.Mock(side_effect=OSError(errno.EMFILE, os.strerror(errno.EMFILE))))
        engine.estimate(3, {})
        (told,) = (one for one in engine.poll(30.0) if isinstance(one, Estimated))
    assert (told.trial, told.estimate) == (3, None)
    assert os.strerror(errno.EMFILE) in told.reason


class Stillborn(LaneHandle):
    """A lane that ends before it is up: its log cannot be opened. Killed from here it might have been up before."""

    def __init__(self, zygote, options, dismiss):
        super().__init__(zygote, replace(options, log=options.log.parent / "nowhere" / "log"), dismiss)


def test_a_device_on_which_no_lane_comes_up_is_given_up_unless_it_is_the_last(tmp_path, monkeypatch, caplog):
    def heard_after_lanes_on(device, numbers):
        for number in numbers:
            engine.execute(OpenLane(number, device, 1 << 28))
            while not any(isinstance(happened, LaneLost) for happened in engine.poll(30.0)):
                pass
        return {type(happened): happened for happened in engine.poll(0.0)}

    monkeypatch.setattr(local, "LaneHandle", Stillborn)
    devices = find_devices(devices=["cpu:0@1GiB", "cpu:1@1GiB"])
    engine = LocalEngine(pack(behave), devices, tmp_path, HOW)
    with contextlib.closing(engine):
        assert DeviceLost not in heard_after_lanes_on("cpu:1", range(4))
        assert heard_after_lanes_on("cpu:1", [4])[DeviceLost].device == "cpu:1"
        assert "cpu:1 is given up: 5 lanes in a row died before they were up" in caplog.text
        engine.execute(OpenLane(5, "cpu:1", 1 << 28))
        with pytest.raises(RunError, match="5 lanes in a row"):
            heard_after_lanes_on("cpu:0", range(6, 11))


@pytest.mark.parametrize("runs", [True, False])
def test_a_device_goes_on_with_the_lanes_that_are_up_if_trials_run_in_them(tmp_path, monkeypatch, runs):
    engine = LocalEngine(pack(behave), find_devices(devices=["cpu:0@4GiB"]), tmp_path, HOW)
    with EngineUnderTest(engine, tmp_path) as under_test:
        under_test.open()
        if runs:
            under_test.begin(0, reports=10**6)
            under_test.wait(Report)
        monkeypatch.setattr(local, "LaneHandle", Stillborn)
        with contextlib.nullcontext() if runs else pytest.raises(RunError, match="5 lanes in a row"):
            for number in range(2, 9):
                engine.execute(OpenLane(number, "cpu:0", 1 << 28))
                while not any(isinstance(happened, LaneLost) for happened in engine.poll(30.0)):
                    pass


def test_lanes_that_wait_for_a_zygote_that_is_killed_do_not_cost_their_device(tmp_path):
    engine = LocalEngine(pack(behave), find_devices(devices=["cpu:0@4GiB"]), tmp_path, HOW)
    with contextlib.closing(engine):
        while not engine._zygote.get().is_up:
            engine.poll(30.0)
        os.kill(engine._zygote.get().pid, signal.SIGSTOP)
        for number in range(6):
            engine.execute(OpenLane(number, "cpu:0", 1 << 28))
        os.kill(engine._zygote.get().pid, signal.SIGKILL)
        lost = set()
        while len(lost) < 6:
            lost |= {happened.lane for happened in engine.poll(30.0) if isinstance(happened, LaneLost)}


def test_where_no_process_can_be_started_that_is_said_with_what_to_do(tmp_path, monkeypatch):
    no = mock.Mock(side_effect=BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"))
    monkeypatch.setattr("cotune.sharing.zygote.subprocess.Popen", no)
    with pytest.raises(RunError, match="no process can be started: Resource temporarily unavailable") as refused:
        LocalEngine(pack(behave), find_devices(devices=["cpu:0@4GiB"]), tmp_path, HOW)
    assert "ulimit -u" in refused.value.hint


@pytest.mark.parametrize("how", ["fails", "goes on"])
def test_a_trial_is_lost_with_its_gpu_and_does_not_fail_because_of_it(tmp_path, how):
    devices = find_devices(devices=["cpu:0@1GiB", "cpu:1@1GiB"])
    engine = LocalEngine(pack(behave), devices, tmp_path, HOW)
    with EngineUnderTest(engine, tmp_path) as under_test:
        under_test.open()
        gpu = mock.Mock(LocalGpu, **{"is_lost.return_value": how == "fails", "changed_capacity.return_value": None})
        gpu.name = "cpu:0"
        engine._devices.gpus["cpu:0"] = gpu
        engine._watch_due = float("inf")
        under_test.begin(0, reports=1 if how == "fails" else 10**6, raises="unspecified launch failure")
        if how == "goes on":
            under_test.wait(Report)
            gpu.is_lost.return_value, engine._watch_due = True, 0.0
        ended = under_test.wait((DeviceLost, TrialEnded))
        assert (type(ended), ended.device) == (DeviceLost, "cpu:0")
        assert not any(isinstance(heard, TrialEnded) for heard in under_test.heard)
        assert not list(engine._lanes), "nothing more is heard of it"
        gpu.close.assert_called_once_with()


def test_an_iteration_counts_whose_report_has_a_trial_stopped(tmp_path):
    engine = LocalEngine(
        pack(behave), find_devices(devices=["cpu:0@1GiB"]), tmp_path, LocalOptions(TrialOptions("loss", lockstep=True))
    )
    with EngineUnderTest(engine, tmp_path) as under_test:
        under_test.open()
        under_test.begin(0, reports=5)
        under_test.wait(Report)
        engine.execute(StopTrial(0))
        engine.verdict(0, 0)
        assert under_test.wait(IterationsDone).count == 1
        assert under_test.wait(TrialEnded).outcome is Outcome.STOPPED


def test_while_the_driver_does_not_run_nobody_is_late(tmp_path):
    engine = LocalEngine(pack(behave), find_devices(devices=["cpu:0@4GiB"]), tmp_path, HOW)
    lane = mock.Mock(leaves_since=math.inf, is_up=True, is_killed=False, page=mock.Mock(quiet=0.0))
    engine._lanes.add(lane)
    engine._watch()
    lane.excuse.reset_mock()
    engine._watch()
    assert not lane.excuse.called
    engine._watch_due = engine.now() - 100
    engine._watch()
    assert lane.excuse.call_args.args == (pytest.approx(100, abs=10),)
    engine.close()


def test_a_lane_that_could_not_come_up_or_leave_while_nobody_ran_has_the_time_it_had():
    lane = LaneHandle.__new__(LaneHandle)
    lane.page, lane.leaves_since, lane.forked_at = mock.Mock(), math.inf, 50.0
    lane.excuse(100.0)
    assert (lane.leaves_since, lane.forked_at) == (math.inf, 150.0)
    lane.page.excuse.assert_called_once_with(100.0)


@pytest.mark.parametrize("where", ["lanes leave", "their files are closed"])
def test_a_close_that_is_interrupted_ends_all_the_same(tmp_path, monkeypatch, where):
    """By the third Ctrl-C, after which the process may live on, as a notebook's does."""
    engine = LocalEngine(pack(behave), find_devices(devices=["cpu:0@4GiB"]), tmp_path, HOW)
    given_back = []
    engine._more_files.callback(given_back.append, "files")
    monkeypatch.setattr(engine._devices, "close", lambda: given_back.append("devices"))
    zygote = engine._zygote.get()
    interrupted = (zygote, "await_ends") if where == "lanes leave" else (engine._lanes, "close")
    monkeypatch.setattr(*interrupted, mock.Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        engine.close()
    with pytest.raises(ProcessLookupError):
        os.kill(zygote.pid, 0)
    assert given_back == ["devices", "files"]


@pytest.fixture
def clients(tmp_path, monkeypatch):
    """An engine whose lanes on two GPUs are MPS clients; opens one, and has one die."""
    opened, closed = {}, []

    class Lane:
        def __init__(self, zygote, options, dismiss):
            self.lane, self.options, self.is_up, self.is_killed = options.lane, options, True, False
            self.has_trials = False
            self.page = mock.Mock(holder=7, held=0, rests=0.0)
            self.read, self.write = os.pipe()
            opened[self.lane] = self

        def fileno(self):
            return self.read

        def drain(self):
            return iter(())

        def close(self):
            os.close(self.read)
            os.close(self.write)

    class Daemon:
        def __init__(self, uuid):
            self.uuid = uuid

        def environment(self):
            return {"CUDA_MPS_PIPE_DIRECTORY": f"/mps/{self.uuid}"}

        def close(self):
            closed.append(self.uuid)

    monkeypatch.setattr(local, "LaneHandle", Lane)
    monkeypatch.setattr(local_gpu, "MpsDaemon", Daemon)
    monkeypatch.setattr(local_gpu.cuda, "GpuWatch", lambda uuid: mock.Mock(is_lost=lambda: False, used=lambda: 0))
    gpus = [DeviceInfo(f"cuda:{n}", 1 << 30, 0, 32, 2, f"GPU-{n}", 1 << 30) for n in range(2)]
    engine = LocalEngine(pack(behave), gpus, tmp_path, LocalOptions(TrialOptions("loss"), mps=None))
    engine.start()

    def lane(number, device="cuda:0", apart=False):
        engine.execute(OpenLane(number, device, 1 << 28, apart))
        return opened[number].options

    def gone(number, status, **how):
        vars(opened[number]).update(how)
        engine._hear_zygote(mock.Mock(receive=lambda: ("gone", number, status)))
        return engine._pending.pop()

    yield lane, gone
    engine.close()
    assert sorted(closed) == ["GPU-0", "GPU-1"]


def test_after_a_fault_others_are_mps_clients_as_before_and_who_may_be_at_fault_is_none(clients):
    lane, gone = clients
    first = lane(1)
    assert first.is_mps_client
    assert first.environment == {"CUDA_MPS_PIPE_DIRECTORY": "/mps/GPU-0"}
    assert "broke the device context" in gone(1, FAULTED << 8).detail
    apart = lane(2, apart=True)
    assert (apart.is_mps_client, apart.environment) == (False, {})
    assert lane(3).is_mps_client


def test_once_an_mps_client_has_died_by_itself_lanes_are_none_until_all_that_were_there_have_left(clients):
    lane, gone = clients
    for number in (1, 2, 3, 4):
        lane(number)
    gone(1, 0)
    gone(2, signal.SIGKILL, is_killed=True)
    assert lane(5).is_mps_client, "one has left, and one was killed by us, in order"
    assert gone(3, signal.SIGKILL).holder == 7
    assert not lane(6).is_mps_client
    assert lane(7, "cuda:1").is_mps_client
    gone(4, FAULTED << 8)
    assert not lane(8).is_mps_client
    gone(5, 0)
    assert lane(9).is_mps_client


def test_an_mps_client_that_has_died_alone_is_followed_by_another(clients):
    lane, gone = clients
    lane(1)
    gone(1, signal.SIGKILL)
    assert lane(2).is_mps_client


def test_mps_clients_that_do_not_come_up_are_followed_by_lanes_that_are_none(clients, caplog):
    lane, gone = clients
    for number in range(1, 10):
        lane(number)
    for number in range(1, 10):
        gone(number, 0, is_up=False)
    assert not lane(10).is_mps_client
    assert "serves nobody" in caplog.text


def test_a_lane_that_does_not_come_up_in_time_is_killed(tmp_path):
    engine = LocalEngine(pack(behave), find_devices(devices=["cpu:0@4GiB"]), tmp_path, HOW)
    slow, up = (mock.Mock(leaves_since=math.inf, is_killed=False, page=mock.Mock(quiet=0.0)) for _ in range(2))
    for number, lane in enumerate((slow, up)):
        lane.lane, lane.is_up, lane.forked_at = number, lane is up, engine.now() - local.UP_WITHIN - 1
        engine._lanes.add(lane)
    engine._watch()
    assert (slow.kill.called, up.kill.called) == (True, False)
    engine.close()


@pytest.mark.parametrize("when", ["before it saves", "between the two"])
def test_a_trial_that_saves_ahead_of_its_reports_does_not_pause_between_the_two(tmp_path, when):
    def train(config):
        for epoch in range(1, 100):
            time.sleep(0.01)
            with cotune.checkpoint() as path:
                (path / "epoch").write_text(str(epoch))
                while epoch == 5 and when == "before it saves" and not (tmp_path / "go").exists():
                    time.sleep(0.001)
            (tmp_path / f"saved-{epoch}").touch()
            while epoch == 5 and not (tmp_path / "go").exists():
                time.sleep(0.001)
            cotune.report({"loss": 1.0}, step=epoch)

    engine = LocalEngine(pack(train), find_devices(devices=["cpu:0@4GiB"]), tmp_path, HOW)
    with EngineUnderTest(engine, tmp_path) as under_test:
        under_test.open()
        under_test.begin(0)
        seen = [under_test.wait(Report) for _ in range(4)]
        while when == "between the two" and not (tmp_path / "saved-5").exists():
            under_test.engine.poll(0.001)
        under_test.execute(PauseTrial(0))
        (tmp_path / "go").touch()
        while not isinstance(happened := under_test.wait((Report, TrialPaused)), TrialPaused):
            seen.append(happened)
        under_test.execute(StopTrial(0))
        more, _ = under_test.collect(0)
        saved = TrialFolder(tmp_path / "0").latest_checkpoint()
        assert int((saved / "epoch").read_text()) == len(seen + more)
