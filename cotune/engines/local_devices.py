"""The devices of this machine that a run uses, until they are given up."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from cotune import errors
from cotune.engines.local_gpu import LocalGpu
from cotune.engines.open_files import files_left, files_of_a_lane
from cotune.engines.stillborn import Stillborn
from cotune.packer import DeviceFound
from cotune.sharing import cuda
from cotune.sharing.devices import DeviceInfo

# Lanes that come up on a GPU at once. CUDA's driver sets up contexts one after the other, a part of each by turns: on
# an H200 one took 0.35 s, each of six 1.0 s and each of 24 about 5 s (docs/gpu.md).
CONTEXTS_AT_ONCE = 3

log = logging.getLogger(__name__)


class LocalDevices:
    """Keeps the devices of a run, and gives up those that are lost or on which no lane comes up.

    Args:
        infos: The run's devices.
        folder: Folder of the lanes' logs.

    Attributes:
        there: Devices in use, by name.
        gpus: GPUs among them, by name, once `watch()` was called.
    """

    def __init__(self, infos: Sequence[DeviceInfo], folder: Path) -> None:
        self.there = {info.name: info for info in infos}
        self.gpus: dict[str, LocalGpu] = {}
        self._stillborn = {name: Stillborn(f"see the logs in {folder}") for name in self.there}
        self._useless: dict[str, errors.RunError] = {}

    def watch(self, mps: bool | None) -> None:
        """Starts to watch the GPUs; gives up those that are lost since they were found.

        Raises:
            DeviceError: MPS was requested and cannot be used.
            RunError: No device is left.
        """
        infos = [info for info in self.there.values() if info.is_cuda]
        if mps and not infos:
            raise errors.DeviceError(
                f"MPS cannot be used: mps=True is for GPUs, this run uses {', '.join(self.there)}", hint="leave mps out"
            )
        # In parallel: a daemon takes half a second to start, and half a minute to be given up.
        begun: dict[str, Future[LocalGpu]] = {}
        try:
            with ThreadPoolExecutor(max(1, len(infos))) as pool:
                for info in infos:
                    begun[info.name] = pool.submit(LocalGpu, info, mps)
        except BaseException:
            # A Ctrl-C ends the wait, and not the starts: their daemons would outlive this run.
            for made in begun.values():
                made.add_done_callback(_close)
            raise
        self.gpus = {name: made.result() for name, made in begun.items() if made.exception() is None}
        for name, made in begun.items():
            try:
                made.result()
            except errors.RunError as error:
                self._useless[name] = error
        self.give_up()

    def found(self, now: float, seats: int) -> list[DeviceFound]:
        """The events of the devices, with no more lanes than there are files for.

        Args:
            now: The time.
            seats: Trials that may be in a lane at once.
        """
        most = max(1, files_left() // files_of_a_lane(seats) // len(self.there))
        return [
            DeviceFound(
                now,
                info.name,
                info.capacity,
                info.context,
                min(info.max_width, most),
                idle_width=min(info.idle_width, most),
                opens=CONTEXTS_AT_ONCE if info.is_cuda else sys.maxsize,
            )
            for info in self.there.values()
        ]

    def lane_up(self, device: str) -> None:
        self._stillborn[device].lane_up()

    def lane_stillborn(self, device: str, detail: str) -> None:
        """Notes that a lane on a device has died before it was up."""
        if (error := self._stillborn[device].another(detail)) is not None:
            self._useless[device] = error

    def note_loss(self, device: str) -> bool:
        """Asks the GPU's driver whether a GPU is lost, notes that and returns it."""
        gpu = self.gpus.get(device)
        if gpu is None or not gpu.is_lost():
            return False
        self._useless[device] = cuda.lost_gpu()
        return True

    def give_up(self) -> list[str]:
        """Removes and returns the devices that have become useless since the last call.

        Raises:
            RunError: No device is left.
        """
        found = [name for name in self._useless if name in self.there]
        for name in found:
            error = self._useless[name]
            del self.there[name]
            if not self.there:
                raise errors.RunError(f"{name}: {error.message}", hint=error.hint)
            log.warning("%s is given up: %s", name, error.message)
        self._useless.clear()
        return found

    def release(self, device: str) -> None:
        """Closes a device that was given up, after its lanes were killed."""
        gpu = self.gpus.pop(device, None)
        if gpu is not None:
            gpu.close()

    def close(self) -> None:
        # Each, even if one that waits for its daemon is interrupted.
        with contextlib.ExitStack() as closing:
            for gpu in self.gpus.values():
                closing.callback(gpu.close)


def _close(made: Future[LocalGpu]) -> None:
    if made.exception() is None:
        made.result().close()
