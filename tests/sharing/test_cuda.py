"""A real GPU: found, measured, capped. Whatever touches CUDA does so in a process forked for it, as lanes are."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import cotune
from cotune.demand import MIB
from cotune.sharing import cuda
from cotune.sharing.devices import find_devices
from cotune.sharing.mps import MpsDaemon

pytestmark = pytest.mark.gpu

ROOT = Path(cotune.__file__).parents[1]
# Nothing said is what lanes choose by themselves.
ALLOCATORS = {"native": "expandable_segments:False", "expandable": ""}

# Imports torch once, then forks a process for each piece of code; like the zygote, it never touches CUDA.
SERVER = """
import json, os, signal, sys, traceback
import torch, torch._dynamo
from cotune.sharing.cuda import ROUNDING
from cotune.sharing.inside.cuda_memory import CudaMemory, _used_here
from cotune.sharing.raised import out_of_memory
MIB = 1 << 20
def block(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda:0")
def refusal(make):
    try:
        make()
    except BaseException as error:
        return [type(error).__name__, *out_of_memory(error)]
    return None
for line in sys.stdin:
    asked = json.loads(line)
    told, tell_it = os.pipe()
    child = os.fork()
    if child == 0:
        os.environ.update(asked["environ"])
        signal.alarm(40)
        def tell(*what):
            os.write(tell_it, json.dumps(what).encode())
        try:
            exec(asked["code"], {**globals(), "tell": tell})
        except BaseException:
            os.write(tell_it, json.dumps({"error": traceback.format_exc()}).encode())
        os._exit(0)
    os.close(tell_it)
    with open(told, "rb") as answer:
        text = answer.read().decode()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps({"status": status, "text": text, "touched": torch.cuda.is_initialized()}), flush=True)
