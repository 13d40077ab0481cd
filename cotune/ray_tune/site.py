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
    """Where a lane's process has come to be.

    Attributes:
        node: Ray's id of the node.
        accelerators: What Ray calls the GPU it has assigned.
        uuid: The physical GPU's identity; empty if there is none behind it.
        total: Bytes on the GPU, or of memory available on the node.
        free: Bytes of these nobody uses.
        pid: This process.
        host: The machine's name.
        address: The node's.
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
        """What all lanes of one device must agree on."""
        return self.node, self.accelerators, self.uuid


def look_round() -> Site:
    """Where this process is, as Ray and NVML have it."""
    context = ray.get_runtime_context()
    gpus = tuple(str(gpu) for gpu in context.get_accelerator_ids().get("GPU", []))
    # Without a GPU of its own Ray leaves CUDA_VISIBLE_DEVICES as it is, which may show all of them.
    visible = cuda.visible_gpus() if gpus and cuda.torch_has_cuda() else []
    uuid, total, free = "", available_memory(), available_memory()
    if visible:
        uuid, total, free = visible[0].uuid, visible[0].total, visible[0].total - visible[0].used
    host, address = platform.node(), ray.util.get_node_ip_address()
    return Site(context.get_node_id(), gpus, uuid, total, free, os.getpid(), host, address)
