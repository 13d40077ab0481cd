"""The device that is kept free for a trial which others have overtaken too often."""

from __future__ import annotations

from heapq import nlargest
from itertools import takewhile

from cotune.packer.fitting import Fitting
from cotune.packer.forecast import Forecast
from cotune.packer.ledger import Ledger
from cotune.packer.line import Line
from cotune.packer.state import Device
from cotune.packer.trial import Trial

# How many are looked at where no device can hold the first at present.
LOOK_AHEAD = 4
# Of how many devices, those with most room, it is asked when there will be enough.
ROOMIEST = 16


class Reservation:
    """Keeps one device free at a time, at most; see `KeptDevice` for what starts there all the same.

    Args:
        patience: How many trials may overtake one that does not fit before a device is kept free for it.
        ledger: Has the devices.
        line: Who waits.
        fitting: Knows which device would do.
        forecast: Knows which of those will soonest have room.

    Attributes:
        device: The one that is kept free; None if none is.
    """

    def __init__(self, patience: int, ledger: Ledger, line: Line, fitting: Fitting, forecast: Forecast) -> None:
        self.device: Device | None = None
        self._patience = patience
        self._ledger = ledger
        self._line = line
        self._fitting = fitting
        self._forecast = forecast

    @property
    def trial(self) -> Trial | None:
        """Whom the device is kept free for."""
        return self.device.reserved_for if self.device is not None else None

    def lift(self, trial: Trial) -> None:
        """Lets go of the device that is kept free for the trial, if one is."""
        device = self.device
        if device is not None and device.reserved_for is trial:
            device.reserved_for = self.device = None
            self._ledger.touch(device)

    def forget(self, device: Device) -> None:
        """A device is gone."""
        if self.device is device:
            self.device = None

    def check(self) -> None:
        """Lets go of a device that would no longer do for its trial, or that one with a higher priority might have."""
        if self.device is not None and (trial := self.trial) is not None:
            self._line.refresh(trial)
            head = self._line.head()
            goes_first = head is not None and head.priority > trial.priority and self._fitting.suits(head, self.device)
            if goes_first or not self._fitting.suits(trial, self.device):
                self.lift(trial)

    def review(self) -> None:
        """Keeps a device free for the first in line, if others have overtaken it too often.

        If none would do, as while somebody else uses their memory, for the next.
        """
        head = self._line.head() if self.device is None else None
        if head is not None and head.overtaken >= self._patience:
            overtaken = (trial for trial in self._line.first(LOOK_AHEAD) if trial.overtaken >= self._patience)
            any(map(self._keep_free, overtaken))

    def overtaken_by(self, trial: Trial) -> None:
        """Counts for who is first in line that another one starts, and for the next behind one that cannot."""
        head = self._line.head()
        if head is None or head is trial:
            return
        head.overtaken += 1
        if head.overtaken > self._patience:
            # No device would do for it, or one would be kept free.
            for other in takewhile(lambda other: other is not trial, self._line.first(LOOK_AHEAD)[1:]):
                other.overtaken += 1

    def gives_way(self, trial: Trial) -> bool:
        """Keeps a device free for one with a higher priority that does not fit, before this one starts."""
        head = self._line.head()
        if head is None or head.priority <= trial.priority:
            return False
        if (kept := self.trial) is not None:
            if kept.priority >= head.priority:
                return False
            self.lift(kept)
        return self._keep_free(head)

    def _keep_free(self, trial: Trial) -> bool:
        able = [device for device in self._ledger.devices.values() if self._fitting.suits(trial, device)]
        if not able:
            return False
        if trial.wants_all:
            largest = max(device.capacity for device in able)
            able = [device for device in able if device.capacity == largest]
        roomiest = nlargest(ROOMIEST, able, key=lambda device: device.free)
        device = min(roomiest, key=lambda device: self._forecast.outlook(trial, device).seconds)
        self.device, device.reserved_for = device, trial
        self._ledger.touch(device)
        return True
