"""Which devices a run gets, and what is said where it cannot have them."""

import os
from dataclasses import replace

import numpy as np
import pytest

from cotune.demand import GIB
from cotune.errors import DeviceError, InputError
from cotune.sharing import cuda, delays, devices
from cotune.sharing.cuda import Gpu
from cotune.sharing.devices import MAX_WIDTH, find_devices

UUIDS = ["GPU-aaaa1111-0000", "GPU-aaaa2222-0000", "GPU-bbbb3333-0000", "GPU-cccc4444-0000"]
CORES = 8


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Eight cores, 20 GiB free, no GPU, nothing said about visible ones."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(CORES)))
    monkeypatch.setattr(devices, "available_memory", lambda: 20 * GIB)
    monkeypatch.setattr(cuda, "gpus", list)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def four_gpus(monkeypatch):
    found = [Gpu(n, uuid, "H200", 100 * GIB, n * GIB) for n, uuid in enumerate(UUIDS)]
    monkeypatch.setattr(cuda, "gpus", lambda: found)
    monkeypatch.setattr(cuda, "torch_has_cuda", lambda: True)
    return found


def uuids(found):
    return [device.uuid for device in found]


# ---- the CPU


def test_without_a_gpu_the_cpu_is_the_device():
    (cpu,) = find_devices()
    assert (cpu.name, cpu.capacity, cpu.cores, cpu.is_cuda) == ("cpu:0", 16 * GIB, CORES, False)


def test_no_gpus_asked_for_is_the_cpu(four_gpus):
    assert [device.name for device in find_devices(gpus=0)] == ["cpu:0"]


@pytest.mark.parametrize(
    ("text", "name", "size"),
    [
        ("cpu", "cpu:0", 16 * GIB),
        ("cpu:0", "cpu:0", 16 * GIB),
        ("cpu:0@4GiB", "cpu:0", 4 * GIB),
        ("cpu:3@4 GiB", "cpu:3", 4 * GIB),
        ("cpu@512MB", "cpu:0", 512_000_000),
        ("cpu:0@1073741824", "cpu:0", GIB),
    ],
)
def test_a_cpu_device_is_read(text, name, size):
    (cpu,) = find_devices(devices=[text])
    assert (cpu.name, cpu.capacity, cpu.total) == (name, size, 0)


def test_cpu_devices_without_a_size_share_the_free_memory_and_the_cores():
    first, second = find_devices(devices=["cpu:0", "cpu:1"])
    assert first.capacity == second.capacity == 8 * GIB
    assert first.cores == second.cores == CORES // 2


def test_threads_bound_the_useful_width_of_a_cpu_device():
    (cpu,) = find_devices(devices=["cpu:0"], threads=3)
    assert cpu.max_width == CORES // 3


@pytest.mark.parametrize(("counted", "width"), [(True, MAX_WIDTH), (False, 0)])
def test_an_idle_cpu_device_may_have_more_lanes_where_it_can_be_told_that_it_is(monkeypatch, counted, width):
    monkeypatch.setattr(delays, "are_counted", lambda: counted)
    (cpu,) = find_devices(devices=["cpu:0"])
    assert cpu.idle_width == width


def test_a_cpu_device_has_at_least_one_core_and_one_lane():
    found = find_devices(devices=[f"cpu:{n}@1GiB" for n in range(12)], threads=16)
    assert {(cpu.cores, cpu.max_width) for cpu in found} == {(1, 1)}


def test_more_memory_than_there_is_is_refused_with_what_there_is():
    with pytest.raises(DeviceError) as refused:
        find_devices(devices=["cpu:0@64GiB"])
    assert "64.0 GiB" in refused.value.message
    assert "20.0 GiB" in refused.value.message
    assert "16.0 GiB" in refused.value.hint


def test_more_memory_than_there_is_is_refused_also_when_devices_ask_for_it_together():
    with pytest.raises(DeviceError):
        find_devices(devices=["cpu:0@15GiB", "cpu:1@15GiB"])


