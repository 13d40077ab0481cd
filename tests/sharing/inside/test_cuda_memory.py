"""What is asked of NVML and of the allocator, where there is neither: fakes that refuse what the real ones would."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import tempfile
from types import SimpleNamespace
from unittest import mock

import pytest

from cotune.demand import MIB
from cotune.errors import DeviceError
from cotune.sharing import cuda
from cotune.sharing.devices import find_devices
from cotune.sharing.inside import cuda_memory
from cotune.sharing.raised import out_of_memory

pynvml = pytest.importorskip("pynvml")
torch = pytest.importorskip("torch")

UUIDS = ["GPU-11111111-2222-3333-4444-555555555555", "GPU-66666666-7777-8888-9999-000000000000"]


class FakeNvml:
    """pynvml's functions, with its signatures, over a table of GPUs."""

    def __init__(self, monkeypatch, gpus):
        self.gpus = gpus
        self.started = 0
        for name in dir(self):
            if name.startswith("nvml"):
                spec = mock.create_autospec(getattr(pynvml, name), side_effect=getattr(self, name))
                monkeypatch.setattr(pynvml, name, spec)

    def _known(self, handle):
        assert self.started > 0, "NVML was not started"
        if self.gpus[handle].get("lost"):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return self.gpus[handle]

    def nvmlInit(self):
        self.started += 1

    def nvmlShutdown(self):
        self.started -= 1

    def nvmlDeviceGetCount(self):
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        self._known(index)
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid):
        for number, gpu in enumerate(self.gpus):
            if gpu["uuid"] == uuid:
                return number
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetUUID(self, handle):
        return self._known(handle)["uuid"]

    def nvmlDeviceGetName(self, handle):
        return "H200"

    def nvmlDeviceGetMemoryInfo(self, handle, version=None):
        if self._known(handle).get("unified"):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        used = self._known(handle)["used"]
        return SimpleNamespace(total=100 << 30, used=used() if callable(used) else used)

    def nvmlDeviceGetComputeMode(self, handle):
        mode = self._known(handle).get("mode", pynvml.NVML_COMPUTEMODE_DEFAULT)
        if mode is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return mode

    def nvmlDeviceGetMigMode(self, handle):
        if "sliced" not in self._known(handle):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [self._known(handle)["sliced"], 0]

    def nvmlDeviceGetUtilizationRates(self, handle):
        return SimpleNamespace(gpu=self._known(handle)["busy"])

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self._known(handle)["processes"]]


@pytest.fixture
def nvml(monkeypatch):
    gpus = [{"uuid": uuid, "used": 1000 * MIB, "busy": 50, "processes": []} for uuid in UUIDS]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake = FakeNvml(monkeypatch, gpus)
    yield fake
    assert fake.started == 0, "NVML was not shut down"


# ---- NVML


def test_gpus_are_what_nvml_says(nvml):
    assert cuda.gpus() == [cuda.Gpu(n, uuid, "H200", 100 << 30, 1000 * MIB) for n, uuid in enumerate(UUIDS)]


def test_a_lost_gpu_does_not_hide_the_others(nvml):
    nvml.gpus[0]["lost"] = True
    assert [gpu.uuid for gpu in cuda.gpus()] == UUIDS[1:]


def test_a_gpu_whose_memory_nvml_does_not_tell_is_refused_by_name(nvml, monkeypatch):
    monkeypatch.setattr(cuda, "torch_has_cuda", lambda: True)
    nvml.gpus[0]["unified"] = nvml.gpus[1]["unified"] = True
    for wanted in ({}, {"gpus": 1}, {"devices": ["cuda:0"]}):
        with pytest.raises(DeviceError, match=r"cannot measure GPU 0 yet, a H200") as refused:
            find_devices(**wanted)
        assert "gpus=0" in refused.value.hint
    nvml.gpus[1]["unified"] = False
    assert [info.uuid for info in find_devices()] == UUIDS[1:]


@pytest.mark.parametrize(
    ("visible", "number", "found"),
    [(None, 1, 1), (None, UUIDS[1], 1), (None, "0", 0), ("1", 0, 1), ("1,0", "1", 1), (None, 7, 0), ("", 0, None)],
)
def test_an_actor_has_the_gpu_that_ray_gave_it_also_if_it_sees_others(nvml, monkeypatch, visible, number, found):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    gpu = cuda.assigned_gpu(number)
    assert (gpu.index if gpu is not None else None) == found


