"""Lane fitting: where, if anywhere, a trial fits now.

Salus's search (MLSys'20, section 3.3: open, best fit, resize, wait) over the lanes of the devices that `Pool` offers.
We differ in that a warm idle lane is preferred to a new one, and that lanes are asked to return room that they do not
need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from cotune.demand import Demand
from cotune.packer.options import PackerOptions
from cotune.packer.protection import Protection
from cotune.packer.state import Device, Lane, is_nearly_all
from cotune.packer.trial import Trial, padded

SHORT = 8

_NOTHING = Demand(0, 0)


@dataclass(frozen=True, slots=True)
class Place:
    """A trial goes into `lane` (a new one if None) of `device`, whose quota must then be `quota`.

    Other lanes must first release `missing` bytes; if that is 0 or less, the trial fits now.
    """

    device: Device
    lane: Lane | None
    quota: int
    missing: int = 0

    @property
    def growth(self) -> int:
        """Bytes the lane takes in addition to its present quota."""
        return self.quota - (self.lane.quota if self.lane else 0)


class Fitting:
    """Answers where a trial fits.

    Attributes:
        largest: Bytes of the largest device when other programs use none of it; also if it is gone, and may come back.
        largest_room: Largest peak that fits on any of these devices when nothing else runs there.
        admits: Whether a trial should share a lane with its residents.

    Args:
        options: The policy may choose among several devices.
        protection: Knows which trials must not run beside each other.
    """

    def __init__(self, options: PackerOptions, protection: Protection) -> None:
        self.largest = 0
        self.largest_room = 0
        self.admits: Callable[[Trial, Lane], bool] = lambda trial, lane: True
        self._residents = options.residents
        self._policy = options.policy
        self._protection = protection

    def takes_resident(self, device: Device) -> bool:
        """Whether a lane on the device takes another resident, by number."""
        return self._residents > 1 and any(self._takes_resident(lane) for lane in device.lanes.values())

    def is_admitted(self, trial: Trial, devices: Iterable[Device]) -> bool:
        """Whether any lane there that takes another resident would give this trial turns, if there were room."""
        lanes = (lane for device in devices for lane in device.lanes.values())
        return any(self._takes_resident(lane) and self.admits(trial, lane) for lane in lanes)

    def seats(self, device: Device) -> int:
        """How many more trials could run on the device by the number of lanes; memory may allow fewer."""
        if self._residents == 1:
            return device.seats
        return device.seats * self._residents + sum(self._residents - len(lane.residents) for lane in device.running)

    def slack(self, lane: Lane) -> int:
        """Bytes the lane holds and its trials do not need."""
        if lane.closing or lane.asked < lane.quota or lane.quota <= lane.base:
            return 0
        for trial in lane.residents.values():
            # Bytes of a grant are free only once the trial has stopped using them.
            if trial.alone or trial.is_probe or trial.granted > 1:
                return 0
        # A new lane has yet to build the objects that its trials share.
        unbuilt = 0 if lane.has_iterated or lane.served else max(0, lane.device.shared - lane.shared)
        spare = lane.quota - max(lane.need(resident_demands(lane)) + unbuilt, lane.least)
        return spare if spare > max(padded(0), lane.quota // 50) else 0

    def is_whole(self, quota: int) -> bool:
        """Whether a quota is nearly all of the largest device; other programs may keep a little for good."""
        return is_nearly_all(quota, self.largest)

    def needs(self, trial: Trial, device: Device) -> int:
        """The least bytes a device must have for the trial."""
        return device.context + device.shared + (trial.expected.peak if trial.expected else padded(0))

    def suits(self, trial: Trial, device: Device) -> bool:
        """Whether the trial would fit on the device if nothing else ran there."""
        # One of which nothing is known has to try: there, too, what is known of the shared objects may be too much.
        must_try = trial.oversized or (trial.expected is None and device.context < device.capacity)
        return self.needs(trial, device) <= device.capacity or (must_try and self._may_hold(trial, device))

    def _may_hold(self, trial: Trial, device: Device) -> bool:
        """Whether it is worth a try, whatever the trial is predicted to need."""
        has_more = device.room > trial.outgrown or device.room >= self.largest_room
        return has_more and self.is_whole(device.capacity)

    def find(self, trial: Trial, devices: Iterable[Device], share: bool = False) -> Place | None:
        """Where the trial fits now.

        Args:
            trial: A waiting trial that does not need a whole device.
            devices: Devices to consider; among equals the first is taken.
            share: Consider lanes that run other trials, instead of idle and new ones.
        """
        demand = trial.expected
        assert demand is not None
        best: tuple[tuple[float, int, int], Place] | None = None
        for device in devices:
            places = (self._shared_places if share else self._places)(trial, demand, device)
            place = min(places, key=lambda place: (place.missing, place.growth), default=None)
            if place is not None and place.missing <= 0:
                cost = self._cost(device, trial) if self._policy.places else 0.0
                rank = (cost, device.active, place.growth)
                if best is None or rank < best[0]:
                    best = rank, place
        return best[1] if best else None

    def short(self, trial: Trial, devices: Iterable[Device], share: bool = False) -> list[Place]:
        """Places that would fit once other lanes returned memory: its reserved device first, then least missing."""
        demand = trial.expected
        assert demand is not None
        find = self._shared_places if share else self._places
        places = [place for device in devices for place in find(trial, demand, device) if place.missing > 0]
        return sorted(places, key=lambda place: (place.device.reserved_for is not trial, place.missing))

    def find_whole(self, trial: Trial, unused: Iterable[Device]) -> tuple[Place | None, list[Place]]:
        """A device for the trial alone, with all its memory; if there is none, places where idle lanes must return it.

        Args:
            trial: A waiting trial.
            unused: Devices where nothing runs, largest first.
        """
        short: list[Place] = []
        for device in unused:
            if not self.suits(trial, device):
                continue
            if len(short) == SHORT:
                break
            lane = min(device.idle, key=lambda lane: (len(lane.paused), lane.residue), default=None)
            if lane is not None and (trial.is_apart or (trial.wants_all and not lane.is_bare)):
                lane = None
            others = device.taken - (lane.quota if lane else 0)
            least = 0 if trial.wants_all else sum(o.base for o in device.lanes.values() if o is not lane)
            if others > least and (trial.wants_all or others > device.capacity // 8):
                short.append(Place(device, lane, device.capacity, others - least))
            elif device.taken <= device.capacity:
                return Place(device, lane, device.capacity - others), []
        return None, sorted(short, key=lambda place: place.device.reserved_for is not trial)

    def home(self, trial: Trial, lane: Lane) -> Place | None:
        """The place of a paused trial in its own lane, even if room is missing; None if it may not run there now."""
        device = lane.device
        if lane.residents:
            may_run = self._takes_resident(lane) and not trial.alone and self.admits(trial, lane)
        else:
            may_run = device.seats > 0 and not (trial.alone and device.active)
        demand = trial.set_aside or Demand(trial.rest.bytes, 0)
        if not may_run or not lane.ready or lane.closing:
            return None
        if not self._protection.tolerates(trial, device, lane if lane.residents else None):
            return None
        own = trial.rest.taken
        need = lane.need([*resident_demands(lane), demand]) - own
        if not lane.residents:
            # The trial has run here before, even if the device has no room for the margins.
            least = max(trial.rest.measured, trial.seen.peak if trial.seen else 0)
            others = sum(one.rest.taken for one in lane.paused.values() if one is not trial)
            need = min(need, max(device.capacity + others, lane.base - own + least))
        return self._place(device, lane, need)

    def holes(self, device: Device) -> tuple[int, int]:
        """Largest peak for which a lane of its own is available: now, and once everything unneeded was returned."""
        if device.holes is None:
            device.holes = -1, -1
            if device.seats:
                idle = device.idle
                bare = [device.context + device.shared] if device.may_open else []
                rooms = [*(-own for own in bare), *(lane.quota - lane.base for lane in idle)]
                least = [*bare, *(lane.base if lane.is_empty else 0 for lane in idle)]
                if rooms:
                    room = max(rooms) + device.free
                    returned = device.capacity - self.kept(device) - min(least)
                    device.holes = room if device.free >= 0 else -1, max(room, returned)
        return device.holes

    def kept(self, device: Device) -> int:
        """Bytes that lanes with trials, also paused ones, need on the device."""
        taken = [lane for lane in device.lanes.values() if not lane.is_empty and not lane.closing]
        return sum(lane.asked - self.slack(lane) for lane in taken)

    def shared_holes(self, device: Device) -> tuple[int, int]:
        """Most persistent bytes that one more resident of a lane could have: now, and once all unneeded was returned.

        Negative if no lane takes one.
        """
        if not self.takes_resident(device):
            return -1, -1
        lanes = [lane for lane in device.lanes.values() if self._takes_resident(lane)]
        needs = {lane.id: lane.need(resident_demands(lane)) for lane in lanes}
        now = device.free + max(lane.quota - needs[lane.id] for lane in lanes)
        returned = device.capacity - self.kept(device)
        later = returned + max(lane.asked - self.slack(lane) - needs[lane.id] for lane in lanes)
        return now if device.free >= 0 else -1, max(later, 0)

    def _cost(self, device: Device, trial: Trial) -> float:
        needs = sum(demand.peak for lane in device.lanes.values() for demand in resident_demands(lane))
        busy = sum(one.busy or 0.0 for one in [*device.trials, trial])
        peak = trial.expected.peak if trial.expected else 0
        return self._policy.cost((needs + peak) / max(device.capacity, 1), busy)

    def _places(self, trial: Trial, demand: Demand, device: Device) -> Iterator[Place]:
        """Lanes the trial could have for itself on the device, whether or not there is room."""
        if device.seats and not (trial.exclusive and device.active) and self._protection.tolerates(trial, device):
            for lane in device.idle if not trial.is_apart else ():
                yield self._place(device, lane, lane.need([demand]))
            if device.may_open:
                fresh = device.context + device.shared + demand.peak
                yield Place(device, None, fresh, fresh - device.free)

    def _shared_places(self, trial: Trial, demand: Demand, device: Device) -> Iterator[Place]:
        """Lanes on the device where the trial could take turns, whether or not there is room."""
        for lane in device.lanes.values():
            if not self._takes_resident(lane) or not self.admits(trial, lane):
                continue
            if self._protection.tolerates(trial, device, lane):
                yield self._place(device, lane, lane.need([*resident_demands(lane), demand]))

    def _place(self, device: Device, lane: Lane, need: int) -> Place:
        quota = max(need, lane.asked)
        return Place(device, lane, quota, max(quota - lane.quota, 0) - device.free)

    def _takes_resident(self, lane: Lane) -> bool:
        return (
            0 < len(lane.residents) < self._residents
            and lane.is_open
            and not any(t.alone or t.exclusive or t.is_probe or t.granted > 1 for t in lane.residents.values())
        )


def resident_demands(lane: Lane) -> list[Demand]:
    """What to set aside for each of the residents."""
    return [trial.set_aside or _NOTHING for trial in lane.residents.values()]
