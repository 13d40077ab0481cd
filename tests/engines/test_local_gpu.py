"""A GPU of this machine under a run, with a driver library that says what the test says."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from cotune.demand import GIB
from cotune.engines import local_gpu
from cotune.engines.local_devices import LocalDevices
from cotune.engines.local_gpu import BUSY_AFTER, LocalGpu
from cotune.engines.others import SETTLE
from cotune.errors import DeviceError, RunError
from cotune.sharing import cuda
from cotune.sharing.devices import DeviceInfo


class Watch:
    def __init__(self, uuid):
        self.bytes, self.closed = 0, 0

    def used(self):
        return self.bytes

    def utilization(self):
        return 0.75

    def close(self):
        self.closed += 1


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(local_gpu.cuda, "GpuWatch", Watch)
    return LocalGpu(info(), mps=False)


def info(max_width=32):
    return DeviceInfo("cuda:0", 16 * GIB - cuda.RESERVE, 0, max_width, 2, "GPU-0", 16 * GIB)


def lane(held, age=0.0, is_up=True):
    return SimpleNamespace(lane=1, is_up=is_up, page=SimpleNamespace(held=held, age=age))


def settled(gpu, lanes):
    return [gpu.changed_capacity(lanes) for _ in range(SETTLE + 2)][-1]


def test_what_no_lane_of_ours_holds_is_taken_by_others(gpu):
    gpu._watch.bytes = 7 * GIB
    assert settled(gpu, [lane(2 * GIB), lane(GIB)]) == 12 * GIB - cuda.RESERVE


@pytest.mark.parametrize("other", [{"is_up": False}, {"age": 4.0}])
def test_nothing_is_concluded_beside_a_lane_whose_figure_is_not_known(gpu, other):
    gpu._watch.bytes = 7 * GIB
    assert settled(gpu, [lane(GIB), lane(0, **other)]) is None


def test_nothing_is_concluded_when_a_lane_has_just_gone(gpu):
    settled(gpu, [])
    gpu.lane_gone(lane(0))
    gpu._watch.bytes = 7 * GIB
    assert gpu.changed_capacity([]) is None


def test_a_trial_is_said_to_keep_it_busy_once_it_has_trained_for_a_while(gpu):
    assert gpu.busy(0, 10.0, lanes=1) is None
    assert gpu.busy(0, 10.1 + BUSY_AFTER, lanes=1) == 0.75
    assert gpu.busy(0, 10.2 + BUSY_AFTER, lanes=2) is None, "some of it is the other lane's"


def test_trials_that_take_turns_are_not_said_to_keep_it_busy(gpu):
    heard = [gpu.busy(number % 2, 10.0 + number, lanes=1) for number in range(20)]
    assert heard == [None] * 20
    assert gpu.busy(1, 29.1 + BUSY_AFTER, lanes=1) == 0.75, "the other has left"


def test_the_next_attempt_at_a_trial_is_measured_anew(gpu):
    gpu.busy(0, 10.0, lanes=1)
    gpu.forget(0)
    assert gpu.busy(0, 20.0, lanes=1) is None


def test_without_mps_lanes_are_told_of_none(gpu):
    assert gpu.client_environment(1, apart=False) is None
    gpu.close()
    assert gpu._watch.closed == 1


def test_a_lane_that_did_not_come_up_has_the_device_looked_at_at_once(gpu):
    gpu.lane_gone(lane(0))
    gpu._watch.bytes = 7 * GIB
    assert gpu.refused_capacity([lane(2 * GIB), lane(0, is_up=False)]) == 11 * GIB - cuda.RESERVE


@pytest.fixture
def daemons(monkeypatch):
    """Those that were started; one that is refused says why."""
    started = []

    class Daemon:
        def __init__(self, uuid):
            if started and started[0] == "refused":
                raise DeviceError("MPS cannot be used: nvidia-cuda-mps-control is not installed")
            started.append(self)

        def environment(self):
            return {"pipe": "its own"}

        def close(self):
            started.remove(self)

    monkeypatch.setattr(local_gpu.cuda, "GpuWatch", Watch)
    monkeypatch.setattr(local_gpu, "MpsDaemon", Daemon)
    return started


def test_lanes_are_mps_clients_wherever_they_can_be_and_several_may_run(daemons):
    gpu = LocalGpu(info(), mps=None)
    assert gpu.client_environment(1, apart=False) == {"pipe": "its own"}
    assert gpu.client_environment(2, apart=True) is None
    assert gpu.busy(0, 10.0, lanes=1) is gpu.busy(0, 20.0, lanes=1) is None, "what one does is not taken from others"
    gpu.close()
    assert daemons == []
    assert LocalGpu(info(max_width=1), mps=None).client_environment(1, apart=False) is None
    assert LocalGpu(info(), mps=False).client_environment(1, apart=False) is None
    assert daemons == []


def test_where_one_gpu_of_two_refuses_mps_that_was_asked_for_the_other_is_left_in_order(daemons, monkeypatch, tmp_path):
    infos = [replace(info(), name=f"cuda:{number}", uuid=f"GPU-{number}") for number in range(2)]
    start = local_gpu.MpsDaemon

    def refuses(uuid):
        if uuid == "GPU-1":
            raise DeviceError("MPS cannot be used: no")
        return start(uuid)

    monkeypatch.setattr(local_gpu, "MpsDaemon", refuses)
    devices = LocalDevices(infos, tmp_path)
    with pytest.raises(DeviceError, match="MPS cannot be used"):
        devices.watch(mps=True)
    watch = devices.gpus["cuda:0"]._watch
    devices.close()
    assert (daemons, watch.closed) == ([], 1)


class LosesOne:
    """A `pynvml` whose driver has lost a GPU."""

    NVMLError = type("NVMLError", (Exception,), {})

    def __init__(self):
        self.started = 0

    def nvmlInit(self):
        self.started += 1

    def nvmlShutdown(self):
        self.started -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid == "GPU-1":
            raise self.NVMLError("GPU is lost")


def test_a_gpu_that_is_lost_before_it_is_watched_is_given_up_unless_it_is_the_last(monkeypatch, tmp_path, caplog):
    nvml = LosesOne()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    lost, other = (replace(info(), name=f"cuda:{number}", uuid=f"GPU-{number}") for number in (1, 0))
    devices = LocalDevices([lost, other], tmp_path)
    devices.watch(mps=False)
    assert [found.device for found in devices.found(0.0, 1)] == list(devices.gpus) == ["cuda:0"]
    assert "cuda:1 is given up: the driver has lost it" in caplog.text
    devices.close()
    with pytest.raises(RunError, match="cuda:1: the driver has lost it"):
        LocalDevices([lost], tmp_path).watch(mps=False)
    assert nvml.started == 0


@pytest.mark.parametrize("fails", ["GpuWatch", "MpsDaemon"])
def test_a_gpu_of_which_a_part_cannot_be_set_up_leaves_neither_daemon_nor_watch(daemons, monkeypatch, fails):
    def refuse(uuid):
        raise DeviceError("not this one")

    watches = []
    monkeypatch.setattr(local_gpu.cuda, "GpuWatch", lambda uuid: watches.append(Watch(uuid)) or watches[-1])
    monkeypatch.setattr(local_gpu.cuda if fails == "GpuWatch" else local_gpu, fails, refuse)
    with pytest.raises(DeviceError, match="not this one"):
        LocalGpu(info(), mps=True)
    assert (daemons, [watch.closed for watch in watches]) == ([], [1] * len(watches))


def test_where_mps_is_refused_lanes_do_without_unless_it_was_asked_for(daemons, caplog):
    daemons.append("refused")
    with caplog.at_level("INFO"):
        assert LocalGpu(info(), mps=None).client_environment(1, apart=False) is None
    assert "nvidia-cuda-mps-control is not installed" in caplog.text
    with pytest.raises(DeviceError, match="not installed"):
        LocalGpu(info(), mps=True)
