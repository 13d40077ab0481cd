"""Devices with a seat, sorted in the ways in which they are searched."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from cotune.packer.fitting import Fitting
from cotune.packer.state import Device

LOOK = 8

_Entry = tuple[int, int, Device]


class Pool:
    """Finds a device for a trial without looking at all of them.

    A device that is kept free for a trial is in none of the sorted lists.

    Attributes:
        with_seat: Devices where another trial could run by the number of lanes, by name.
        seats: How many more trials could run at once by the number of lanes.
        breadth: Lanes that may run at once on all devices.
    """

    def __init__(self, fitting: Fitting) -> None:
        self.with_seat: dict[str, Device] = {}
        self.seats = 0
        self.breadth = 0
        self._fitting = fitting
        self._now: dict[int, list[_Entry]] = {}
        self._later: list[_Entry] = []
        self._unused: list[_Entry] = []
        self._shared: list[_Entry] = []
        self._shared_later: list[_Entry] = []
        self._kept: dict[str, list[tuple[list[_Entry], _Entry]]] = {}
        self._counted: dict[str, tuple[int, int]] = {}

    def update(self, device: Device) -> None:
        """Updates the lists; call after every change to a device."""
        self._drop(device)
        seats = self._fitting.seats(device)
        self._counted[device.name] = seats, device.width.width
        self.seats += seats
        self.breadth += device.width.width
        if not seats:
            return
        own = device.seats > 0
        if own or self._fitting.takes_resident(device):
            self.with_seat[device.name] = device
        if device.reserved_for is not None:
            return
        kept = self._kept[device.name]
        if own:
            now, later = self._fitting.holes(device)
            active = device.active
            self._keep(kept, self._now.setdefault(active, []), (now, device.number, device))
            self._keep(kept, self._later, (later, device.number, device))
            if not active:
                self._keep(kept, self._unused, (-device.capacity, device.number, device))
        shared, later = self._fitting.shared_holes(device)
        if shared >= 0:
            self._keep(kept, self._shared, (shared, device.number, device))
        if later >= 0:
            self._keep(kept, self._shared_later, (later, device.number, device))

    def remove(self, device: Device) -> None:
        self._drop(device)
        del self._kept[device.name], self._counted[device.name]

    @property
    def roomiest(self) -> int:
        """Largest peak for which a lane of its own is available now, on any device; negative if there is none."""
        return max((order[-1][0] for order in self._now.values() if order), default=-1)

    @property
    def roomiest_later(self) -> int:
        """The same, once everything unneeded was returned."""
        return self._later[-1][0] if self._later else -1

    @property
    def most_shared_later(self) -> int:
        """Most persistent bytes that one more resident of a lane could have, once everything unneeded was returned.

        Negative if no lane takes another.
        """
        return self._shared_later[-1][0] if self._shared_later else -1

    @property
    def has_unused(self) -> bool:
        return bool(self._unused)

    def with_room(self, peak: int, widely: bool = False) -> Iterator[Device]:
        """Devices with a lane for this peak: some with the least room, of those with the fewest running lanes.

        Args:
            peak: Bytes.
            widely: Whether to add some with each larger number of running lanes.
        """
        for active in sorted(self._now):
            order = self._now[active]
            start = bisect_left(order, (peak,))
            yield from (device for _, _, device in order[start : start + LOOK])
            if start < len(order) and not widely:
                return

    def with_room_later(self, peak: int) -> Iterator[Device]:
        """Some devices that would have a lane for this peak once other lanes returned memory."""
        start = bisect_left(self._later, (peak,))
        return (device for _, _, device in self._later[start : start + LOOK])

    def with_turns(self, persistent: int) -> Iterator[Device]:
        """Devices where a lane might take another resident with this many persistent bytes."""
        return (device for _, _, device in self._shared[bisect_left(self._shared, (persistent,)) :])

    def unused(self) -> Iterator[Device]:
        """Devices where nothing runs, the largest first."""
        return (device for _, _, device in self._unused)

    def _keep(self, kept: list[tuple[list[_Entry], _Entry]], order: list[_Entry], entry: _Entry) -> None:
        insort(order, entry)
        kept.append((order, entry))

    def _drop(self, device: Device) -> None:
        for order, entry in self._kept.get(device.name, ()):
            del order[bisect_left(order, entry)]
        self._kept[device.name] = []
        seats, width = self._counted.get(device.name, (0, 0))
        self.seats -= seats
        self.breadth -= width
        self.with_seat.pop(device.name, None)
