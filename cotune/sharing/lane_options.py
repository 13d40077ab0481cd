"""What the driver tells a lane when it opens."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LaneOptions:
    """What a lane is told when it opens; from `seats` on only what lanes need that a zygote forks.

    Attributes:
        lane: Its number.
        device: The name of the device it belongs to.
        uuid: That of a GPU; empty for the CPU.
        cores: Cores its device stands for.
        quota: Bytes it may hold, context included.
        threads: Threads for one operation.
        seats: Trials it may host at once, paused ones included.
        lockstep: Whether a report waits for the verdict on itself.
        judged: Whether a verdict may be to stop: only then the end of a trial waits for the last one.
        metric: The run's metric; empty where a trial need not report, and its end is told by a question.
        stop: When a trial is done although it would go on, a pickled `StopRule`; empty if it is to end by itself.
        log: Where output goes that belongs to no trial.
        environment: Set before the device is touched.
        imports: Modules to be imported before the trainable is loaded.
        is_mps_client: The lane shares its device context with others, and so their faults.
    """

    lane: int
    device: str
    uuid: str
    cores: int
    quota: int
    threads: int
    seats: int = 1
    lockstep: bool = False
    judged: bool = True
    metric: str = ""
    stop: bytes = b""
    log: Path = Path(os.devnull)
    environment: dict[str, str] = field(default_factory=dict)
    imports: tuple[str, ...] = ()
    is_mps_client: bool = False
