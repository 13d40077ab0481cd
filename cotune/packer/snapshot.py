"""The brain's state, frozen for whoever wants to look at it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LaneView:
    """A lane.

    Attributes:
        quota: Bytes it may hold.
        residents: Trials that run in it.
        ready: Its process is up.
        paused: Trials that wait in it.
    """

    lane: int
    quota: int
    residents: tuple[int, ...]
    ready: bool
    paused: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device.

    Attributes:
        capacity: Bytes all lanes on it may hold together.
        held: Bytes set aside for them.
        width: Lanes that may run at once.
    """

    device: str
    capacity: int
    held: int
    width: int
    lanes: tuple[LaneView, ...]


@dataclass(frozen=True, slots=True)
class WaitingView:
    """A trial that waits, and why, with figures."""

    trial: int
    reason: str


@dataclass(frozen=True, slots=True)
class PackerView:
    """All of it.

    Attributes:
        first: Who is first in line.
        waiting: How many wait.
    """

    devices: tuple[DeviceView, ...]
    first: WaitingView | None
    waiting: int
