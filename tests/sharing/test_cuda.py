"""A real GPU: found, measured, capped. Whatever touches CUDA does so in a process of its own."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import cotune
from cotune.demand import MIB
from cotune.sharing import cuda
from cotune.sharing.devices import find_devices

pytestmark = pytest.mark.gpu

PRELUDE = """
import json, os
from cotune.sharing.cuda import CudaMemory
from cotune.sharing.memory import out_of_memory
import torch
MIB = 1 << 20
def block(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda:0")
def refusal(make):
    try:
        make()
    except BaseException as error:
        return [type(error).__name__, *out_of_memory(error)]
    return None
def tell(*what):
    print(json.dumps(what))
"""


@pytest.fixture
def gpu():
    """The first GPU we may use."""
    if not (visible := cuda.visible_gpus()):
        pytest.skip("CUDA_VISIBLE_DEVICES hides every GPU")
    pytest.importorskip("torch")
    return visible[0]


@pytest.fixture
def in_lane(gpu):
    """Runs code in a fresh process with the environment of a lane; gives what it tells."""

    def run(code):
        done = subprocess.run(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            cwd=Path(cotune.__file__).parents[1],
            env={**os.environ, **cuda.lane_environment(gpu.uuid), "PYTORCH_NVML_BASED_CUDA_CHECK": "1"},
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


# ---- finding


def nvidia_smi(*fields):
    done = subprocess.run(
        ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return [tuple(field.strip() for field in line.split(",")) for line in done.stdout.splitlines()]


def test_the_gpus_found_are_those_of_nvidia_smi():
    assert [(str(gpu.index), gpu.uuid, gpu.name) for gpu in cuda.gpus()] == nvidia_smi("index", "uuid", "name")


def test_a_gpu_has_the_memory_that_nvidia_smi_says():
    for gpu, (total,) in zip(cuda.gpus(), nvidia_smi("memory.total"), strict=True):
        assert gpu.total == pytest.approx(int(total) * MIB, rel=0.01)
        assert 0 <= gpu.used < gpu.total


def test_a_run_gets_the_visible_gpus(gpu):
    assert [device.uuid for device in find_devices()] == [gpu.uuid for gpu in cuda.visible_gpus()]


def test_finding_gpus_does_not_touch_cuda(gpu):
    code = (
        "import sys; from cotune.sharing.devices import find_devices; assert find_devices()[0].is_cuda; "
        "assert 'torch' not in sys.modules; assert 'libcuda.so' not in open('/proc/self/maps').read()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=Path(cotune.__file__).parents[1])


def test_a_watch_says_what_is_used_and_how_busy_the_gpu_is(gpu):
    watch = cuda.GpuWatch(gpu.uuid)
    assert 0 < watch.used() < gpu.total
    assert 0.0 <= watch.utilization() <= 1.0
    watch.close()


# ---- a lane


def test_a_lane_sees_its_own_gpu_only(gpu, in_lane):
    count, uuid = in_lane("tell(torch.cuda.device_count(), str(torch.cuda.get_device_properties(0).uuid))")
    assert count == 1
    assert uuid.removeprefix("GPU-") == gpu.uuid.removeprefix("GPU-")


def test_the_cuda_context_is_measured(in_lane):
    (context,) = in_lane("tell(CudaMemory().start())")
    assert 50 * MIB < context < 2048 * MIB


def test_the_counters_are_exact(in_lane):
    before, held, held_peak, after, peak = in_lane("""
        memory = CudaMemory()
        memory.start()
        before, _ = memory.read()
        kept = block(64)
        memory.reset_peak()
        held, held_peak = memory.read()
        extra = block(256)
        del extra
        after, peak = memory.read()
        tell(before, held, held_peak, after, peak)
    """)
    assert held - before == 64 * MIB
    assert held_peak == held
    assert after == held
    assert peak - after == 256 * MIB


def test_what_the_backward_thread_allocates_is_counted(in_lane):
    growth, peak = in_lane("""
        memory = CudaMemory()
        memory.start()
        weight = torch.zeros(16 * MIB, device="cuda:0", requires_grad=True)
        (weight * 2).sum().backward()
        weight.grad = None
        memory.reset_peak()
        before, _ = memory.read()
        (weight * 2).sum().backward()
        after, peak = memory.read()
        tell(after - before, peak - before)
    """)
    assert growth == 64 * MIB
    assert peak >= 128 * MIB


def test_the_quota_refuses_what_is_beyond_it_and_says_how_much(in_lane):
    (refused,) = in_lane("""
        memory = CudaMemory()
        memory.set_quota(memory.start() + 256 * MIB)
        tell(refusal(lambda: block(512)))
    """)
    assert refused == ["OutOfMemoryError", True, 512 * MIB]


def test_within_the_quota_nothing_is_refused(in_lane):
    (refused,) = in_lane("""
        memory = CudaMemory()
        memory.set_quota(memory.start() + 256 * MIB)
        tell(refusal(lambda: block(240)))
    """)
    assert refused is None


def test_after_a_refusal_the_process_goes_on_under_the_same_quota(in_lane):
    first, small, again, sound = in_lane("""
        memory = CudaMemory()
        memory.set_quota(memory.start() + 256 * MIB)
        def fill():
            held = []
            while True:
                held.append(block(32))
        first = refusal(fill)
        memory.relax()
        memory.trim(shared=False)
        small = refusal(lambda: block(200).fill_(1))
        tell(first, small, refusal(lambda: block(512)), memory.is_sound())
    """)
    assert first == ["OutOfMemoryError", True, 32 * MIB]
    assert small is None
    assert again == ["OutOfMemoryError", True, 512 * MIB]
    assert sound


def test_a_larger_quota_gives_what_was_refused(in_lane):
    before, after = in_lane("""
        memory = CudaMemory()
        context = memory.start()
        memory.set_quota(context + 256 * MIB)
        before = refusal(lambda: block(512))
        memory.set_quota(context + 640 * MIB)
        tell(before is None, refusal(lambda: block(512)))
    """)
    assert not before
    assert after is None


def test_shrinking_gives_cached_memory_back_to_the_gpu(in_lane):
    reserved_before, reserved_after, quota = in_lane("""
        memory = CudaMemory()
        context = memory.start()
        memory.set_quota(context + 1024 * MIB)
        block(512)
        before = torch.cuda.memory_reserved(0)
        quota = memory.set_quota(context + 64 * MIB)
        tell(before, torch.cuda.memory_reserved(0), quota - context)
    """)
    assert reserved_before >= 512 * MIB
    assert reserved_after <= 64 * MIB
    assert quota == 64 * MIB


def test_a_quota_below_what_is_held_says_what_holds(in_lane):
    (quota,) = in_lane("""
        memory = CudaMemory()
        context = memory.start()
        memory.set_quota(context + 1024 * MIB)
        kept = block(512)
        tell(memory.set_quota(context + 64 * MIB) - context)
    """)
    assert quota >= 512 * MIB


def test_what_is_held_is_context_and_cache(in_lane):
    context, held = in_lane("""
        memory = CudaMemory()
        context = memory.start()
        kept = block(512)
        memory.read()
        tell(context, memory.held())
    """)
    assert held >= context + 512 * MIB


def test_after_a_device_side_assert_the_context_is_not_sound(in_lane):
    before, after = in_lane("""
        memory = CudaMemory()
        memory.start()
        before = memory.is_sound()
        try:
            torch.zeros(4, device="cuda:0")[torch.tensor([9], device="cuda:0")].sum().item()
        except Exception:
            pass
        tell(before, memory.is_sound())
    """)
    assert before
    assert not after


def test_a_process_that_imported_torch_and_asked_for_cuda_can_still_fork_lanes(in_lane):
    available, status = in_lane("""
        available = torch.cuda.is_available()
        assert not torch.cuda.is_initialized()
        child = os.fork()
        if child == 0:
            try:
                memory = CudaMemory()
                memory.start()
                os._exit(0 if (block(8).fill_(3).sum().item() == 3 * 8 * MIB) else 1)
            except BaseException:
                import traceback
                traceback.print_exc()
                os._exit(2)
        tell(available, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    assert available
    assert status == 0


def test_two_processes_forked_from_one_use_the_gpu_at_once(in_lane):
    (statuses,) = in_lane("""
        def child(ready, go):
            try:
                memory = CudaMemory()
                memory.start()
                kept = block(64).fill_(1)
                os.write(ready, b"x")
                os.read(go, 1)
                os._exit(0 if kept.sum().item() == 64 * MIB else 1)
            except BaseException:
                os._exit(2)
        pids, starters, said = [], [], []
        for _ in range(2):
            (ready, tell_ready), (wait, go) = os.pipe(), os.pipe()
            pid = os.fork()
            if pid == 0:
                child(tell_ready, wait)
            os.close(tell_ready)
            os.close(wait)
            pids.append(pid)
            starters.append(go)
            said.append(os.read(ready, 1) == b"x")
        assert all(said), said
        for go in starters:
            os.write(go, b"x")
        tell([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids])
    """)
    assert statuses == [0, 0]
