"""`cotune doctor`: what this machine has, what cotune would do with it, and what is in its way."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import os
import platform
import resource
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotune.demand import GIB, MIB, format_bytes
from cotune.errors import DeviceError, StorageError
from cotune.paths import storage_folder
from cotune.sharing import cuda
from cotune.sharing.cpu import headroom
from cotune.sharing.devices import DeviceInfo, find_devices
from cotune.sharing.machine import available_memory
from cotune.sharing.mps import MpsDaemon

LEAST_FILES = 1024
LEAST_SHM = 64 * MIB
LEAST_DISK = GIB
PACKAGES = ("torch", "cupy", "ray", "optuna", "numpy", "nvidia-ml-py")
_CUPY = ("cupy", "cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing about the machine.

    Attributes:
        what: The name of the thing.
        is_fine: False if it must be fixed, None if it only costs something.
        said: What was found.
        fix: What to do about it.
    """

    what: str
    is_fine: bool | None
    said: str
    fix: str = ""


def add_to(commands: Any) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "doctor",
        help="what this machine has, and what cotune would do with it",
        description="Looks at this machine; changes nothing. Ends with 1 if something must be fixed first.",
    )
    parser.add_argument("--no-mps", action="store_true", help="do not try whether an MPS daemon can be started")
    parser.set_defaults(run_command=run_command)


def run_command(options: argparse.Namespace) -> int:
    """Prints all findings."""
    findings = list(examine(tries_mps=not options.no_mps))
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        mark = {True: "ok", None: "--", False: "!!"}[finding.is_fine]
        print(f"{mark}  {finding.what:{width}}  {finding.said}")
        if finding.fix:
            print(f"    {'':{width}}  -> {finding.fix}")
    return 0 if all(finding.is_fine is not False for finding in findings) else 1


def examine(*, tries_mps: bool) -> Iterator[Finding]:
    """Yields all findings about this machine."""
    yield _system()
    yield from _packages()
    yield from _devices(tries_mps)
    yield from _limits()
    yield from _room()


def _system() -> Finding:
    cores, here = os.cpu_count() or 1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    said = f"{platform.system()} {platform.release()}, Python {platform.python_version()}, {here} of {cores} cores"
    if platform.system() == "Linux":
        return Finding("system", True, said)
    return Finding("system", False, said, "cotune runs on Linux: use a container or WSL 2")


def _packages() -> Iterator[Finding]:
    found = {name: _version(name) for name in PACKAGES}
    said = ", ".join(f"{name} {number}" for name, number in found.items() if number)
    missing = [name for name, number in found.items() if not number]
    yield Finding("packages", True, said + (f"; not there: {', '.join(missing)}" if missing else ""))
    if found["torch"] and not cuda.torch_has_cuda() and cuda.gpus():
        yield Finding("torch", False, "this build cannot use a GPU", "install a CUDA build of torch")


def _version(name: str) -> str:
    for candidate in _CUPY if name == "cupy" else (name,):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(candidate)
    return ""


# ---- devices


def _devices(tries_mps: bool) -> Iterator[Finding]:
    driver, found = _driver(), cuda.gpus()
    if not found:
        yield Finding("GPUs", True, f"none ({driver or 'no NVIDIA driver answers'})")
    else:
        yield Finding("GPUs", True, f"{len(found)}, {driver}")
    for gpu in found:
        yield _gpu(gpu)
    try:
        used = find_devices()
    except DeviceError as error:
        yield Finding("devices", False, error.message, error.hint)
        return
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if found and not used[0].is_cuda and cuda.torch_has_cuda():
        yield Finding("devices", None, f"CUDA_VISIBLE_DEVICES={hidden!r} hides every GPU", "unset it to have them used")
    for info in used:
        yield _used(info)
    if used[0].is_cuda:
        yield _mps(used[0]) if tries_mps else Finding("MPS", None, "not tried")


def _driver() -> str:
    with contextlib.suppress(Exception), cuda.nvml_started() as nvml:
        version = int(nvml.nvmlSystemGetCudaDriverVersion())
        return f"driver {nvml.nvmlSystemGetDriverVersion()}, CUDA up to {version // 1000}.{version % 1000 // 10}"
    return ""


