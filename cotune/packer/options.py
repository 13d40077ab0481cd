"""Settings of the brain."""

from __future__ import annotations

from dataclasses import dataclass, field

from cotune.packer.policies import Makespan, Policy

MAX_SLOWDOWN = 1.25


@dataclass(frozen=True, slots=True)
class PackerOptions:
    """The brain's settings.

    Attributes:
        width: Lanes per device, or None to find it.
        residents: Most trials that share a lane by taking turns.
        policy: Orders waiting trials.
        max_failures: How often a trial that raised is tried again.
        iteration_timeout: Seconds between two iteration boundaries after which a trial is overdue; None for half
            an hour or 20 times its longest iteration, whichever is more, once three iterations were seen.
        patience: How many trials may overtake a trial that does not fit before a device is kept free for it.
        grants: Whether idle room is lent to trials that split their batches.
        reuse: Whether a lane takes one trial after the other.
        judged: Whether trials are stopped by comparison with trials that began earlier.
        max_slowdown: Largest factor by which others on its device may slow a trial with a priority above 0.
    """

    width: int | None = None
    residents: int = 1
    policy: Policy = field(default_factory=Makespan)
    max_failures: int = 0
    iteration_timeout: float | None = None
    patience: int = 4
    grants: bool = True
    reuse: bool = True
    judged: bool = False
    max_slowdown: float = MAX_SLOWDOWN
