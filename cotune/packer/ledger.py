"""The ledger: which bytes of each device are set aside for each lane."""

from __future__ import annotations

from cotune.packer import instructions as do
from cotune.packer.fitting import Fitting, Place, resident_demands
from cotune.packer.largest import Largest
from cotune.packer.pool import Pool
from cotune.packer.state import Device, Lane, is_nearly_all
from cotune.packer.trial import Trial


class Ledger:
    """Devices and lanes, and every change to a quota.

    The quotas of a device never grow beyond its capacity: growth counts at once, a shrink when the lane confirms it,
    a closed lane when its process is gone.

    Attributes:
        devices: By name.
        lanes: By number, over all devices.
        pool: Devices where another trial could run.
        version: Counts changes to the largest device or the largest room.
        changes: Counts changes to any device or lane.
        capacity: Bytes of all devices.
        stirred: Devices that have changed since this was cleared; in order, so that the same events lead to the same
            instructions.
        out: Instructions that were not collected yet.
        now: Time of the latest event.

    Args:
        fitting: Knows what a lane can release.
        reuse: Whether a lane takes one trial after the other.
    """

    def __init__(self, fitting: Fitting, *, reuse: bool) -> None:
        self._reuse = reuse
        self.devices: dict[str, Device] = {}
        self.lanes: dict[int, Lane] = {}
        self.pool = Pool(fitting)
        self.version = self.changes = 0
        self.capacity = 0
        self.stirred: dict[Device, None] = {}
        self.out: list[do.Instruction] = []
        self.now = 0.0
        self._fitting = fitting
        self._opened = 0
        # Sizes and rooms of all devices, also of those that are gone.
        self._sizes, self._rooms = Largest(), Largest()
        self._gone: dict[str, Device] = {}

    def add(self, device: Device) -> None:
        self._forget(self._gone.pop(device.name, None))
        self.devices[device.name] = device
        self.capacity += device.capacity
        device.room = _room(device)
        self._sizes.add(device.full)
        self._rooms.add(device.room)
        self._note_largest()
        self.touch(device)

    def change(self, device: Device, capacity: int) -> None:
        self.capacity += capacity - device.capacity
        device.capacity = capacity
        self._sizes.remove(device.full)
        device.full = max(device.full, capacity)
        self._sizes.add(device.full)
        self.touch(device)

    def remove(self, device: Device) -> list[tuple[Trial, bool]]:
        """Removes a device with its lanes; returns the trials that were in them, and whether each was paused.

        It may come back, so trials that only it can hold wait for it until `give_up_gone`.
        """
        del self.devices[device.name]
        self._gone[device.name] = device
        self.capacity -= device.capacity
        self.changes += 1
        self.pool.remove(device)
        return [left for lane in list(device.lanes.values()) for left in self.forget(lane)]

    def give_up_gone(self) -> bool:
        """Forgets devices that are gone, unless memory is still being returned; returns whether it has."""
        if not self._gone or any(lane.closing or lane.unanswered for lane in self.lanes.values()):
            return False
        gone, self._gone = self._gone, {}
        for device in gone.values():
            self._forget(device)
        self._note_largest()
        return True

    def _forget(self, device: Device | None) -> None:
        if device is not None:
            self._sizes.remove(device.full)
            self._rooms.remove(device.room)

    def touch(self, device: Device) -> None:
        """Updates derived state; call after every change to a device or its lanes."""
        if device.name not in self.devices:
            return
        if device.taken > device.capacity:
            self.reclaim(device, device.taken - device.capacity, partly=True)
        self.stirred[device] = None
        self.changes += 1
        _learn_lanes(device)
        device.holes = None
        if device.room != (room := _room(device)):
            self._rooms.remove(device.room)
            self._rooms.add(room)
            device.room = room
            self._note_largest()
        self.pool.update(device)

    def _note_largest(self) -> None:
        largest, room = self._sizes.get(0), self._rooms.get(-1)
        is_new = (largest, room) != (self._fitting.largest, self._fitting.largest_room)
        self.version += is_new
        self.changes += is_new
        self._fitting.largest, self._fitting.largest_room = largest, room

    # ---- lanes

    def open(self, device: Device, quota: int, *, apart: bool = False) -> Lane:
        """Opens a lane; if it is `apart`, or lanes are not reused, it is for one trial only."""
        self._opened += 1
        lane = Lane(self._opened, device, quota, quota, device.context, self.now)
        self.lanes[lane.id] = device.lanes[lane.id] = lane
        lane.retiring = apart or not self._reuse
        device.taken += quota
        self.out.append(do.OpenLane(lane.id, device.name, quota, apart))
        return lane

    def close(self, lane: Lane, *, kill: bool = False) -> None:
        """Orders a lane to end; its bytes are free once it is lost."""
        if not lane.closing:
            lane.closing = True
            self.out.append(do.CloseLane(lane.id, kill))
            self.touch(lane.device)

    def forget(self, lane: Lane) -> list[tuple[Trial, bool]]:
        """Removes a lane that is gone; returns the trials that were in it, and whether each was paused."""
        trials = [*lane.residents.values(), *lane.paused.values()]
        left = [(trial, trial.is_paused) for trial in trials]
        for trial in trials:
            trial.lane = None
        lane.device.taken -= lane.quota
        del self.lanes[lane.id]
        del lane.device.lanes[lane.id]
        self.touch(lane.device)
        return left

    def recycle(self, lane: Lane) -> None:
        """Closes a lane that takes no further trial, once it is empty."""
        if lane.retiring and lane.is_empty and lane.id in self.lanes:
            self.close(lane)

    # ---- quotas

    def resize(self, lane: Lane, quota: int) -> None:
        if quota == lane.asked:
            return
        self.changes += 1
        lane.asked = quota
        lane.unanswered += 1
        if quota > lane.quota:
            lane.device.taken += quota - lane.quota
            lane.quota = quota
        self.out.append(do.ResizeLane(lane.id, quota))

    def resized(self, lane: Lane, quota: int) -> None:
        """Applies the answer to the last resize; answers to earlier ones are only counted."""
        if lane.unanswered == 0:
            return
        lane.unanswered -= 1
        if lane.unanswered or lane.asked >= lane.quota:
            return
        quota = min(quota, lane.quota)
        if quota > lane.asked:
            lane.least = quota
        lane.device.taken -= lane.quota - quota
        lane.quota = lane.asked = quota
        self.touch(lane.device)

    def ensure_need(self, lane: Lane) -> None:
        """Gives the lane the quota its trials need, as far as that is known."""
        if lane.residents and not lane.is_probing and not lane.closing:
            self.ensure(lane, lane.need(resident_demands(lane)))

    def ensure(self, lane: Lane, quota: int) -> None:
        """Gives the lane at least this quota, or as much of it as there is room for."""
        quota = min(quota, lane.quota + lane.device.free)
        if quota > lane.asked:
            self.resize(lane, quota)

    def returnable(self, device: Device, keep: Lane | None) -> int:
        """Bytes that lanes other than `keep` do not need, or are returning already."""
        lanes = [lane for lane in device.lanes.values() if lane is not keep]
        return sum(lane.returning + (lane.asked if lane.is_spare else self._fitting.slack(lane)) for lane in lanes)

    def reclaim(self, device: Device, wanted: int, keep: Lane | None = None, partly: bool = False) -> bool:
        """Asks lanes other than `keep` for bytes they do not need.

        Returns:
            Whether that yields `wanted` bytes, with what is being returned already; if not, nothing is asked for unless
            `partly`.
        """
        possible = self.returnable(device, keep)
        if possible < wanted and not partly:
            return False
        lanes = [lane for lane in device.lanes.values() if lane is not keep]
        under_way = sum(lane.returning for lane in lanes)
        slacks = {lane.id: self._fitting.slack(lane) for lane in lanes}
        said = len(self.out)
        for lane in sorted(lanes, key=lambda lane: -slacks[lane.id]):
            if under_way < wanted and slacks[lane.id]:
                self.resize(lane, lane.quota - slacks[lane.id])
                under_way += slacks[lane.id]
        for lane in lanes:
            if under_way < wanted and lane.is_spare:
                under_way += lane.asked
                lane.closing = True
                self.changes += 1
                self.out.append(do.CloseLane(lane.id))
        if len(self.out) > said:
            device.holes = None
            self.pool.update(device)
        return possible >= wanted

    def make_room(self, places: list[Place]) -> Device | None:
        """Asks lanes to return the bytes missing at one of these places; None if that is impossible at all of them."""
        for place in places:
            if self.reclaim(place.device, place.missing, keep=place.lane):
                return place.device
        return None


def _learn_lanes(device: Device) -> None:
    """Estimates what a new lane holds: the most that any ready lane does, or the last known figure."""
    ready = [lane for lane in device.lanes.values() if lane.ready]
    if ready:
        device.context = max(lane.context for lane in ready)
    # A lane may not hold its shared objects before a trial runs.
    shared = [lane.shared for lane in ready if lane.has_iterated or lane.served or lane.shared]
    if shared:
        device.shared = max(shared)


def _room(device: Device) -> int:
    """Largest peak that fits on a device when nothing else runs there; other programs may keep a little for good."""
    own = device.capacity if is_nearly_all(device.capacity, device.full) else device.full
    return own - device.context - device.shared
