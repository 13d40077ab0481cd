"""Events of devices: that they are found, change in size, are lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cotune.packer import events as ev
from cotune.packer.endings import Endings
from cotune.packer.ledger import Ledger
from cotune.packer.options import PackerOptions
from cotune.packer.reservation import Reservation
from cotune.packer.state import Device
from cotune.packer.trial import Trial
from cotune.packer.width import WidthControl


class DeviceEvents:
    """Updates the state of devices.

    Args:
        options: How many lanes a device has; the policy is told how many devices there are.
        ledger: Holds the devices.
        reservation: Gives up a lost device that is kept free.
        endings: Decides what becomes of trials whose device is gone.
        left: Called first with each trial whose device is gone.
    """

    def __init__(
        self,
        options: PackerOptions,
        ledger: Ledger,
        reservation: Reservation,
        endings: Endings,
        left: Callable[[Trial], None],
    ) -> None:
        self._width = options.width
        self._policy = options.policy
        self._ledger = ledger
        self._reservation = reservation
        self._endings = endings
        self._left = left
        self._count = 0

    @property
    def handlers(self) -> dict[type[ev.Event], Callable[[Any], None]]:
        return {ev.DeviceFound: self._found, ev.DeviceChanged: self._changed, ev.DeviceLost: self._lost}

    def _found(self, event: ev.DeviceFound) -> None:
        if event.device in self._ledger.devices:
            return self._changed(ev.DeviceChanged(event.time, event.device, event.capacity))
        self._count += 1
        device = Device(
            event.device,
            self._count,
            event.capacity,
            event.context,
            self._width_of(event),
            most=event.max_width,
            full=event.capacity,
            opens=event.opens,
            # Most of the device would be left to few trials, if to any, and the figure be corrected late.
            shared=event.shared if event.shared <= event.capacity // 2 else 0,
        )
        self._ledger.add(device)
        self._policy.devices = len(self._ledger.devices)

    def _width_of(self, event: ev.DeviceFound) -> WidthControl:
        policy = self._policy
        if self._width is not None:
            return WidthControl(self._width, width=self._width)
        most = max(event.max_width, event.idle_width)
        begin = most if policy.packs else min(event.width, most)
        guesses = policy.guesses and begin == 1
        return WidthControl(event.max_width, policy.gain, guesses, begin, idle_limit=event.idle_width)

    def _changed(self, event: ev.DeviceChanged) -> None:
        device = self._ledger.devices.get(event.device)
        if device is None:
            return
        if event.max_width is not None:
            device.most = event.max_width
            if self._width is None:
                device.width.limited(event.max_width, at_once=self._policy.packs)
        self._ledger.change(device, event.capacity)

    def _lost(self, event: ev.DeviceLost) -> None:
        device = self._ledger.devices.get(event.device)
        if device is None:
            return
        if device.reserved_for is not None:
            self._reservation.lift(device.reserved_for)
        self._policy.devices = max(1, len(self._ledger.devices) - 1)
        for trial, was_paused in self._ledger.remove(device):
            self._left(trial)
            self._endings.device_lost(trial, event.device, was_paused)
