"""The brain's state, frozen for whoever wants to look at it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LaneView:
    lane: int
    device: str
    quota: int
    residents: tuple[int, ...]
    ready: bool
    paused: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceView:
    device: str
    capacity: int
    held: int
    width: int
    lanes: tuple[LaneView, ...]


@dataclass(frozen=True, slots=True)
class WaitingView:
    trial: int
    reason: str


@dataclass(frozen=True, slots=True)
class PackerView:
    devices: tuple[DeviceView, ...]
    waiting: tuple[WaitingView, ...]
    waiting_count: int
