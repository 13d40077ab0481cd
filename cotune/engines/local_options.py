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
        threads: Threads per operation; None for 1 on CPU devices, a quarter of the cores of each GPU otherwise.
        lockstep: Whether a report waits for the verdict on itself.
        judged: Whether a verdict may be to stop.
        stop: When a trial is done although it would go on, a pickled `StopRule`; empty if it is to end by itself.
        residents: How many trials may share a lane.
        paused: How many more may wait in a lane.
        preload: Modules that every trial imports.
        mps: Whether the lanes of a GPU compute at the same time, as clients of a daemon that is started for them; None
            where it can be.
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
        """What a lane is told first.

        Args:
            opened: What the brain says of it.
            device: Where it is.
            threads: Of an operation.
            folder: For its log.
            imports: Modules it is to import first.
            mps: What makes it a client of an MPS daemon; None if it is none.
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
