"""Why a trial waits, in words and figures."""

from __future__ import annotations

from cotune.demand import format_bytes
from cotune.packer.company import Company
from cotune.packer.fitting import Fitting
from cotune.packer.ledger import Ledger
from cotune.packer.state import Device
from cotune.packer.trial import Trial


class Reasons:
    """Explains what placement does, without changing anything.

    Args:
        ledger: Holds the devices.
        fitting: Knows what fits.
        company: Knows which trials must not run beside each other.
    """

    def __init__(self, ledger: Ledger, fitting: Fitting, company: Company) -> None:
        self._ledger = ledger
        self._fitting = fitting
        self._company = company

    def why(self, trial: Trial) -> str:
        """Why the trial waits, with figures."""
        if not self._ledger.devices:
            return "there is no device now"
        if not self._ledger.pool.with_seat:
            return self._company.critical.explain(self._ledger.devices.values()) or self._no_lane()
        devices = [device for device in self._ledger.pool.with_seat.values() if device.reserved_for in (None, trial)]
        if not devices:
            return "a device is kept free for a trial that has waited longer"
        if trial.expected is None or trial.wants_all:
            unused = [device for device in devices if not device.active]
            found, short = self._fitting.find_whole(trial, sorted(unused, key=lambda device: -device.capacity))
        else:
            found, short = self._fitting.find(trial, devices), self._fitting.short(trial, devices)
        if found is not None:
            return "its turn has not come"
        if trial.exclusive and all(device.active for device in devices if self._fitting.suits(trial, device)):
            return "its policy wants a device without other lanes for it, and none is unused"
        reason = self._unfit(trial, devices)
        for place in short:
            lanes = (lane for lane in place.device.lanes.values() if lane is not place.lane)
            if sum(lane.returning for lane in lanes) >= place.missing:
                return f"{reason}; it is being freed"
        return reason

    def _no_lane(self) -> str:
        """Why no device has a lane left."""
        for device in self._ledger.devices.values():
            if device.width.limit <= device.active < device.width.width:
                return f"those that run leave {device.name} no time for another"
        return "every lane is taken"

    def _unfit(self, trial: Trial, devices: list[Device]) -> str:
        """Why no device has a place for the trial."""
        needs = min(self._fitting.needs(trial, device) for device in devices)
        if max(device.full for device in self._ledger.devices.values()) < needs <= self._fitting.largest:
            return f"needs {format_bytes(needs)}, and a device with that much is gone; it may come back"
        if trial.expected is not None and not trial.wants_all:
            roomy = [device for device in devices if device.seats]
            if not roomy:
                return self._company.critical.explain(devices) or self._no_lane()
            if not any(device.may_open for device in roomy):
                return "lanes come up a few at a time, and no other is free"
            if (spared := self._company.protection.explain(trial, roomy)) is not None:
                return spared
            best = max(roomy, key=lambda device: max(self._fitting.holes(device)[0], device.free))
            room = f"largest hole {format_bytes(max(best.free, 0))} on {best.name}"
            return f"needs {format_bytes(self._fitting.needs(trial, best))}, {room}"
        best = max(devices, key=lambda device: device.capacity)
        able = [device for device in self._ledger.devices.values() if self._fitting.suits(trial, device)]
        if not able:
            room = f"{format_bytes(max(best.capacity, 0))} of {best.name} open to us"
            return f"needs {format_bytes(self._fitting.needs(trial, best))}, and others leave {room}"
        why = "must run alone" if trial.wants_all else "nothing like it was measured yet: it must try a whole device"
        if all(device.active for device in able):
            return f"{why}, and every device that is large enough is in use"
        return f"{why}: waits for idle lanes to return memory"
