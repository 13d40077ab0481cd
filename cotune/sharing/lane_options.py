"""What the driver tells a lane when it opens."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cotune.script.named import Named


@dataclass(frozen=True, slots=True)
class TrialOptions:
    """What holds for all trials of a run, in whichever lane.

    Attributes:
        metric: The run's metric; empty where trials need not report, and send their result as a question.
        lockstep: Whether each report waits for its own verdict.
        judged: Whether a verdict can stop a trial; only then does a trial's end wait for its last verdict.
        seed: The run's seed.
        stop: A pickled `StopRule`, which ends a trial that would go on; empty if there is none.
    """

    metric: str = ""
    lockstep: bool = False
    judged: bool = True
    seed: int = 0
    stop: bytes = b""


@dataclass(frozen=True, slots=True)
class LaneOptions:
    """A lane's settings.

    Attributes:
        lane: The lane's number.
        device: Name of its device.
        uuid: UUID of its GPU; empty for the CPU.
        cores: Cores its device stands for.
        quota: Bytes it may hold, context included.
        threads: Threads per operation.
        seats: Trials it may host at once, paused ones included.
        trials: What holds for its trials; Ray Tune's have the defaults.
        log: File for output that belongs to no trial.
        environment: Environment variables, set before the device is touched, that make the lane an MPS client; empty
            if it is none.
        imports: Modules to import before the trainable is loaded.
        named: What annotations of the script's classes name.
    """

    lane: int
    device: str
    uuid: str
    cores: int
    quota: int
    threads: int
    seats: int = 1
    trials: TrialOptions = TrialOptions()
    log: Path = Path(os.devnull)
    environment: dict[str, str] = field(default_factory=dict)
    imports: tuple[str, ...] = ()
    named: Mapping[str, Named] = field(default_factory=dict)

    @property
    def is_mps_client(self) -> bool:
        """Whether the lane shares its device context, and faults, with others."""
        return bool(self.environment)
