"""Which devices a run uses."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from cotune.demand import MIB, format_bytes, parse_bytes
from cotune.errors import DeviceError
from cotune.sharing import cuda, delays
from cotune.sharing.machine import available_cores, available_memory

CPU_SHARE = 0.8
CPU_CONTEXT_GUESS = 16 * MIB
MAX_WIDTH = 32
LEAST_CAPACITY = 64 * MIB


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device as a run sees it.

    Attributes:
        name: Its name: `cpu:0`, `cuda:1`.
        capacity: Bytes all lanes on it may hold together.
        context: First guess of the bytes that a bare lane costs.
        max_width: Most lanes that can pay, unless running lanes leave the device idle.
        cores: CPU cores for its lanes.
        uuid: The GPU's UUID; empty for a CPU device.
        total: All bytes of the GPU; 0 for a CPU device.
        idle_width: Most lanes that can pay while running lanes leave the device idle; 0 where that is not measured.
    """

    name: str
    capacity: int
    context: int
    max_width: int
    cores: int
    uuid: str = ""
    total: int = 0
    idle_width: int = 0

    @property
    def is_cuda(self) -> bool:
        return bool(self.uuid)


_CPU = re.compile(r"cpu(?::([0-9]+))?(?:@(.+))?")
_CUDA = re.compile(r"(?:cuda|gpu):([0-9]+)|(GPU-[0-9a-fA-F-]+)")


def find_devices(
    gpus: int | Sequence[int | str] | None = None,
    devices: Sequence[str] | None = None,
    threads: int | None = None,
) -> list[DeviceInfo]:
    """The devices for a run.

    Args:
        gpus: The number of GPUs to use, or which ones, by position among the visible GPUs or by UUID.
        devices: Explicit devices: `cpu:0@4GiB`, `cuda:0`.
        threads: Threads per lane, which bounds the useful width of a CPU device.

    Returns:
        The devices asked for. If neither is given, every visible GPU, or the CPU if there is none.

    Raises:
        DeviceError: A requested device does not exist, or the request makes no sense.
    """
    # For numpy's numbers and arrays.
    gpus = getattr(gpus, "tolist", lambda: gpus)()
    if isinstance(devices, Iterable) and not isinstance(devices, str):
        devices = list(devices)
    if gpus is not None and devices is not None:
        raise DeviceError(
            f"both gpus={gpus!r} and devices={devices!r} were given",
            hint="give one of them; devices= may name GPUs, such as 'cuda:0'",
        )
    if devices is not None:
        return _explicit(devices, threads)
    if isinstance(gpus, bool) or not (gpus is None or isinstance(gpus, (int, list, tuple, range))):
        raise DeviceError(f"gpus={gpus!r} is neither a count nor a list", hint="write gpus=2 or gpus=[0, 3]")
    if gpus == 0 or (gpus is None and not cuda.torch_has_cuda()):
        return _explicit(["cpu:0"], threads)
    visible = cuda.visible_gpus()
    whole = [n for n, gpu in enumerate(visible) if gpu.total and not gpu.sliced]
    if gpus is None and not visible:
        return _explicit(["cpu:0"], threads)
    if isinstance(gpus, int) and 0 < gpus <= len(whole):
        gpus = whole[:gpus]
    return _chosen(whole or [0] if gpus is None else gpus, visible)