def _gpu(gpu: cuda.Gpu) -> Finding:
    said = f"{gpu.name}, {format_bytes(gpu.total - gpu.used)} free of {format_bytes(gpu.total)}, {gpu.uuid}"
    if not gpu.total:
        said = f"{gpu.name}, {gpu.uuid}; NVML does not tell its memory"
        return Finding(f"GPU {gpu.index}", None, said, "it is left out")
    if gpu.sliced:
        return Finding(f"GPU {gpu.index}", None, f"{said}; it is divided into slices (MIG)", "it is left out")
    if gpu.exclusive:
        fix = "one lane at a time; an administrator can allow more: nvidia-smi -c DEFAULT"
        return Finding(f"GPU {gpu.index}", None, f"{said}; its compute mode admits one process", fix)
    if gpu.used > gpu.total // 10:
        return Finding(f"GPU {gpu.index}", None, f"{said}; others use it", "their bytes are respected, also later")
    return Finding(f"GPU {gpu.index}", True, said)


def _used(info: DeviceInfo) -> Finding:
    said = f"a run without gpus= or devices= uses it: {format_bytes(info.capacity)} for trials"
    bare = f"about {format_bytes(info.context)} for each lane beside its trial"
    if info.is_cuda:
        return Finding(
            info.name, info.capacity > 2 * info.context, f"{said}, {bare}, up to {info.max_width} lanes as they pay"
        )
    idle = f" ({info.idle_width} if they leave the cores idle)" if info.idle_width > info.max_width else ""
    said += (
        f", up to {info.max_width} lanes of one thread{idle}, each capped at its quota and {format_bytes(headroom())}"
    )
    return Finding(info.name, True, said)


def _mps(info: DeviceInfo) -> Finding:
    try:
        MpsDaemon(info.uuid).close()
    except DeviceError as error:
        return Finding("MPS", None, error.message, "lanes take slices of time on a GPU, which always works")
    return Finding("MPS", True, "a daemon of its own can be started: lanes compute at the same time, unless mps=False")


# ---- limits


def _limits() -> Iterator[Finding]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    fix = "" if files >= LEAST_FILES else f"ulimit -n {4 * LEAST_FILES}"
    yield Finding("open files", files >= LEAST_FILES, f"{files} at most", fix)
    _, data = resource.getrlimit(resource.RLIMIT_DATA)
    if data == resource.RLIM_INFINITY:
        yield Finding("memory limit", True, "none but ours (RLIMIT_DATA)")
    else:
        said = f"a lane on the CPU can have no more than {format_bytes(data)} (RLIMIT_DATA)"
        yield Finding("memory limit", None, said, "raise the hard limit, ulimit -Hd, if trials need more")
    threads, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    running = _threads()
    said = f"{running} processes and threads now, {'any number' if threads < 0 else threads} allowed"
    is_fine = threads < 0 or threads - running > 1000
    yield Finding("threads", is_fine or None, said, "" if is_fine else "ulimit -u, or the pids limit of the container")


def _threads() -> int:
    """The number of processes and threads on this machine, from /proc/loadavg; 0 if unknown."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    return 0


def _room() -> Iterator[Finding]:
    yield Finding("memory", True, f"{format_bytes(available_memory())} available")
    with contextlib.suppress(OSError):
        free = shutil.disk_usage("/dev/shm").free
        fix = "" if free >= LEAST_SHM else "give the container more, as docker run --shm-size=1g; DataLoader needs it"
        yield Finding("/dev/shm", (free >= LEAST_SHM) or None, f"{format_bytes(free)} free", fix)
    try:
        storage = storage_folder()
        there = next(path for path in (storage, *storage.parents) if os.path.exists(path))
    except StorageError as error:
        yield Finding("run folders", False, error.message, error.hint)
        return
    free, writable = shutil.disk_usage(there).free, there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    said = f"{storage}: {format_bytes(free)} free" + ("" if writable else ", not writable")
    is_fine = writable and free >= LEAST_DISK
    yield Finding("run folders", is_fine, said, "" if is_fine else "set COTUNE_STORAGE, or pass storage=")
