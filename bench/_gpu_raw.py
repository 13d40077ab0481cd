"""The figures of `gpu.py` about CUDA itself: contexts, counters, workspaces, allocators, micro-batches.

Each is measured in a process that has nothing else to do; a lane's environment is set where a lane would have it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _common import keep, median
from _gpu_models import MIB, SIZES

Found = dict[str, Any]

CONTEXT = """
import json, sys, time
began = time.monotonic()
import torch
imported = time.monotonic()
torch.cuda.init()
torch.zeros(1, device="cuda")
torch.cuda.synchronize()
there = time.monotonic()
square = torch.ones(64, 64, device="cuda")
(square @ square).sum().item()
print(json.dumps({
    "import_torch_ms": round(1e3 * (imported - began)), "context_ms": round(1e3 * (there - imported)),
    "first_product_ms": round(1e3 * (time.monotonic() - there)), "reserved_mib": torch.cuda.memory_reserved() >> 20,
}), flush=True)
sys.stdin.read()
"""


def lane_environ() -> dict[str, str]:
    """As a lane on the first GPU has it."""
    from cotune.sharing import cuda

    return cuda.lane_environment(cuda.visible_gpus()[0].uuid)


class Holding:
    """Processes that have told one line and now wait, holding what they hold."""

    def __init__(self, code: str, count: int = 1, **environ: str) -> None:
        self.all = [
            subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=Path(__file__).parent,
                env=os.environ | lane_environ() | environ,
            )
            for _ in range(count)
        ]
        self.told = [json.loads(process.stdout.readline()) for process in self.all if process.stdout is not None]

    def close(self) -> None:
        for process in self.all:
            process.kill()
            process.wait()


def watch_gpu() -> Any:
    from cotune.sharing import cuda

    return cuda.GpuWatch(cuda.visible_gpus()[0].uuid)


def _settled(watch: Any, below: int) -> None:
    until = time.monotonic() + 10
    while (watch.used() or 0) > below and time.monotonic() < until:
        time.sleep(0.01)


def context(options: Found) -> Found:
    """What a process costs before it does anything, with kernels loaded when they are used, and all at once."""
    watch, found = watch_gpu(), {}
    base = watch.used() or 0
    for mode in ("LAZY", "EAGER"):
        held = Holding(CONTEXT, CUDA_MODULE_LOADING=mode)
        found[mode] = held.told[0] | {"mib_by_nvml": ((watch.used() or 0) - base) // MIB}
        held.close()
        keep(options, found)
        _settled(watch, base + 8 * MIB)
    return found


_GROWTH = """
import json, sys
from _gpu_models import MIB, settle, training
from cotune.sharing import cuda
from cotune.sharing.inside import cuda_memory
memory = cuda_memory.CudaMemory()
context = memory.start() - cuda.ROUNDING
before = cuda_memory._used_here() or 0
step = training("%s", False)
for _ in range(20):
    step()
settle("cuda:0")
memory.read()
grown = (cuda_memory._used_here() or 0) - before
print(json.dumps({
    "context_mib": context // MIB, "seen_by_nvml": cuda_memory._booked_on_us() is not None,
    "counted_mib": memory._reserved // MIB, "uncounted_mib": (grown - memory._reserved) // MIB,
}), flush=True)
sys.stdin.read()
"""


def growth(options: Found) -> Found:
    """What training loads onto the device, such as kernels of cuDNN, that no counter of torch's shows."""
    found = {}
    for model in SIZES:
        held = Holding(_GROWTH % model)
        found[model] = held.told[0]
        keep(options, found)
        held.close()
    return found


def _microseconds(call: Callable[[], Any], count: int = 300) -> float:
    call()
    began = time.perf_counter()
    for _ in range(count):
        call()
    return round((time.perf_counter() - began) / count * 1e6, 2)


def costs(_options: Found) -> Found:
    """What a boundary and a turn change call, in microseconds."""
    os.environ.update(lane_environ())
    from cotune.sharing.inside.context import Context, Home
    from cotune.sharing.inside.cuda_memory import CudaMemory

    memory = CudaMemory()
    memory.start()
    one, other = (Context(seed, Home()) for seed in (1, 2))
    one.enter()

    def change() -> None:
        one.leave()
        other.enter()
        other.leave()
        one.enter()

    return {
        "read_counters_us": _microseconds(memory.read),
        "reset_peak_us": _microseconds(memory.reset_peak),
        "synchronize_idle_us": _microseconds(memory.synchronize),
        "context_change_us": round(_microseconds(change) / 2, 2),
    }


def workspaces(_options: Found) -> Found:
    """Bytes of cuBLAS's workspaces for one, two and four threads that have multiplied, and once they were cleared."""
    os.environ.update(lane_environ())
    import torch

    from cotune.sharing.inside.cuda_memory import CudaMemory

    memory = CudaMemory()
    memory.start()
    found: Found = {}
    for count in (1, 2, 4):
        go, ready = threading.Event(), threading.Semaphore(0)

        def multiply(go: threading.Event = go, ready: threading.Semaphore = ready) -> None:
            a = torch.randn(512, 512, device="cuda", requires_grad=True)
            (a @ a).sum().backward()
            torch.cuda.synchronize()
            del a
            ready.release()
            go.wait(60)

        threads = [threading.Thread(target=multiply) for _ in range(count)]
        for thread in threads:
            thread.start()
        for _ in threads:
            ready.acquire()
        found[f"{count} threads, MiB"] = round(memory.read()[0] / MIB, 2)
        go.set()
        for thread in threads:
            thread.join()
    memory.trim(others_run=False)
    found["cleared, MiB"] = round(memory.read()[0] / MIB, 2)
    return found


_ALLOCATOR = """
import json, os, sys, time
import torch
from _gpu_models import MIB, SIZES, settle, training
found = {}
for model in SIZES:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step = training(model, False)
    for _ in range(20):
        step()
    settle("cuda:0")
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    found[model] = {"allocated_mib": round(allocated / MIB, 1), "beyond_mib": round((reserved - allocated) / MIB, 1)}
    del step
blocks = [torch.empty(24 * MIB, dtype=torch.uint8, device="cuda") for _ in range(100)]
settle("cuda:0")
del blocks
began = time.monotonic()
torch.cuda.empty_cache()
found["empty_cache of 100 blocks, ms"] = round(1e3 * (time.monotonic() - began), 2)
print(json.dumps(found), flush=True)
sys.stdin.read()
"""


def allocators(options: Found) -> Found:
    """What is reserved beyond what is allocated at the peak: trials are measured by the one, capped by the other."""
    found = {}
    for name, settings in (("native", ""), ("expandable segments", "expandable_segments:True")):
        held = Holding(_ALLOCATOR, PYTORCH_CUDA_ALLOC_CONF=settings)
        found[name] = held.told[0]
        keep(options, found)
        held.close()
    return found


def accumulation(options: Found) -> Found:
    """Micro-batches one at a time and several at once, each on a stream of its own."""
    from micro_batches import MODELS, measure

    found: Found = {}
    for model, (_, size) in MODELS.items():
        for at_once in (1, 2, 4):
            asked = {"device": "cuda", "model": model, "size": size, "at_once": at_once, "repeats": 9}
            row = measure(asked)
            found.setdefault(model, {})[at_once] = {
                "batch_ms": round(1e3 * median(row["seconds"]), 3),
                "peak_mib": round(row["peak"] / MIB, 1),
                "error": row["error"],
            }
            keep(options, found)
    return found
