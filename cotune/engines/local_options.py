"""How trials run in the lanes of this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cotune.packer import instructions as do
from cotune.sharing.devices import DeviceInfo
from cotune.sharing.lane_options import LaneOptions


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """How trials run in the lanes of this machine.

    Attributes:
        metric: The run's metric; empty where trials need not report.
        threads: Threads per operation; None for the least over the devices: 1 for a CPU device, a quarter of the cores
            of a GPU.
        lockstep: Whether each report waits for its own verdict.
        judged: Whether a verdict can stop a trial.
        stop: A pickled `StopRule`, which ends a trial that would go on; empty if there is none.
        residents: Trials that may share a lane.
        paused: Further trials that may wait in a lane.
        preload: Modules that the zygote imports for all trials.
        mps: Whether the lanes of a GPU compute at the same time, as clients of an MPS daemon that is started for them;
            None for where that is possible.
    """

    metric: str
    threads: int | None = None
    lockstep: bool = False
    judged: bool = True
    stop: bytes = b""
    residents: int = 1
    paused: int = 0
    preload: tuple[str, ...] = ()
    mps: bool | None = False

    def for_lane(
        self,
        opened: do.OpenLane,
        device: DeviceInfo,
        threads: int,
        folder: Path,
        imports: tuple[str, ...],
        mps: dict[str, str] | None,
    ) -> LaneOptions:
        """Makes a lane's settings.

        Args:
            opened: The brain's instruction.
            device: The lane's device.
            threads: Threads per operation.
            folder: Folder for its log.
            imports: Modules to import before the trainable is loaded.
            mps: Environment that makes it a client of an MPS daemon; None if it is to be none.
        """
        return LaneOptions(
            lane=opened.lane,
            device=device.name,
            uuid=device.uuid,
            cores=device.cores,
            quota=opened.quota,
            threads=threads,
            seats=self.residents + self.paused,
            lockstep=self.lockstep,
            judged=self.judged,
            metric=self.metric,
            stop=self.stop,
            log=folder / f"lane-{opened.lane}.log",
            environment=mps or {},
            imports=imports,
            is_mps_client=mps is not None,
        )
