"""Memory of a lane on the CPU: measured, capped, given back."""

import json
import os
import resource
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

import cotune
from cotune.demand import MIB
from cotune.sharing import cpu
from cotune.sharing.cpu import CpuMemory

PRELUDE = """
import json, os
import numpy as np
from cotune.sharing.cpu import CpuMemory
from cotune.sharing.raised import out_of_memory
MIB = 1 << 20
def refusal(make):
    try:
        make()
    except BaseException as error:
        return [type(error).__name__, *out_of_memory(error)]
    return None
def tell(*what):
    print(json.dumps(what))
memory = CpuMemory(1)
"""


def in_own_process(code, imports=""):
    """What a fresh process tells: quotas and peaks are those of a whole process."""
    done = subprocess.run(
        [sys.executable, "-c", imports + PRELUDE + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=Path(cotune.__file__).parents[1],
        env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("mib", [64, 256])
def test_the_peak_of_an_allocation_is_measured_within_3_percent(mib):
    peak, after = in_own_process(f"""
        memory.start()
        before, _ = memory.read()
        memory.reset_peak()
        np.ones({mib} * MIB, dtype=np.uint8).sum()
        after, peak = memory.read()
        tell(peak - before, after - before)
    """)
    assert peak == pytest.approx(mib * MIB, rel=0.03)
    assert after < 2 * MIB


def test_what_the_process_was_before_exec_does_not_count():
    (peak,) = in_own_process("""
        import sys
        if "AGAIN" not in os.environ:
            held = b"x" * (256 * MIB)
            os.execve(sys.executable, sys.orig_argv, {**os.environ, "AGAIN": "yes"})
        memory.start()
        before, _ = memory.read()
        memory.reset_peak()
        np.ones(64 * MIB, dtype=np.uint8).sum()
        tell(memory.read()[1] - before)
    """)
    assert peak == pytest.approx(64 * MIB, rel=0.03)


@pytest.mark.parametrize("mib", [64, 256])
def test_what_is_held_is_measured_within_3_percent(mib):
    (held,) = in_own_process(f"""
        memory.start()
        before, _ = memory.read()
        held = np.ones({mib} * MIB, dtype=np.uint8)
        tell(memory.read()[0] - before)
    """)
    assert held == pytest.approx(mib * MIB, rel=0.03)


def test_what_is_reserved_but_never_touched_is_not_in_use():
    (held,) = in_own_process("""
        memory.start()
        before, _ = memory.read()
        held = np.empty(256 * MIB, dtype=np.uint8)
        tell(memory.read()[0] - before)
    """)
    assert held < 4 * MIB


def test_a_new_peak_starts_from_what_is_in_use_now():
    first, second = in_own_process("""
        memory.start()
        before, _ = memory.read()
        memory.reset_peak()
        np.ones(128 * MIB, dtype=np.uint8).sum()
        first = memory.read()[1] - before
        memory.reset_peak()
        np.ones(32 * MIB, dtype=np.uint8).sum()
        tell(first, memory.read()[1] - before)
    """)
    assert first == pytest.approx(128 * MIB, rel=0.03)
    assert second == pytest.approx(32 * MIB, rel=0.06)


def test_reading_does_not_start_a_new_peak():
    first, second = in_own_process("""
        memory.start()
        np.ones(128 * MIB, dtype=np.uint8).sum()
        tell(memory.read()[1], memory.read()[1])
    """)
    assert second == pytest.approx(first, abs=MIB)


def test_a_bare_lane_costs_something():
    (context,) = in_own_process("tell(memory.start())")
    assert MIB < context < 500 * MIB


def test_no_handler_that_may_be_refused_memory_is_called_where_the_process_aborts():
    before, after = in_own_process("""
        import signal
        signal.signal(signal.SIGABRT, lambda number, frame: None)
        handled = lambda: int(open("/proc/self/status").read().split("SigCgt:")[1].split()[0], 16) >> 5 & 1
        before = handled()
        CpuMemory(1)
        tell(before, handled())
    """)
    assert (before, after) == (1, 0)


@pytest.mark.parametrize(
    ("library", "made", "told"),
    [
        ("numpy", "np.ones(512 * MIB, dtype=np.uint8)", ["MemoryError", True, 512 * MIB]),
        ("torch", "torch.ones(128 * MIB)", ["RuntimeError", True, 512 * MIB]),
        # Python does not say how much.
        ("builtins", "bytearray(512 * MIB)", ["MemoryError", True, None]),
    ],
)
def test_what_is_beyond_the_quota_is_refused_and_libraries_say_how_much(library, made, told):
    pytest.importorskip(library)
    (refused,) = in_own_process(
        f"""
        memory.set_quota(memory.start() + 64 * MIB)
        tell(refusal(lambda: {made}))
        """,
        f"import {library}\n",
    )
    assert refused == told


@pytest.mark.parametrize("cores", [2, 64])
def test_four_pools_with_a_native_thread_per_core_fit_beside_a_small_quota(cores):
    started, held = in_own_process(f"""
        import ctypes
        from cotune.sharing.inside.stacks import Stacks
        os.sched_getaffinity = lambda pid: set(range({cores}))
        memory.set_quota(memory.start() + 8 * MIB)
        Stacks().shrink()
        before = memory.read()[0]
        libc, thread = ctypes.CDLL(None), ctypes.c_ulong()
        start = lambda: libc.pthread_create(ctypes.byref(thread), None, libc.pause, None)
        tell([start() for _ in range(4 * {cores})].count(0), memory.read()[0] - before)
    """)
    assert started == 4 * cores
    assert held < 8 * MIB


def test_within_the_quota_nothing_is_refused():
    (refused,) = in_own_process("""
        memory.set_quota(memory.start() + 256 * MIB)
        tell(refusal(lambda: np.ones(250 * MIB, dtype=np.uint8)))
    """)
    assert refused is None


def test_what_was_refused_once_is_given_with_a_larger_quota():
    before, quota, after = in_own_process("""
        context = memory.start()
        memory.set_quota(context + 64 * MIB)
        before = refusal(lambda: np.ones(512 * MIB, dtype=np.uint8))
        quota = memory.set_quota(context + 600 * MIB) - context
        tell(before is not None, quota, refusal(lambda: np.ones(512 * MIB, dtype=np.uint8)))
    """)
    assert before
    assert quota == 600 * MIB
    assert after is None


def test_a_library_may_reserve_any_amount_while_it_is_loaded_and_nothing_is_free_after_it():
    within, alone, after = in_own_process("""
        import mmap
        held = []
        def reserve(count):
            held.append(mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        context = memory.start()
        memory.set_quota(context + 64 * MIB)
        with memory.loading():
            with memory.loading():
                pass
            within = refusal(lambda: reserve(700 * MIB))
        alone = refusal(lambda: np.ones(32 * MIB, dtype=np.uint8))
        tell(within, alone, refusal(lambda: np.ones(400 * MIB, dtype=np.uint8)))
    """)
    assert within is None
    assert alone is None
    assert after is not None


@pytest.mark.parametrize(
    "meanwhile", ["memory.set_quota(quota)", "memory.uncap(); memory.cap()", "memory.trim(others_run=True)"]
)
def test_what_happens_to_lane_mates_puts_no_cap_back_on_a_library_that_is_being_loaded(meanwhile):
    within, after = in_own_process(f"""
        import resource
        quota = memory.start() + 64 * MIB
        memory.set_quota(quota)
        with memory.loading():
            {meanwhile}
            within = resource.getrlimit(resource.RLIMIT_DATA)[0]
        tell(within == resource.RLIM_INFINITY, resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY)
    """)
    assert (within, after) == (True, False)


def test_what_an_allocator_maps_without_access_counts_from_where_it_becomes_writable():
    mapped, small, large = in_own_process("""
        import ctypes, mmap
        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_long]
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        memory.set_quota(memory.start() + 64 * MIB)
        arena = libc.mmap(None, 1 << 30, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        writable = lambda count: libc.mprotect(arena, count, mmap.PROT_READ | mmap.PROT_WRITE) == 0
        tell(arena != ctypes.c_void_p(-1).value, writable(32 * MIB), writable(512 * MIB))
    """)
    assert (mapped, small, large) == (True, True, False)


def test_of_two_threads_that_start_the_first_to_run_leaves_the_cap_lifted_for_the_other():
    first, second = in_own_process("""
        import resource
        limit = lambda: resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY
        memory.set_quota(memory.start() + 64 * MIB)
        memory.uncap()
        memory.uncap()
        memory.cap()
        first = limit()
        memory.cap()
        tell(first, limit())
    """)
    assert (first, second) == (True, False)


def test_a_thread_that_starts_raises_the_cap_and_does_not_lift_it_for_lane_mates():
    within, of_process, after = in_own_process("""
        import resource
        limit = lambda: resource.getrlimit(resource.RLIMIT_DATA)[0]
        memory.set_quota(memory.start() + 64 * MIB)
        before = limit()
        memory.uncap(8 * MIB)
        within = limit() - before
        # For a process that starts beside it, it is lifted.
        memory.uncap()
        memory.cap()
        of_process = limit()
        memory.cap()
        tell(within, of_process, limit() - before)
    """)
    assert (within, after) == (8 * MIB, 0)
    assert of_process == resource.RLIM_INFINITY


def test_what_a_lane_holds_is_what_it_costs_and_a_quota_below_that_does_not_hold():
    context, bare, held, told = in_own_process("""
        context = memory.start()
        bare = memory.held()
        kept = np.ones(128 * MIB, dtype=np.uint8)
        memory.read()
        tell(context, bare, memory.held(), memory.set_quota(context + 16 * MIB))
    """)
    assert bare == pytest.approx(context, abs=MIB)
    assert held - context == pytest.approx(128 * MIB, rel=0.03)
    assert told == pytest.approx(held, abs=MIB)


def test_a_member_of_many_groups_is_measured_too():
    if os.geteuid() != 0:
        pytest.skip("only root may join groups")
    (level,) = in_own_process("""
        import os
        os.setgroups(range(100_000, 100_400))
        tell(CpuMemory(1).read()[0])
    """)
    assert level > MIB


def test_a_refusal_within_nested_python_calls_says_that_memory_ran_out():
    kind, is_memory, _ = in_own_process("""
        import sys
        sys.setrecursionlimit(10**8)
        def nest(depth):
            return (nest(depth - 1), depth) if depth else None
        memory.set_quota(memory.start() + 8 * MIB)
        memory.cap()
        tell(*refusal(lambda: nest(3_000_000)))
    """)
    assert kind in ("SystemError", "MemoryError")
    assert is_memory


def test_the_cap_can_be_lifted_where_small_objects_have_filled_all_memory():
    (is_lifted,) = in_own_process("""
        import resource
        def fill(held):
            for size in (1 << 20, 1 << 16, 1 << 12, *range(500, -1, -4)):
                try:
                    while True:
                        held = held, bytes(size)
                except MemoryError:
                    pass
            # Numbers that are not cached, and tuples, of which Python keeps some for later use.
            number = 10**6
            try:
                while True:
                    held = held, number, float(number)
                    number += 1
            except MemoryError:
                memory.relax()
        memory.set_quota(memory.start() + 8 * MIB)
        memory.cap()
        fill(())
        tell(resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY)
    """)
    assert is_lifted


def test_onednn_that_is_refused_memory_for_its_code_says_that_memory_ran_out():
    pytest.importorskip("torch")
    before, told = in_own_process(
        """
        torch.set_num_threads(1)
        image, kernel = torch.randn(2, 24, 32, 32), torch.randn(25, 24, 3, 3)
        room_for_tensors = [bytes(60_000) for _ in range(400)]
        memory.set_quota(memory.start() + 8 * MIB)
        memory.cap()
        before = memory.is_short()
        held, size = [], 8 * MIB
        while size >= 60_000:
            try:
                held.append(bytes(size))
            except MemoryError:
                size //= 2
        room_for_tensors.clear()
        told = None
        try:
            torch.nn.functional.conv2d(image, kernel)
        except RuntimeError as error:
            told = str(error), out_of_memory(error, memory.is_short)
        held.clear()
        tell(before, told)
        """,
        imports="import torch",
    )
    assert not before
    if told is None:
        pytest.skip("this CPU needs no code of oneDNN for that")
    assert told[1][0], told


def test_after_running_out_of_memory_the_process_goes_on_under_the_same_quota():
    refused, relaxed, small, again = in_own_process("""
        memory.set_quota(memory.start() + 64 * MIB)
        def fill():
            held = []
            while True:
                held.append(np.ones(16 * MIB, dtype=np.uint8))
        refused = refusal(fill)
        memory.relax()
        relaxed = refusal(lambda: np.ones(300 * MIB, dtype=np.uint8))
        memory.trim(others_run=False)
        small = refusal(lambda: np.ones(48 * MIB, dtype=np.uint8))
        tell(refused, relaxed, small, refusal(lambda: np.ones(300 * MIB, dtype=np.uint8)))
    """)
    assert refused == ["MemoryError", True, 16 * MIB]
    assert relaxed is None
    assert small is None
    assert again == ["MemoryError", True, 300 * MIB]


def test_a_trial_that_catches_that_memory_ran_out_and_keeps_what_it_made_ends_all_the_same():
    told, kept = in_own_process("""
        memory.set_quota(memory.start() + 64 * MIB)
        kept = []
        def fill():
            while True:
                kept.append(bytes(40_000))
        told = refusal(fill)
        memory.trim(others_run=False)
        tell(told, len(kept))
    """)
    assert told[0] == "MemoryError"
    assert kept > 1000


def test_trimming_returns_what_small_objects_left_in_the_heap():
    held, after = in_own_process("""
        memory.start()
        before, _ = memory.read()
        held = [bytearray(b"x") * 2000 for _ in range(32_000)]
        level = memory.read()[0] - before
        del held
        memory.trim(others_run=False)
        tell(level, memory.read()[0] - before)
    """)
    assert held > 55 * MIB
    assert after < 4 * MIB


def test_a_quota_above_the_limit_of_the_machine_is_capped_by_it():
    (refused,) = in_own_process("""
        import resource
        context = memory.start()
        resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
        memory.set_quota(8 << 30)
        tell(refusal(lambda: np.ones(2 << 30, dtype=np.uint8)))
    """)
    assert refused == ["MemoryError", True, 2 << 30]


def test_busy_seconds_count_the_share_of_a_whole_device():
    one, two = CpuMemory(1), CpuMemory(2)
    assert one.busy_seconds() == pytest.approx(2 * two.busy_seconds(), rel=0.1)


def test_busy_seconds_of_child_processes_count_once_they_have_ended_and_until_then_nobody_can_tell():
    memory = CpuMemory(1)
    before = memory.busy_seconds()
    burn = "import time\nwhile time.process_time() < 0.3: pass\ninput()"
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE) as child:
        assert memory.busy_seconds() is None
        child.communicate(b"\n")
    assert memory.busy_seconds() - before > 0.25


def test_of_two_threads_that_change_the_cap_at_once_none_leaves_it_as_the_other_did_not_want_it():
    lifted, ended = in_own_process("""
        import resource
        memory.start()
        memory.set_quota(memory.held() + 64 * MIB)
        set_limit, seen = resource.setrlimit, []

        def late(which, limits):
            # Between its look and its call another thread has put the cap back.
            if not seen:
                seen.append(limits[0])
                memory.cap()
            set_limit(which, limits)

        resource.setrlimit = late
        memory.uncap()
        tell(seen[0], resource.getrlimit(resource.RLIMIT_DATA)[0])
    """)
    assert lifted == resource.RLIM_INFINITY
    assert ended != resource.RLIM_INFINITY


def test_of_two_threads_that_put_the_cap_back_at_once_none_leaves_it_lifted():
    before, after = in_own_process("""
        import resource, sys
        memory.set_quota(memory.start() + 64 * MIB)
        limit = lambda: resource.getrlimit(resource.RLIMIT_DATA)[0]
        before, after, left = limit(), [], 0

        def traced(frame, event, _):
            global left
            if frame.f_code is CpuMemory.cap.__code__:
                frame.f_trace_opcodes = True
                left -= event == "opcode"
                if event == "opcode" and left < 0:
                    # Here the other thread has the interpreter.
                    sys.settrace(None)
                    frame.f_trace = None
                    memory.cap()
            return traced

        # At each of the steps that it takes to put the cap back.
        while left < 0 or not after:
            left = len(after)
            memory.uncap(8 * MIB)
            memory.uncap()
            sys.settrace(traced)
            memory.cap()
            sys.settrace(None)
            after.append(limit())
        after.pop()
        tell(before, after)
    """)
    assert len(after) > 10
    assert set(after) == {before}


def test_whichever_allocator_was_preloaded_gives_back_what_an_ended_trial_left_with_it():
    said = []
    libc = SimpleNamespace(
        malloc_trim=lambda pad: said.append("glibc"),
        MallocExtension_ReleaseFreeMemory=lambda: said.append("tcmalloc"),
        mallctl=lambda name, *_: said.append(name.decode()),
    )
    for give_back in cpu._what_gives_back(libc):
        give_back()
    assert said == ["glibc", "tcmalloc", "thread.tcache.flush", "arena.4096.purge"]
    assert cpu._what_gives_back(SimpleNamespace()) == []


def test_where_the_peak_cannot_be_reset_it_is_the_largest_so_far():
    refuses = """
import os
opens = os.open
def refuse(path, *how):
    if str(path).endswith("clear_refs"):
        raise OSError(30, "Read-only file system", path)
    return opens(path, *how)
os.open = refuse
"""
    (before, peak, after) = in_own_process(
        """
        memory.start()
        before = memory.read()[0]
        block = np.ones(64 * MIB, np.uint8)
        del block
        peak = memory.read()[1]
        memory.reset_peak()
        tell(before, peak, memory.read()[1])
        """,
        refuses,
    )
    assert peak - before == pytest.approx(64 * MIB, rel=0.05)
    assert after == pytest.approx(peak, rel=0.05)
