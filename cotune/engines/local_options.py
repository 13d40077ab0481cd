"""How trials run in the lanes of this machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """How trials run in the lanes of this machine.

    Attributes:
        metric: The run's metric; empty where trials need not report.
        threads: Threads per operation; None for the least over the devices: 1 for a CPU device, a quarter of the cores
            of a GPU.
        lockstep: Whether each report waits for its own verdict.
        judged: Whether a verdict can stop a trial.
        seed: The run's seed.
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
    seed: int = 0
    stop: bytes = b""
    residents: int = 1
    paused: int = 0
    preload: tuple[str, ...] = ()
    mps: bool | None = False
