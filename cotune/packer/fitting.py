"""Lane fitting: where, if anywhere, a trial fits now.

Salus's search (MLSys'20, section 3.3: open, best fit, resize, wait) over the lanes of all devices. We differ
in that a warm idle lane goes before a new one, and that room others hold without needing it is asked back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cotune.demand import Demand, format_bytes
from cotune.packer.state import Device, Lane, Trial, padded


@dataclass(frozen=True, slots=True)
class Place:
    """A trial goes into `lane` (a new one if None) of `device`, whose quota must then be `quota`.

    `missing` bytes must be let go by other lanes first; it fits now where that is none.
    """

    device: Device
    lane: Lane | None
    quota: int
    missing: int = 0


@dataclass(frozen=True, slots=True)
class Shortage:
    """It does not fit now, and why; `places` would do once other lanes return memory, least missing first."""

    reason: str
    places: tuple[Place, ...] = ()


class Fitting:
    """Answers where a trial fits.

    Attributes:
        largest: Bytes of the largest device when others use none of it.

    Args:
        residents: Trials that may share a lane by turns.
    """

    def __init__(self, residents: int) -> None:
        self.largest = 0
        self._residents = residents

    def has_seat(self, device: Device) -> bool:
        """Whether another trial could run on the device, as far as lanes go."""
        if device.active < device.width.width:
            return True
        return any(self._takes_resident(lane) for lane in device.lanes.values())

    def slack(self, lane: Lane) -> int:
        """Bytes the lane holds and its trials do not need."""
        if lane.closing or lane.asked < lane.quota or lane.is_probing or lane.quota <= lane.base:
            return 0
        if any(trial.alone for trial in lane.residents.values()):
            return 0
        spare = lane.quota - max(lane.need(resident_demands(lane)), lane.least)
        return spare if spare > max(padded(0), lane.quota // 50) else 0

    def is_whole(self, quota: int) -> bool:
        """Whether this is as good as all of the largest device; others may keep a little for good."""
        return quota * 10 >= self.largest * 9

    def suits(self, trial: Trial, demand: Demand | None, device: Device) -> bool:
        """Whether the device would do for the trial if nothing else ran there."""
        bare = device.context + device.shared
        if bare + (demand.peak if demand else padded(0)) <= device.capacity:
            return True
        return trial.oversized and self.is_whole(device.capacity)

    def find(
        self, trial: Trial, demand: Demand | None, devices: Iterable[Device], share: bool = False
    ) -> Place | Shortage:
        """Where the trial fits now.

        Args:
            trial: A waiting trial.
            demand: What it needs, margins included; None to probe.
            devices: Those with a seat that are not reserved for another trial.
            share: Look at lanes that run other trials, not at idle and new ones.
        """
        if demand is None or trial.wants_all:
            return self._find_whole(trial, demand, devices)
        best: tuple[tuple[int, int], Place] | None = None
        short: list[Place] = []
        for device in devices:
            places = list((self._shared_places if share else self._places)(trial, demand, device))
            place = min(places, key=lambda place: place.missing, default=None)
            if place is not None and place.missing <= 0:
                extra = place.quota - (place.lane.quota if place.lane else 0)
                rank = (device.active, extra)
                if best is None or rank < best[0]:
                    best = rank, place
            elif best is None:
                short += places
        if best is not None:
            return best[1]
        if not short:
            return Shortage("every lane is taken")
        short.sort(key=lambda place: (place.device.reserved_for is not trial, place.missing))
        hole = min(short, key=lambda place: place.missing).device
        need = hole.context + hole.shared + demand.peak
        reason = f"needs {format_bytes(need)}, largest hole {format_bytes(max(hole.free, 0))} on {hole.name}"
        return Shortage(reason, tuple(short))

    def _places(self, trial: Trial, demand: Demand, device: Device) -> Iterator[Place]:
        """Lanes of its own that the trial could have on this device, room or not."""
        if device.active < device.width.width:
            for lane in device.idle:
                yield self._place(device, lane, lane.need([demand]))
            fresh = device.context + device.shared + demand.peak
            yield Place(device, None, fresh, fresh - device.free)

    def _shared_places(self, trial: Trial, demand: Demand, device: Device) -> Iterator[Place]:
        """Lanes on this device where the trial could take turns, room or not."""
        if not trial.solo:
            for lane in device.lanes.values():
                if self._takes_resident(lane):
                    yield self._place(device, lane, lane.need([*resident_demands(lane), demand]))

    def _place(self, device: Device, lane: Lane, need: int) -> Place:
        quota = max(need, lane.asked)
        return Place(device, lane, quota, max(quota - lane.quota, 0) - device.free)

    def _find_whole(self, trial: Trial, demand: Demand | None, devices: Iterable[Device]) -> Place | Shortage:
        """A device for the trial alone, with all its memory."""
        probing = "nothing like it was measured yet: it must try a whole device"
        why = "must run alone" if trial.wants_all else probing
        reason = f"{why}, and every device is in use"
        short: list[Place] = []
        for device in sorted(devices, key=lambda device: -device.capacity):
            if not self.suits(trial, demand, device):
                need = device.context + device.shared + (demand.peak if demand else padded(0))
                open_to_us = f"{format_bytes(max(device.capacity, 0))} of {device.name} open to us"
                reason = f"needs {format_bytes(need)}, and others leave {open_to_us}"
                continue
            if device.active:
                continue
            lane = min(device.idle, key=lambda lane: lane.residue, default=None)
            if lane is not None and lane.residue and trial.wants_all:
                lane = None
            others = device.held - (lane.quota if lane else 0)
            least = 0 if trial.wants_all else sum(o.base for o in device.lanes.values() if o is not lane)
            if others > least and (trial.wants_all or others > device.capacity // 8):
                short.append(Place(device, lane, device.capacity, others - least))
            elif device.held <= device.capacity:
                return Place(device, lane, device.capacity - others)
        if short:
            short.sort(key=lambda place: (place.device.reserved_for is not trial, -place.device.capacity))
            return Shortage(f"{why}: waits for idle lanes to return memory", tuple(short))
        return Shortage(reason)

    def _takes_resident(self, lane: Lane) -> bool:
        return (
            0 < len(lane.residents) < self._residents
            and lane.is_open
            and not any(t.solo or t.alone or t.is_probe for t in lane.residents.values())
        )


def resident_demands(lane: Lane) -> list[Demand]:
    """What the residents need, margins included: as measured or, before that, as promised."""
    nothing = Demand(0, 0)
    return [needed(t, t.demand) if t.demand else t.promised or nothing for t in lane.residents.values()]


def needed(trial: Trial, measured: Demand) -> Demand:
    """What to set aside for a trial that was measured to need this much."""
    return trial.with_floor(Demand(padded(measured.persistent), padded(measured.ephemeral), measured.busy))