@pytest.mark.parametrize("text", ["cpu:0@lots", "cpu:0@0", "cpu:0@-4GiB"])
def test_a_size_that_is_none_is_refused(text):
    with pytest.raises(InputError, match="is not a size"):
        find_devices(devices=[text])


@pytest.mark.parametrize("text", ["", "cpu:", "cpu:0@", "cpu:x", "tpu:0", "cuda", "cuda:x", "0", 0, None], ids=repr)
def test_what_is_no_device_is_refused_with_what_is(text):
    with pytest.raises(DeviceError) as refused:
        find_devices(devices=[text])
    assert repr(text) in refused.value.message
    assert "'cpu:0@4GiB'" in refused.value.hint


def test_devices_may_come_one_by_one():
    assert [info.name for info in find_devices(devices=(f"cpu:{n}@1GiB" for n in range(2)))] == ["cpu:0", "cpu:1"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("cpu:0", "is not a list of devices"),
        (5, "is not a list of devices"),
        ([], "names no device"),
        ((), "no device"),
    ],
    ids=repr,
)
def test_devices_must_be_a_list_with_something_in_it(given, told):
    with pytest.raises(DeviceError, match=told):
        find_devices(devices=given)


@pytest.mark.parametrize("given", [["cpu:0@1GiB", "cpu:0@2GiB"], ["cpu", "cpu:0"], ["cpu:1", "cpu:01"]], ids=repr)
def test_a_cpu_device_named_twice_is_refused(given):
    with pytest.raises(DeviceError, match="twice"):
        find_devices(devices=given)


def test_gpus_and_devices_together_are_refused():
    with pytest.raises(DeviceError) as refused:
        find_devices(gpus=1, devices=["cpu:0"])
    assert "gpus=1" in refused.value.message
    assert "give one of them" in refused.value.hint


# ---- GPUs


def test_every_visible_gpu_is_used_by_default(four_gpus):
    found = find_devices()
    assert [device.name for device in found] == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]
    assert uuids(found) == UUIDS
    assert all(device.is_cuda for device in found)


def test_what_others_use_of_a_gpu_is_not_ours(four_gpus):
    first, second, *_ = find_devices()
    assert first.total == second.total == 100 * GIB
    assert first.capacity == 100 * GIB - cuda.RESERVE
    assert second.capacity == 99 * GIB - cuda.RESERVE


def test_a_gpu_that_others_fill_has_no_room_but_is_there(monkeypatch):
    monkeypatch.setattr(cuda, "gpus", lambda: [Gpu(0, UUIDS[0], "H200", 100 * GIB, 100 * GIB)])
    monkeypatch.setattr(cuda, "torch_has_cuda", lambda: True)
    assert find_devices()[0].capacity == 0


def test_gpus_that_torch_cannot_use_are_left_alone_unless_asked_for(four_gpus, monkeypatch):
    monkeypatch.setattr(cuda, "torch_has_cuda", lambda: False)
    assert [device.name for device in find_devices()] == ["cpu:0"]
    with pytest.raises(DeviceError, match="no torch here") as refused:
        find_devices(gpus=1)
    assert "CUDA build" in refused.value.hint


