"""The devices of this machine, as a run is told of them."""

import os
import resource
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event, Semaphore
from types import SimpleNamespace

import pytest

from cotune.demand import GIB
from cotune.engines.local_devices import CONTEXTS_AT_ONCE, LocalDevices
from cotune.engines.open_files import OTHER_FILES
from cotune.errors import DeviceError, RunError
from cotune.sharing.devices import DeviceInfo


@pytest.mark.parametrize(
    ("seats", "lanes_that_fit", "widths"),
    [(1, 40, (4, 20)), (40, 6, (3, 3)), (40, 0, (1, 1)), (40, None, (4, 32))],
)
def test_a_device_has_no_more_lanes_than_there_are_files_for(tmp_path, monkeypatch, seats, lanes_that_fit, widths):
    used = len(os.listdir("/proc/self/fd")) + OTHER_FILES
    files = resource.RLIM_INFINITY if lanes_that_fit is None else used + lanes_that_fit * (2 + seats)
    infos = [DeviceInfo(f"cpu:{n}", GIB, 0, max_width=4, cores=4, idle_width=32) for n in range(2)]
    monkeypatch.setattr("cotune.engines.open_files.resource.getrlimit", lambda what: (100, files))
    for found in LocalDevices(infos, tmp_path).found(0.0, seats):
        assert (found.max_width, found.idle_width) == widths


def test_few_lanes_come_up_at_once_on_a_gpu_and_any_number_on_a_cpu(tmp_path):
    gpu = DeviceInfo("cuda:0", GIB, 0, max_width=32, cores=4, uuid="GPU-1")
    cpu = DeviceInfo("cpu:0", GIB, 0, max_width=4, cores=4)
    on_gpu, on_cpu = LocalDevices([gpu, cpu], tmp_path).found(0.0, 1)
    assert on_gpu.opens == CONTEXTS_AT_ONCE < on_gpu.max_width
    assert on_cpu.opens > 1000


def test_mps_that_was_asked_for_is_refused_where_no_gpu_is_used(tmp_path):
    devices = LocalDevices([DeviceInfo("cpu:0", GIB, 0, max_width=4, cores=4)], tmp_path)
    devices.watch(mps=None)
    with pytest.raises(DeviceError, match=r"MPS cannot be used: .*cpu:0"):
        devices.watch(mps=True)


def test_gpus_that_come_up_once_the_wait_for_them_is_interrupted_are_given_back(tmp_path, monkeypatch):
    class Interrupted(ThreadPoolExecutor):
        def __exit__(self, *raised):
            raise KeyboardInterrupt

    def comes_up(info, mps):
        assert may_come_up.wait(10)
        if info.name == "cuda:0":
            raise RunError("the GPU is lost", hint="")
        return SimpleNamespace(close=closed.release)

    may_come_up, closed = Event(), Semaphore(0)
    monkeypatch.setattr("cotune.engines.local_devices.ThreadPoolExecutor", Interrupted)
    monkeypatch.setattr("cotune.engines.local_devices.LocalGpu", comes_up)
    gpus = [DeviceInfo(f"cuda:{n}", GIB, 0, max_width=2, cores=4, uuid=f"GPU-{n}") for n in range(2)]
    with pytest.raises(KeyboardInterrupt):
        LocalDevices(gpus, tmp_path).watch(mps=None)
    may_come_up.set()
    assert closed.acquire(timeout=10)


def test_where_one_gpu_is_interrupted_as_it_is_given_back_the_others_are_given_back_too(tmp_path):
    def closes(number):
        closed.append(number)
        raise KeyboardInterrupt

    devices, closed = LocalDevices([], tmp_path), []
    devices.gpus = {f"cuda:{n}": SimpleNamespace(close=partial(closes, n)) for n in range(2)}
    with pytest.raises(KeyboardInterrupt):
        devices.close()
    assert sorted(closed) == [0, 1]
