"""The device kept free for a trial that others have overtaken too often."""

from __future__ import annotations

from heapq import nlargest
from itertools import takewhile

from cotune.packer.fitting import Fitting
from cotune.packer.forecast import Forecast
from cotune.packer.ledger import Ledger
from cotune.packer.line import Line
from cotune.packer.state import Device
from cotune.packer.trial import Trial

# Trials considered if no device can hold the first one at present.
LOOK_AHEAD = 4
# Devices, those with most room, for which it is predicted when there will be enough.
ROOMIEST = 16


class Reservation:
    """Keeps at most one device free at a time; see `KeptDevice` for what may start there meanwhile.

    Args:
        patience: How many trials may overtake a trial that does not fit before a device is kept free for it.
        ledger: Holds the devices.
        line: The waiting trials.
        fitting: Knows which devices suit a trial.
        forecast: Predicts which of those will have room soonest.

    Attributes:
        device: The device kept free, or None.
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
        """The trial for which the device is kept free."""
        return self.device.reserved_for if self.device is not None else None

    def lift(self, trial: Trial) -> None:
        """Releases the device that is kept free for the trial, if any."""
        device = self.device
        if device is not None and device.reserved_for is trial:
            device.reserved_for = self.device = None
            self._ledger.touch(device)

    def check(self) -> None:
        """Releases the device if it no longer suits its trial, or if a trial with a higher priority could have it."""
        if self.device is not None and (trial := self.trial) is not None:
            self._line.refresh(trial)
            head = self._line.head()
            goes_first = head is not None and head.priority > trial.priority and self._fitting.suits(head, self.device)
            if goes_first or not self._fitting.suits(trial, self.device):
                self.lift(trial)

    def review(self) -> None:
        """Keeps a device free for the first in line, if others have overtaken it too often.

        If no device suits it, as while other programs use their memory, the next trial in line gets one.
        """
        head = self._line.head() if self.device is None else None
        if head is not None and head.overtaken >= self._patience:
            overtaken = (trial for trial in self._line.first(LOOK_AHEAD) if trial.overtaken >= self._patience)
            any(map(self._keep_free, overtaken))

    def overtaken_by(self, trial: Trial) -> None:
        """Counts, for the first in line, that another trial starts; also for the next ones if none suits the first."""
        head = self._line.head()
        if head is None or head is trial:
            return
        head.overtaken += 1
        if head.overtaken > self._patience:
            # No device suits it, or one would be kept free by now.
            for other in takewhile(lambda other: other is not trial, self._line.first(LOOK_AHEAD)[1:]):
                other.overtaken += 1

    def gives_way(self, trial: Trial) -> bool:
        """Keeps a device free for a trial with a higher priority that does not fit, before this one starts."""
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