def test_a_slice_of_a_gpu_is_refused_by_name(four_gpus, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1234")
    with pytest.raises(DeviceError, match="MIG-1234"):
        find_devices()


def test_of_gpus_that_are_divided_none_is_used(four_gpus, monkeypatch):
    found = [replace(gpu, sliced=gpu.index in (0, 2)) for gpu in cuda.gpus()]
    monkeypatch.setattr(cuda, "gpus", lambda: found)
    assert [device.name for device in find_devices()] == ["cuda:1", "cuda:3"]
    assert [device.uuid for device in find_devices(gpus=1)] == [found[1].uuid]
    assert [device.uuid for device in find_devices(gpus=[3])] == [found[3].uuid]
    for wanted in ({"gpus": [2]}, {"gpus": 3}, {"devices": ["cuda:2"]}):
        with pytest.raises(DeviceError, match=r"GPU \d is divided") as refused:
            find_devices(**wanted)
        assert "gpus=0" in refused.value.hint


def test_where_all_gpus_are_divided_that_is_said(four_gpus, monkeypatch):
    found = [replace(gpu, sliced=True) for gpu in cuda.gpus()]
    monkeypatch.setattr(cuda, "gpus", lambda: found)
    with pytest.raises(DeviceError, match="GPU 0 is divided"):
        find_devices()
    assert [device.name for device in find_devices(gpus=0)] == ["cpu:0"]


def test_a_device_too_small_for_a_process_is_refused():
    with pytest.raises(DeviceError, match="less than a process needs") as refused:
        find_devices(devices=["cpu:0@64"])
    assert "unit" in refused.value.hint


def test_a_count_takes_the_first_gpus(four_gpus):
    assert uuids(find_devices(gpus=2)) == UUIDS[:2]


def test_gpus_are_chosen_by_position(four_gpus):
    assert uuids(find_devices(gpus=[3, 0])) == [UUIDS[3], UUIDS[0]]
    assert [device.name for device in find_devices(gpus=(3, 0))] == ["cuda:3", "cuda:0"]
    assert uuids(find_devices(gpus=range(1, 3))) == UUIDS[1:3]


def test_gpus_are_chosen_by_numpy_integers(four_gpus):
    assert uuids(find_devices(gpus=[np.int64(2)])) == [UUIDS[2]]


def test_gpus_are_chosen_by_uuid_or_its_beginning(four_gpus):
    assert uuids(find_devices(gpus=[UUIDS[2], "GPU-cccc"])) == [UUIDS[2], UUIDS[3]]


def test_gpus_are_chosen_by_position_written_as_text(four_gpus):
    assert uuids(find_devices(gpus=["1"])) == [UUIDS[1]]


def test_the_cores_are_shared_by_the_gpus_asked_for(four_gpus):
    assert [device.cores for device in find_devices(gpus=2)] == [CORES // 2] * 2


def test_gpus_named_as_devices_are_the_same_as_gpus_counted(four_gpus):
    assert find_devices(devices=["cuda:0", "cuda:1"]) == find_devices(gpus=2)


@pytest.mark.parametrize("text", ["cuda:2", "gpu:2", UUIDS[2]])
def test_a_gpu_is_named_as_a_device(four_gpus, text):
    assert uuids(find_devices(devices=[text])) == [UUIDS[2]]


def test_gpus_and_cpus_go_together_as_devices(four_gpus):
    assert [device.name for device in find_devices(devices=["cuda:1", "cpu:0@1GiB"])] == ["cuda:1", "cpu:0"]


def test_more_gpus_than_visible_is_refused_with_the_number_to_write(four_gpus):
    with pytest.raises(DeviceError) as refused:
        find_devices(gpus=5)
    assert "gpus=5 asks for 5 GPUs" in refused.value.message
    assert "4 GPUs are visible" in refused.value.message
    assert "gpus=4" in refused.value.hint
    assert "CUDA_VISIBLE_DEVICES is 'not set'" in refused.value.hint


def test_gpus_where_there_are_none_is_refused_with_what_to_type():
    with pytest.raises(DeviceError) as refused:
        find_devices(gpus=2)
    assert "no GPU is visible" in refused.value.message
    assert "devices=['cpu:0@4GiB', 'cpu:1@4GiB']" in refused.value.hint


def test_a_gpu_device_where_there_are_none_is_refused_by_its_name():
    with pytest.raises(DeviceError) as refused:
        find_devices(devices=["cuda:0"])
    assert "'cuda:0'" in refused.value.message


@pytest.mark.parametrize(
    "given",
    [[0, 0], [0, UUIDS[0]], ["GPU-bbbb", 2], ["0", 0], ["cuda:1", 1]],
    ids=["position", "uuid", "prefix", "text", "device"],
)
def test_a_gpu_chosen_twice_is_refused(four_gpus, given):
    with pytest.raises(DeviceError, match="twice"):
        find_devices(gpus=given)


def test_a_gpu_named_twice_as_a_device_is_refused(four_gpus):
    with pytest.raises(DeviceError, match="names cuda:2 twice"):
        find_devices(devices=["cuda:2", UUIDS[2]])


@pytest.mark.parametrize("entry", [9, -1, "GPU-dddd", "GPU-aaaa", "", "first", None, 1.5], ids=repr)
def test_a_gpu_that_is_not_there_or_not_one_is_refused(four_gpus, entry):
    with pytest.raises(DeviceError, match="asks for GPU"):
        find_devices(gpus=[entry])


@pytest.mark.parametrize(("given", "names"), [(np.int64(2), "01"), (np.array([1, 3]), "13")], ids=["count", "which"])
def test_gpus_may_be_numbers_of_numpy(four_gpus, given, names):
    assert [info.name for info in find_devices(gpus=given)] == [f"cuda:{name}" for name in names]


@pytest.mark.parametrize("given", ["0,1", "all", 2.0, True, {0}], ids=repr)
def test_gpus_must_be_a_count_or_a_list(four_gpus, given):
    with pytest.raises(DeviceError, match="neither a count nor a list"):
        find_devices(gpus=given)


@pytest.mark.parametrize("given", [[], -1], ids=repr)
def test_gpus_that_name_none_are_refused(four_gpus, given):
    with pytest.raises(DeviceError, match="names no GPU"):
        find_devices(gpus=given)


# ---- CUDA_VISIBLE_DEVICES


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", [0]),
        ("2,0", [2, 0]),
        (" 1 , 3 ", [1, 3]),
        (UUIDS[3], [3]),
        ("GPU-bbbb", [2]),
        (f"{UUIDS[3]},0", [3, 0]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,9,1", [0]),
        ("0,-1,1", [0]),
        ("1,1", [1]),
        ("GPU-aaaa", []),
        ("0,GPU-dddd,1", [0]),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(four_gpus, monkeypatch, value, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert cuda.visible_gpus() == [four_gpus[n] for n in expected]


def test_all_gpus_are_visible_where_nothing_is_said(four_gpus):
    assert cuda.visible_gpus() == four_gpus


def test_positions_count_among_the_visible_gpus(four_gpus, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert uuids(find_devices()) == [UUIDS[3], UUIDS[1]]
    assert uuids(find_devices(gpus=1)) == [UUIDS[3]]
    assert uuids(find_devices(gpus=[1])) == [UUIDS[1]]
    assert uuids(find_devices(devices=["cuda:1"])) == [UUIDS[1]]


def test_a_hidden_gpu_cannot_be_chosen_by_uuid(four_gpus, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    with pytest.raises(DeviceError) as refused:
        find_devices(gpus=[UUIDS[0]])
    assert "CUDA_VISIBLE_DEVICES is '3,1'" in refused.value.hint


def test_hidden_gpus_leave_the_cpu(four_gpus, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert [device.name for device in find_devices()] == ["cpu:0"]


def test_a_lane_sees_its_own_gpu_only():
    assert cuda.lane_environment(UUIDS[1])["CUDA_VISIBLE_DEVICES"] == UUIDS[1]


@pytest.mark.parametrize(("chosen", "told"), [(None, "false"), ("true", "true")])
def test_jax_in_a_lane_takes_memory_as_it_needs_it_unless_the_user_has_said_otherwise(monkeypatch, chosen, told):
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE", raising=False)
    if chosen is not None:
        monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", chosen)
    assert cuda.lane_environment(UUIDS[0])["XLA_PYTHON_CLIENT_PREALLOCATE"] == told


def test_where_no_gpu_is_wanted_none_is_asked_for(monkeypatch):
    monkeypatch.setattr(devices.cuda, "visible_gpus", lambda: pytest.fail("asked"))
    assert [info.name for info in find_devices(0)] == ["cpu:0"]
