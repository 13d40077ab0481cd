"""Where Ray has put a process: the node, and the physical GPU behind the number Ray gives it."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

import ray

from cotune.sharing import cuda
from cotune.sharing.machine import available_memory


@dataclass(frozen=True, slots=True)
class Site:
    """Where a lane's process runs.

    Attributes:
        node: Ray's id of the node.
        accelerators: Ray's ids of the GPU it has assigned.
        uuid: The physical GPU's UUID; empty without a physical GPU.
        total: Bytes on the GPU; 0 without one.
        free: Bytes of these that are free, or that the node has available.
        pid: The process's id.
        host: The machine's name.
        address: The node's IP address.
    """

    node: str
    accelerators: tuple[str, ...]
    uuid: str
    total: int
    free: int
    pid: int
    host: str
    address: str

    @property
    def place(self) -> tuple[str, tuple[str, ...], str]:
        """The fields that are equal for all lanes of one device."""
        return self.node, self.accelerators, self.uuid


def look_round() -> Site:
    """Finds out from Ray and NVML where this process runs."""
    context = ray.get_runtime_context()
    gpus = tuple(str(gpu) for gpu in context.get_accelerator_ids().get("GPU", []))
    # For a process without a GPU, Ray leaves CUDA_VISIBLE_DEVICES as it is, which may show all GPUs.
    own = cuda.assigned_gpu(gpus[0]) if gpus and cuda.torch_has_cuda() else None
    uuid, total, free = (own.uuid, own.total, own.total - own.used) if own else ("", 0, available_memory())
    host, address = platform.node(), ray.util.get_node_ip_address()
    return Site(context.get_node_id(), gpus, uuid, total, free, os.getpid(), host, address)