def test_a_gpu_in_slices_says_so(nvml):
    nvml.gpus[1]["sliced"] = pynvml.NVML_DEVICE_MIG_ENABLE
    assert [gpu.sliced for gpu in cuda.gpus()] == [False, True]


def test_without_a_driver_there_is_no_gpu(nvml, monkeypatch):
    error = pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    monkeypatch.setattr(pynvml, "nvmlInit", mock.Mock(side_effect=error))
    assert cuda.gpus() == []


@pytest.mark.parametrize(
    ("mode", "width"),
    [("DEFAULT", 32), ("EXCLUSIVE_PROCESS", 1), ("PROHIBITED", 1), (None, 32)],
)
def test_where_only_one_process_may_use_a_gpu_it_gets_one_lane(nvml, monkeypatch, mode, width):
    monkeypatch.setattr(cuda, "torch_has_cuda", lambda: True)
    nvml.gpus[0]["mode"] = getattr(pynvml, f"NVML_COMPUTEMODE_{mode}") if mode else None
    assert find_devices(gpus=1)[0].max_width == width


def test_a_watch_outlives_the_loss_of_its_gpu(nvml):
    watch = cuda.GpuWatch(UUIDS[1])
    assert (watch.used(), watch.utilization(), watch.is_lost()) == (1000 * MIB, 0.5, False)
    nvml.gpus[1]["lost"] = True
    assert (watch.used(), watch.utilization(), watch.is_lost()) == (None, None, True)
    watch.close()


# ---- the allocator


