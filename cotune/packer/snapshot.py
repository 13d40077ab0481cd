"""Immutable views of the brain's state."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LaneView:
    """A lane.

    Attributes:
        quota: Bytes it may hold.
        residents: Trials that run in it.
        ready: Its process is up.
        paused: Trials that are paused in it.
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
        capacity: Bytes that all its lanes may hold together.
        taken: Bytes set aside for its lanes.
        width: Lanes that may run at once.
    """

    device: str
    capacity: int
    taken: int
    width: int
    lanes: tuple[LaneView, ...]


@dataclass(frozen=True, slots=True)
class WaitingView:
    """A waiting trial, and why it waits, with figures."""

    trial: int
    reason: str


@dataclass(frozen=True, slots=True)
class PackerView:
    """The whole state.

    Attributes:
        first: The first trial in line.
        waiting: Number of waiting trials.
    """

    devices: tuple[DeviceView, ...]
    first: WaitingView | None
    waiting: int
