"""How trials run in the lanes of this machine."""

from __future__ import annotations

from dataclasses import dataclass

from cotune.sharing.lane_options import TrialOptions


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """How trials run in the lanes of this machine.

    Attributes:
        trials: What holds for all trials.
        threads: Threads per operation; None for the least over the devices: 1 for a CPU device, a quarter of the cores
            of a GPU.
        residents: Trials that may share a lane.
        paused: Further trials that may wait in a lane.
        preload: Modules that the zygote imports for all trials.
        mps: Whether the lanes of a GPU compute at the same time, as clients of an MPS daemon that is started for them;
            None for where that is possible.
    """

    trials: TrialOptions
    threads: int | None = None
    residents: int = 1
    paused: int = 0
    preload: tuple[str, ...] = ()
    mps: bool | None = False