def with_cores(info: DeviceInfo, cores: int, threads: int | None) -> DeviceInfo:
    """A CPU device with other cores, and the widths that follow from them.

    Args:
        info: The device.
        cores: Its cores.
        threads: Threads per lane.
    """
    width = max(1, cores // (threads or 1))
    return replace(info, cores=cores, max_width=width, idle_width=MAX_WIDTH if delays.are_counted() else 0)


def _chosen(gpus: int | Sequence[int | str], visible: list[cuda.Gpu]) -> list[DeviceInfo]:
    if isinstance(gpus, int) and gpus > len(visible):
        raise _absent(f"gpus={gpus!r} asks for {gpus} GPU{'s' * (gpus > 1)}", visible)
    wanted: list[int | str] = list(range(gpus) if isinstance(gpus, int) else gpus)
    if not wanted:
        raise DeviceError(f"gpus={gpus!r} names no GPU", hint="write gpus=2, or devices=['cpu:0'] to use the CPU")
    picked = [_picked(entry, visible, len(wanted), f"gpus={gpus!r}") for entry in wanted]
    if len({info.name for info in picked}) < len(picked):
        raise DeviceError(f"gpus={gpus!r} names a GPU twice", hint="name each GPU once; lanes= sets how many share it")
    return picked


def _picked(entry: int | str, visible: list[cuda.Gpu], count: int, asked: str) -> DeviceInfo:
    """One of `count` GPUs that share the cores."""
    position = _position(entry, visible)
    if position is None:
        raise _absent(f"{asked} asks for GPU {entry!r}", visible)
    gpu = visible[position]
    if gpu.sliced:
        raise DeviceError(
            f"GPU {position} is divided into slices (MIG), which cotune cannot measure yet", hint=cuda.WITHOUT_MIG
        )
    if not gpu.total:
        raise DeviceError(
            f"cotune cannot measure GPU {position} yet, a {gpu.name}: NVML does not tell its memory",
            hint="name other GPUs, or write gpus=0 to use the CPU",
        )
    if not cuda.torch_has_cuda():
        raise DeviceError(
            f"{asked} asks for a GPU, but there is no torch here that can use one",
            hint="install a CUDA build of torch, or write devices=['cpu:0'] to use the CPU",
        )
    capacity = gpu.total - gpu.used - cuda.RESERVE
    context, width = cuda.CONTEXT_GUESS + cuda.ROUNDING, 1 if gpu.exclusive else MAX_WIDTH
    cores = max(1, available_cores() // count)
    return DeviceInfo(f"cuda:{position}", max(capacity, 0), context, width, cores, gpu.uuid, gpu.total)


def _absent(asked: str, visible: list[cuda.Gpu]) -> DeviceError:
    """The error for more GPUs, or another one, than are visible."""
    return DeviceError(
        f"{asked}, but {_count(len(visible))} visible here",
        hint=(
            "write devices=['cpu:0'] to use the CPU, or devices=['cpu:0@4GiB', 'cpu:1@4GiB'] for parts of it"
            if not visible
            else f"write gpus={len(visible)} or fewer; CUDA_VISIBLE_DEVICES is "
            f"{os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')!r}"
        ),
    )


def _count(number: int) -> str:
    return "no GPU is" if number == 0 else "one GPU is" if number == 1 else f"{number} GPUs are"


def _position(entry: object, visible: list[cuda.Gpu]) -> int | None:
    if isinstance(entry, str) and not (entry := entry.removeprefix("cuda:")).isdigit():
        matches = [n for n, gpu in enumerate(visible) if entry and gpu.uuid.startswith(entry)]
        return matches[0] if len(matches) == 1 else None
    try:
        position = int(entry) if isinstance(entry, str) else operator.index(entry)  # type: ignore[arg-type]
    except TypeError:
        return None
    return position if 0 <= position < len(visible) else None


def _explicit(devices: Sequence[str], threads: int | None) -> list[DeviceInfo]:
    if isinstance(devices, list) and not devices:
        raise DeviceError("devices=[] names no device", hint="write devices=['cpu:0'], or leave devices out")
    if not isinstance(devices, list):
        raise DeviceError(f"devices={devices!r} is not a list of devices", hint="write devices=['cpu:0@4GiB']")
    cpus = sum(1 for name in devices if isinstance(name, str) and name.startswith("cpu"))
    cores = max(1, available_cores() // max(cpus, 1))
    free = int(available_memory() * CPU_SHARE)
    visible: list[cuda.Gpu] | None = None
    found: list[DeviceInfo] = []
    for name in devices:
        cpu = _CPU.fullmatch(name) if isinstance(name, str) else None
        gpu = _CUDA.fullmatch(name) if isinstance(name, str) else None
        if cpu:
            capacity = parse_bytes(cpu[2]) if cpu[2] else free // cpus
            if capacity < LEAST_CAPACITY:
                raise DeviceError(
                    f"{name!r} has {format_bytes(capacity)}, less than a process needs",
                    hint=f"give it {format_bytes(LEAST_CAPACITY)} or more; mind the unit, as in 'cpu:0@4GiB'",
                )
            bare = DeviceInfo(f"cpu:{int(cpu[1] or 0)}", capacity, CPU_CONTEXT_GUESS, 1, cores)
            info = with_cores(bare, cores, threads)
        elif gpu:
            visible = cuda.visible_gpus() if visible is None else visible
            entry = int(gpu[1]) if gpu[1] else gpu[2]
            info = _picked(entry, visible, len(devices) - cpus, f"devices={devices!r}")
        else:
            raise DeviceError(f"{name!r} is not a device", hint="write 'cpu:0', 'cpu:0@4GiB', 'cuda:0' or a GPU's UUID")
        if any(info.name == other.name for other in found):
            raise DeviceError(f"devices={devices!r} names {info.name} twice", hint="name each device once")
        found.append(info)
    taken = sum(info.capacity for info in found if not info.is_cuda)
    if taken > free / CPU_SHARE:
        raise DeviceError(
            f"devices={devices!r} ask for {format_bytes(taken)} of memory, "
            f"but {format_bytes(free / CPU_SHARE)} are available",
            hint=f"ask for {format_bytes(free // cpus)} each, or less",
        )
    return found