"""


@pytest.fixture(scope="module")
def ask():
    """Asks a server; there is one for each way the allocator can be set up, which is for good."""
    running = {}

    def end(server):
        with contextlib.suppress(OSError):
            server.stdin.close()
        server.wait(30)
        server.stdout.close()

    def ask(allocator, asked):
        if allocator not in running:
            environ = {**os.environ, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
            environ |= {"PYTORCH_CUDA_ALLOC_CONF": ALLOCATORS[allocator], "OPENBLAS_NUM_THREADS": "1"}
            running[allocator] = subprocess.Popen(
                [sys.executable, "-c", SERVER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                env=environ,
                start_new_session=True,
            )
        server = running[allocator]
        try:
            server.stdin.write(json.dumps(asked) + "\n")
            server.stdin.flush()
            return json.loads(server.stdout.readline())
        except BaseException:
            # What it says later would be taken for the next answer, and what it has forked may hang as well.
            os.killpg(server.pid, signal.SIGKILL)
            end(running.pop(allocator))
            raise

    yield ask
    for server in running.values():
        end(server)


@pytest.fixture
def gpu():
    """The first GPU we may use."""
    if not (visible := cuda.visible_gpus()):
        pytest.skip("CUDA_VISIBLE_DEVICES hides every GPU")
    return visible[0]


@pytest.fixture
def in_lane(gpu, ask):
    """Runs code in a fresh process with the environment of a lane; gives what it tells."""

    def run(code, allocator="native", **environ):
        asked = {"code": textwrap.dedent(code), "environ": cuda.lane_environment(gpu.uuid) | environ}
        answer = ask(allocator, asked)
        assert answer["status"] == 0, answer
        assert not answer["touched"]
        told = json.loads(answer["text"])
        assert isinstance(told, list), told["error"]
        return told

    return run


@pytest.fixture(params=ALLOCATORS)
def allocator(request):
    return request.param


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
    """NVML may map CUDA's library; what starts CUDA opens the device of unified memory."""
    code = (
        "import os, sys; from cotune.sharing.devices import find_devices; assert find_devices()[0].is_cuda; "
        "opened = {os.path.realpath(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd')}; "
        "print(sorted(sys.modules.keys() & {'torch', 'cupy'}), [name for name in opened if 'uvm' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "[] []\n"), done.stderr


@pytest.mark.parametrize("form", ["index", "uuid", "beginning"])
def test_cuda_itself_takes_a_visible_device_for_the_one_we_do(gpu, in_lane, monkeypatch, form):
    name = {"index": str(gpu.index), "uuid": gpu.uuid, "beginning": gpu.uuid[:12]}[form]
    # NVML counts in the order of the bus, and so must CUDA where an index is to mean the same.
    count, uuid = in_lane(
        "torch.cuda.init(); tell(torch.cuda.device_count(), str(torch.cuda.get_device_properties(0).uuid))",
        CUDA_VISIBLE_DEVICES=name,
        CUDA_DEVICE_ORDER="PCI_BUS_ID",
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", name)
    (ours,) = cuda.visible_gpus()
    assert count == 1
    assert ours.uuid.removeprefix("GPU-") == uuid.removeprefix("GPU-")


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
    context, held, used = in_lane("""
        before = _used_here()
        memory = CudaMemory()
        context = memory.start() - ROUNDING
        kept = block(256)
        memory.read()
        tell(context, memory.held(), _used_here() - before)
    """)
    assert 50 * MIB < context < 2048 * MIB
    # What the device has lost, in all, is what the lane says it holds.
    assert held == pytest.approx(used, rel=0.1)


def test_small_tensors_fit_a_quota_that_is_just_theirs(in_lane, allocator):
    (refused,) = in_lane(
        """
        memory = CudaMemory()
        memory.set_quota(memory.start() + 22 * MIB)
        def fill():
            small = [torch.empty(300_000, dtype=torch.uint8, device="cuda:0") for _ in range(10)]
            large = [torch.empty(3 * MIB, dtype=torch.uint8, device="cuda:0") for _ in range(6)]
        tell(refusal(fill))
    """,
        allocator,
    )
    assert refused is None


def test_workspaces_of_residents_are_counted_and_bounded(in_lane):
    one, four, later, none = in_lane("""
        import threading
        memory = CudaMemory()
        memory.start()
        go, ready = threading.Event(), threading.Semaphore(0)
        def resident():
            a = torch.randn(512, 512, device="cuda:0", requires_grad=True)
            (a @ a).sum().backward()
            torch.cuda.synchronize()
            del a
            ready.release()
            go.wait(60)
        def residents(count):
            threads = [threading.Thread(target=resident) for _ in range(count)]
            for thread in threads:
                thread.start()
            for _ in threads:
                ready.acquire()
            held = memory.read()[0]
            go.set()
            for thread in threads:
                thread.join()
            go.clear()
            return held
        one, four = residents(1), residents(4)
        for _ in range(6):
            later = residents(2)
        memory.trim(others_run=False)
        tell(one, four, later, memory.read()[0])
    """)
    # One for the thread of the backward pass, one for each resident; ended threads leave theirs to the next, but before
    # Python 3.13 `join()` may return before the last has done so: one more.
    workspace = one / 2
    assert four <= 6 * workspace + MIB
    assert later <= four + workspace
    assert none == 0


def test_the_counters_are_exact(in_lane, allocator):
    before, held, held_peak, after, peak = in_lane(
        """
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
    """,
        allocator,
    )
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
        kept = weight * 2
        kept.sum().backward()
        del kept
        after, peak = memory.read()
        tell(after - before, peak - before)
    """)
    assert growth == 64 * MIB
    # What was kept, and the gradient, which the thread of the backward pass allocates meanwhile.
    assert peak >= 128 * MIB


def test_the_quota_refuses_what_is_beyond_it_and_says_how_much(in_lane, allocator):
    (refused,) = in_lane(
        """
        memory = CudaMemory()
        memory.set_quota(memory.start() + 256 * MIB)
        tell(refusal(lambda: block(512)))
    """,
        allocator,
    )
    assert refused == ["OutOfMemoryError", True, 512 * MIB]


def test_within_the_quota_nothing_is_refused(in_lane, allocator):
    (refused,) = in_lane(
        """
        memory = CudaMemory()
        memory.set_quota(memory.start() + 256 * MIB)
        tell(refusal(lambda: block(240)))
    """,
        allocator,
    )
    assert refused is None


def test_after_a_refusal_the_process_goes_on_under_the_same_quota(in_lane, allocator):
    first, small, again, sound = in_lane(
        """
        memory = CudaMemory()
        memory.set_quota(memory.start() + 256 * MIB)
        def fill():
            held = []
            while True:
                held.append(block(32))
        first = refusal(fill)
        memory.relax()
        memory.trim(others_run=False)
        small = refusal(lambda: block(200).fill_(1))
        tell(first, small, refusal(lambda: block(512)), memory.is_sound())
    """,
        allocator,
    )
    assert first == ["OutOfMemoryError", True, 32 * MIB]
    assert small is None
    assert again == ["OutOfMemoryError", True, 512 * MIB]
    assert sound


def test_a_larger_quota_gives_what_was_refused(in_lane, allocator):
    before, after = in_lane(
        """
        memory = CudaMemory()
        context = memory.start()
        memory.set_quota(context + 256 * MIB)
        before = refusal(lambda: block(512))
        memory.set_quota(context + 640 * MIB)
        tell(before is None, refusal(lambda: block(512)))
    """,
        allocator,
    )
    assert not before
    assert after is None


def test_shrinking_gives_cached_memory_back_to_the_gpu(in_lane, allocator):
    reserved_before, reserved_after, quota = in_lane(
        """
        memory = CudaMemory()
        context = memory.start()
        memory.set_quota(context + 1024 * MIB)
        block(512)
        before = torch.cuda.memory_reserved(0)
        quota = memory.set_quota(context + 64 * MIB)
        tell(before, torch.cuda.memory_reserved(0), quota - context)
    """,
        allocator,
    )
    assert reserved_before >= 512 * MIB
    assert reserved_after <= 64 * MIB
    assert quota == 64 * MIB


def test_a_quota_below_what_is_held_says_what_holds(in_lane):
    (quota,) = in_lane("""
        memory = CudaMemory()
        context = memory.start() - ROUNDING
        memory.set_quota(context + 1024 * MIB)
        kept = block(512)
        tell(memory.set_quota(context + 64 * MIB) - context)
    """)
    assert quota >= 512 * MIB


def test_what_is_held_is_context_and_cache(in_lane):
    context, held = in_lane("""
        memory = CudaMemory()
        context = memory.start() - ROUNDING
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


# ---- MPS


@pytest.fixture(scope="module")
def mps(needs_mps):
    """A daemon of our own on the first GPU we may use."""
    daemon = MpsDaemon(cuda.visible_gpus()[0].uuid)
    yield daemon
    daemon.close()


def test_an_mps_client_is_measured_and_capped_like_any_lane(mps, in_lane):
    context, counted, refused = in_lane(
        """
        memory = CudaMemory()
        context = memory.start()
        memory.set_quota(context + 256 * MIB)
        kept = block(64)
        tell(context, memory.read()[0], refusal(lambda: block(512)))
    """,
        **mps.environment(),
    )
    assert mps.servers()
    assert context < 2048 * MIB
    assert counted == 64 * MIB
    assert refused == ["OutOfMemoryError", True, 512 * MIB]


def test_an_mps_client_has_no_more_memory_and_multiprocessors_than_it_was_given(mps, in_lane):
    code = """
        refused = refusal(lambda: block(6000))
        tell(torch.cuda.get_device_properties(0).multi_processor_count, refused and refused[:2])
    """
    # Not set by cotune: lanes have their quotas, and may use all multiprocessors. What it would do is asked of this
    # driver.
    limits = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4096M"}
    (all_of_them, free), (half, limited) = (
        in_lane(code, **mps.environment()),
        in_lane(code, **mps.environment(), **limits),
    )
    assert free is None
    assert limited == ["OutOfMemoryError", True]
    assert half == pytest.approx(all_of_them / 2, rel=0.1)
