"""The remote end of the Ray body: a local body in an actor, which takes commands and gives events in batches."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cotune import errors
from cotune.engines.local import LocalEngine
from cotune.engines.local_options import LocalOptions
from cotune.packer import DeviceFound, Event
from cotune.script.pickling import Packed
from cotune.sharing.cuda import assigned_gpu
from cotune.sharing.devices import DeviceInfo, find_devices, with_cores
from cotune.trial import Question, Report

POLL_FOR = 1.0
# What a remote local body reports; it estimates no trials.
News = Event | Report | Question


@dataclass(frozen=True, slots=True)
class Claim:
    """The resources of the cluster that an actor holds.

    Attributes:
        gpus: 1 for the actor of a GPU, 0 for the actor of a node.
        cpus: Number of cores.
        memory: Bytes that Ray says the node has; 0 if it does not matter.
        node: The node's id; empty for any node.
    """

    gpus: int
    cpus: int
    memory: int = 0
    node: str = ""

    @property
    def place(self) -> tuple[int, str]:
        """Identifies the claim, whatever its size."""
        return self.gpus, self.node


@dataclass(frozen=True, slots=True)
class Joined:
    """The actor is up.

    Attributes:
        name: Name of its device in the cluster, unique if addresses are.
        device: The device, with the name it has on its own machine.
    """

    name: str
    device: DeviceFound


@dataclass(frozen=True, slots=True)
class Down:
    """The local body has failed."""

    error: BaseException


class Member:
    """A local body, run by a thread of its own, since a zygote lives only as long as the thread that started it.

    Args:
        packed: The trainable.
        claim: The resources that this actor holds.
        folder: Folder for logs.
        options: How trials run.
        directory: Where trials begin, if this node has it; otherwise where Ray has started this actor.
    """

    def __init__(self, packed: Packed, claim: Claim, folder: Path, options: LocalOptions, directory: str) -> None:
        with contextlib.suppress(OSError):
            os.chdir(directory)
        self._commands: deque[tuple[str, tuple[Any, ...]]] = deque()
        self._said: list[News | Joined | Down] = []
        self._news = threading.Condition()
        self._engine: LocalEngine | None = None
        self._leaving = False
        self._thread = threading.Thread(target=self._serve, args=(packed, claim, folder, options), daemon=True)
        self._thread.start()

    # ---- called remotely

    def do(self, commands: list[tuple[str, tuple[Any, ...]]]) -> None:
        """Queues calls of the engine's methods, in order."""
        self._commands.extend(commands)
        if self._engine is not None:
            self._engine.wake()

    def poll(self, timeout: float) -> list[News | Joined | Down]:
        """Returns what was reported since the last call; waits up to `timeout` seconds if nothing was."""
        with self._news:
            self._news.wait_for(lambda: self._said, timeout)
            said, self._said = self._said, []
        return said

    def leave(self) -> None:
        """Ends every lane."""
        self._leaving = True
        if self._engine is not None:
            self._engine.wake()
        self._thread.join()

    # ---- on the thread

    def _serve(self, packed: Packed, claim: Claim, folder: Path, options: LocalOptions) -> None:
        try:
            info, name = _device_of(claim, options.threads)
            engine = LocalEngine(packed, [info], _own_folder(folder), options)
        except BaseException as error:
            self._say([Down(error)])
            return
        self._engine = engine
        try:
            self._say([Joined(name, *engine.start())])
            while not self._leaving:
                while self._commands:
                    name, arguments = self._commands.popleft()
                    getattr(engine, name)(*arguments)
                self._say(engine.poll(POLL_FOR))
        except BaseException as error:
            self._say([Down(error)])
        finally:
            engine.close()

    def _say(self, items: list[Any]) -> None:
        if items:
            with self._news:
                self._said += items
                self._news.notify()


def _own_node() -> dict[str, Any]:
    """Ray's entry of the node that this process runs on."""
    import ray

    own = ray.get_runtime_context().get_node_id()
    nodes: list[dict[str, Any]] = ray.nodes()
    return next(node for node in nodes if node["NodeID"] == own)


def _device_of(claim: Claim, threads: int | None) -> tuple[DeviceInfo, str]:
    """The one device of this actor, and its name in the cluster.

    The number of its GPU is Ray's. A GPU that exists in name only stands for a share of the node's CPU.
    """
    import ray

    node = _own_node()
    resources, address = node["Resources"], node["NodeManagerAddress"]
    if not claim.gpus:
        info = find_devices(devices=["cpu:0"], threads=threads)[0]
        capacity = min(info.capacity, claim.memory or info.capacity)
        return with_cores(replace(info, capacity=capacity), claim.cpus, threads), f"{address}/cpu:0"
    number = ray.get_gpu_ids()[0]
    share = max(1, int(resources["GPU"]))
    cores = max(1, int(resources.get("CPU", 1)) // share)
    gpu = assigned_gpu(number)
    found = find_devices()
    info = next((info for info in found if gpu is not None and info.uuid == gpu.uuid), found[0])
    if info.is_cuda:
        return replace(info, cores=cores), f"{address}/cuda:{number}"
    info = replace(info, capacity=info.capacity // share)
    return with_cores(info, cores, threads), f"{address}/cpu:{number}"


def _own_folder(folder: Path) -> Path:
    """Makes a folder for this actor's logs, apart from other actors'.

    Raises:
        StorageError: This node does not see the run's folder.
    """
    if not folder.is_dir():
        raise errors.StorageError(
            f"node {socket.gethostname()} does not see the run folder {folder.parent}",
            hint="pass storage= with a folder that every node of the cluster sees, such as one on NFS",
        )
    own = folder / f"{socket.gethostname()}-{os.getpid()}"
    own.mkdir(exist_ok=True)
    return own