class FakeTorch:
    """What `CudaMemory` uses of torch: an allocator that takes segments of 20 MiB and knows its limit in bytes."""

    TOTAL = 99 << 30

    def __init__(self):
        self.calls = []
        self.allocated = self.reserved = self.peak = 0
        self.limit = None
        self.broken = self.captures = self.profiles = False
        self.end_error = None
        self.expands = True
        self.refusals = 0
        self.free = 40 << 30
        self.OutOfMemoryError = torch.OutOfMemoryError
        self.float16 = torch.float16
        self.autograd = SimpleNamespace(_profiler_enabled=lambda: self.profiles)
        device = SimpleNamespace(total_memory=self.TOTAL)
        self.cuda = SimpleNamespace(
            CUDAGraph=self.make_graph_class(),
            is_current_stream_capturing=lambda: self.captures,
            init=lambda: self.calls.append("init"),
            empty_cache=self.empty_cache,
            synchronize=self.synchronize,
            get_device_properties=mock.create_autospec(torch.cuda.get_device_properties, return_value=device),
            mem_get_info=lambda device: (self.free, self.TOTAL),
            memory_reserved=mock.create_autospec(torch.cuda.memory_reserved, side_effect=lambda _: self.reserved),
            set_per_process_memory_fraction=mock.create_autospec(
                torch.cuda.set_per_process_memory_fraction, side_effect=self.set_fraction
            ),
        )
        self._C = SimpleNamespace(
            _cuda_memoryStats=lambda device: {
                "allocated_bytes": {"all": {"current": self.allocated, "peak": self.peak}},
                "reserved_bytes": {"all": {"current": self.reserved, "peak": self.reserved}},
                "num_ooms": self.refusals,
            },
            _accelerator_setAllocatorSettings=self.calls.append,
            _cuda_resetPeakMemoryStats=lambda device: setattr(self, "peak", self.allocated),
            _cuda_clearCublasWorkspaces=lambda: self.calls.append("clear"),
        )

    def make_graph_class(self):
        fake = self

        class CUDAGraph:
            def capture_begin(self):
                pass

            def capture_end(self):
                if fake.end_error is not None:
                    raise fake.end_error

        return CUDAGraph

    def ones(self, *shape, device):
        assert device == "cuda:0"
        assert self.calls[0] == "init"
        if self.calls[-1] == "expandable_segments:True" and not self.expands:
            raise RuntimeError("CUDA driver error: operation not supported")
        return torch.ones(*shape)

    def empty(self, *shape, dtype, device):
        assert device == "cuda:0"
        return torch.empty(*shape, dtype=dtype)

    def _fused_sdp_choice(self, *tensors):
        assert all(tensor.numel() == 0 for tensor in tensors), "costs no memory"
        self.calls.append("order attention")
        return torch._fused_sdp_choice(*tensors)

    def set_fraction(self, fraction, device):
        # As torch does it, in C++: rounded down.
        assert type(fraction) is float
        assert 0.0 <= fraction <= 1.0
        self.limit = int(fraction * self.TOTAL)

    def empty_cache(self):
        self.reserved = -(-self.allocated // (20 * MIB)) * 20 * MIB

    def synchronize(self):
        if self.broken:
            raise RuntimeError("CUDA error: device-side assert triggered")

    def take(self, count):
        self.allocated += count
        self.peak = max(self.peak, self.allocated)
        self.reserved = max(self.reserved, -(-self.allocated // (20 * MIB)) * 20 * MIB)


@pytest.fixture
def lane(monkeypatch, nvml, tmp_path):
    """The memory of a lane on the second GPU, not started."""
    fake = FakeTorch()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", UUIDS[1])
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # Where a lane waits for CuPy to be imported.
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    with mock.patch.dict(sys.modules, torch=fake):
        memory = cuda_memory.CudaMemory()
    return memory, fake


def test_the_context_is_what_nvml_books_on_the_process_less_what_the_allocator_holds(lane, nvml):
    memory, fake = lane
    fake.reserved = 20 * MIB
    fake.empty_cache = fake.cuda.empty_cache = lambda: None
    nvml.gpus[1]["processes"] = [(1, 9000 * MIB), (os.getpid(), 540 * MIB)]
    assert memory.start() == 520 * MIB + cuda.ROUNDING
    assert memory.read() == (0, 0)
    assert memory.held() == 540 * MIB


def test_where_nvml_does_not_see_the_process_its_context_is_what_the_gpu_has_lost(lane, nvml):
    memory, _ = lane
    readings = iter([1000 * MIB, 1470 * MIB])
    nvml.gpus[1]["used"] = lambda: next(readings)
    nvml.gpus[1]["processes"] = [(1, 9000 * MIB)]
    assert memory.start() == 470 * MIB + cuda.ROUNDING


def test_a_context_that_seems_small_since_others_returned_memory_meanwhile_is_guessed(lane, nvml):
    memory, _ = lane
    readings = iter([1000 * MIB, 1170 * MIB])
    nvml.gpus[1]["used"] = lambda: next(readings)
    assert memory.start() == cuda.CONTEXT_GUESS + cuda.ROUNDING


@pytest.mark.parametrize("processes", [[], [(os.getpid(), None)], [(os.getpid(), 90_000 * MIB)]])
def test_where_nothing_likely_is_seen_the_context_is_guessed(lane, nvml, processes):
    memory, _ = lane
    nvml.gpus[1]["processes"] = processes
    assert memory.start() == cuda.CONTEXT_GUESS + cuda.ROUNDING


def test_without_nvml_the_context_is_guessed(lane, nvml):
    memory, _ = lane
    nvml.gpus[1]["lost"] = True
    assert memory.start() == cuda.CONTEXT_GUESS + cuda.ROUNDING


@pytest.mark.parametrize("room", [1, 64 * MIB, 64 * MIB + 1, (7 << 30) + 12345, 50 << 30])
def test_the_cap_is_the_quota_less_the_context_to_the_byte(lane, nvml, room):
    memory, fake = lane
    nvml.gpus[1]["processes"] = [(os.getpid(), 500 * MIB)]
    context = memory.start() - cuda.ROUNDING
    assert memory.set_quota(context + room) == context + room
    assert max(room, MIB) <= fake.limit <= max(room, MIB) + 1
    assert memory.room() == max(room, MIB)


def test_a_quota_beyond_the_gpu_caps_nothing(lane):
    memory, fake = lane
    memory.start()
    memory.set_quota(500 << 30)
    assert fake.limit == fake.TOTAL


@pytest.mark.parametrize("later", [50 * MIB, 500 * MIB])
def test_of_two_threads_that_change_the_cap_at_once_none_leaves_it_as_it_was_before(lane, later):
    memory, fake = lane
    context = memory.start() - cuda.ROUNDING
    memory.set_quota(context + 100 * MIB)
    put, in_between = fake.set_fraction, [lambda: memory.set_quota(context + later)]

    def set_fraction(fraction, device):
        # Between a trial's end and its call, the lane's main thread has heard of another quota.
        while in_between:
            in_between.pop()()
        put(fraction, device)

    fake.cuda.set_per_process_memory_fraction = set_fraction
    memory.trim(others_run=True)
    assert fake.limit == pytest.approx(later, abs=1)


def test_a_shrinking_quota_gives_the_cache_back_and_says_what_is_still_held(lane):
    memory, fake = lane
    context = memory.start() - cuda.ROUNDING
    fake.take(30 * MIB)
    fake.reserved = 400 * MIB
    assert memory.set_quota(context + 50 * MIB) == context + 50 * MIB
    assert fake.reserved == 40 * MIB
    assert memory.set_quota(context + 10 * MIB) == context + 40 * MIB
    assert memory.held() == context + 40 * MIB


def test_the_allocator_takes_segments_that_shrink_by_pages_where_the_driver_can(lane):
    memory, fake = lane
    memory.start()
    assert [call for call in fake.calls if "segments" in call] == ["expandable_segments:True"]


def test_where_the_driver_cannot_the_allocator_stays_as_it_is(lane):
    memory, fake = lane
    fake.expands = False
    memory.start()
    assert [call for call in fake.calls if "segments" in call] == [
        "expandable_segments:True",
        "expandable_segments:False",
    ]


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_settings_of_the_users_for_the_allocator_are_left_alone(lane, monkeypatch, name):
    memory, fake = lane
    monkeypatch.setenv(name, "max_split_size_mb:128")
    memory.start()
    assert not [call for call in fake.calls if "segments" in call]


@pytest.mark.parametrize(("sees", "alone"), [(False, True), (True, False)])
def test_lanes_come_up_one_after_the_other_where_nvml_cannot_tell_them_apart(lane, monkeypatch, tmp_path, sees, alone):
    memory, fake = lane
    monkeypatch.setattr(cuda_memory, "FIRST_NAMESPACE", os.stat("/proc/self/ns/pid").st_ino + (not sees))
    held = []

    def init():
        fake.calls.append("init")
        for path in tmp_path.glob("*.lock"):
            with path.open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    held.append(path)

    fake.cuda.init = init
    memory.start()
    assert bool(held) is alone


def test_a_lane_comes_up_where_the_file_system_has_no_locks(lane, monkeypatch):
    def flock(file, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    memory, _ = lane
    monkeypatch.setattr(cuda_memory, "FIRST_NAMESPACE", 0)
    monkeypatch.setattr(fcntl, "flock", flock)
    assert memory.start() > 0


def test_a_peak_that_the_trial_has_the_allocator_forget_is_still_its_peak(lane):
    memory, fake = lane
    memory.start()
    fake.take(300 * MIB)
    fake.allocated = 100 * MIB
    # As torch.cuda.reset_peak_memory_stats() does.
    fake._C._cuda_resetPeakMemoryStats(0)
    assert fake.peak == 100 * MIB
    assert memory.read() == (100 * MIB, 300 * MIB)
    memory.reset_peak()
    assert memory.read() == (100 * MIB, 100 * MIB)


def test_a_trial_sees_its_own_peaks_though_the_lane_resets_them(lane):
    memory, fake = lane
    memory.start()

    def peak():
        # As torch.cuda.max_memory_allocated() does.
        return fake._C._cuda_memoryStats(0)["allocated_bytes"]["all"]["peak"]

    fake.take(300 * MIB)
    fake.allocated = 100 * MIB
    memory.reset_peak()
    assert (memory.read()[1], peak()) == (100 * MIB, 300 * MIB)
    fake.take(50 * MIB)
    assert (memory.read()[1], peak()) == (150 * MIB, 300 * MIB)
    fake._C._cuda_resetPeakMemoryStats(0)
    assert peak() == 150 * MIB
    fake.take(10 * MIB)
    memory.reset_peak()
    fake.allocated = 0
    # As when the trial has run out of memory with several micro-batches at once.
    memory.trim(others_run=True)
    memory.reset_peak()
    assert peak() == 160 * MIB
    memory.forget_peaks()
    assert peak() == 0, "of the next trial"


def test_a_library_that_found_no_engine_has_run_out_of_memory_if_some_was_refused(lane):
    memory, fake = lane
    memory.start()
    error = RuntimeError("GET was unable to find an engine to execute this computation")
    assert out_of_memory(error, memory.is_short) == (False, None)
    fake.refusals = 1
    assert out_of_memory(error, memory.is_short) == (True, None)
    memory.trim(others_run=False)
    assert out_of_memory(error, memory.is_short) == (False, None)
    fake.free = 3 * MIB
    assert out_of_memory(error, memory.is_short) == (True, None)
    assert out_of_memory(RuntimeError("shapes do not match"), memory.is_short) == (False, None)


def test_workspaces_of_streams_that_are_not_used_any_more_go(lane):
    memory, fake = lane
    memory.start()
    fake.calls.clear()
    memory.shrink()
    assert fake.calls == ["clear"]


def test_workspaces_go_with_the_last_resident(lane):
    memory, fake = lane
    memory.start()
    fake.calls.clear()
    memory.trim(others_run=True)
    assert fake.calls == []
    memory.trim(others_run=False)
    assert fake.calls == ["clear"]


def test_while_a_graph_is_captured_nothing_is_returned(lane):
    memory, fake = lane
    context = memory.start()
    memory.set_quota(context + 100 * MIB)
    fake.take(90 * MIB)
    fake.allocated = 10 * MIB
    graph = fake.cuda.CUDAGraph()
    graph.capture_begin()
    assert memory.is_recording()
    assert memory.set_quota(context + 50 * MIB) == context - cuda.ROUNDING + 100 * MIB
    graph.capture_end()
    assert not memory.is_recording()
    assert memory.set_quota(context + 50 * MIB) == context + 50 * MIB
    fake.captures = True
    assert memory.is_recording()


def test_a_profiler_is_seen(lane):
    memory, fake = lane
    memory.start()
    assert not memory.is_profiled()
    fake.profiles = True
    assert memory.is_profiled()


def test_a_lane_in_which_a_capture_was_left_open_takes_no_other_trial(lane):
    memory, fake = lane
    memory.start()
    fake.cuda.CUDAGraph().capture_begin()
    assert not memory.is_sound()


def test_after_a_failed_capture_a_process_is_sound_as_long_as_it_can_draw(lane):
    memory, fake = lane
    memory.start()
    fake.rand = lambda *shape, device: pytest.fail("no capture has failed")
    assert memory.is_sound()
    fake.end_error = RuntimeError("capture was invalidated")
    graph = fake.cuda.CUDAGraph()
    graph.capture_begin()
    with pytest.raises(RuntimeError, match="invalidated"):
        graph.capture_end()
    fake.rand = lambda *shape, device: torch.rand(*shape)
    assert memory.is_sound()
    fake.rand = mock.Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory."))
    assert memory.is_sound()
    fake.rand = mock.Mock(side_effect=RuntimeError("Offset increment outside graph capture encountered unexpectedly."))
    assert not memory.is_sound()


def test_what_went_wrong_behind_a_trials_back_is_raised_at_its_end(lane):
    memory, fake = lane
    memory.start()
    memory.synchronize()
    assert memory.is_sound()
    fake.broken = True
    with pytest.raises(RuntimeError, match="device-side assert"):
        memory.synchronize()
    assert not memory.is_sound()


# ---- what CUDA says when memory runs out

REFUSED = (
    "CUDA out of memory. Tried to allocate {}. GPU 0 has a total capacity of 139.80 GiB of which 119.29 GiB is free. "
    "Including non-PyTorch memory, this process has 0 bytes memory in use. 1.00 GiB allowed; Of the allocated memory "
    "320.00 MiB is allocated by PyTorch, and 512 bytes is reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize(
    ("text", "refused"),
    [(REFUSED.format("512.00 MiB"), 512 * MIB), (REFUSED.format("1.50 GiB"), 1536 * MIB)],
)
def test_the_bytes_refused_are_told_from_the_other_figures(text, refused):
    assert out_of_memory(torch.OutOfMemoryError(text)) == (True, refused)
