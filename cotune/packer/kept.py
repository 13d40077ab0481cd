"""What starts on the device kept free."""

from __future__ import annotations

import math
from collections.abc import Callable

from cotune.packer.fitting import Fitting, Place
from cotune.packer.forecast import Forecast
from cotune.packer.ledger import Ledger
from cotune.packer.line import Line, Shape
from cotune.packer.options import PackerOptions
from cotune.packer.queue import Mark
from cotune.packer.reservation import Reservation
from cotune.packer.state import Device
from cotune.packer.trial import Trial

# Trials in line considered per event.
LOOK = 4
# Factor by which the wait of the device's trial may grow because trials that start meanwhile slow the running ones.
DELAY = 2.0


class KeptDevice:
    """Starts the trial that a device is kept free for, and meanwhile trials that do not delay it.

    The latter is EASY backfilling (Lifka, JSSPP'95, section 3), of memory instead of nodes: a trial may go first if it
    is expected to end by the time there is room, or leaves enough room. Unlike nodes, trials on one device slow each
    other down, so the deadline for that room is twice the time expected when the device was first kept free.

    Args:
        options: With several residents, a turn in a lane will also do.
        ledger: Knows which devices have changed, and makes room on them.
        line: The waiting trials.
        fitting: Knows what fits.
        forecast: Predicts when there will be room.
        reservation: Knows which device is kept free, and for which trial.
        start: Starts a trial at a place.
    """

    def __init__(
        self,
        options: PackerOptions,
        ledger: Ledger,
        line: Line,
        fitting: Fitting,
        forecast: Forecast,
        reservation: Reservation,
        start: Callable[[Trial, Place], None],
    ) -> None:
        self._residents = options.residents
        self._ledger = ledger
        self._line = line
        self._fitting = fitting
        self._forecast = forecast
        self._reservation = reservation
        self._start = start
        self._seen: tuple[int, int, tuple[int, int]] | None = None
        # The trial and device as of the last look, and the deadline for its room; infinite while unknown.
        self._kept: tuple[Trial | None, Device | None] = (None, None)
        self._until = math.inf

    def take(self) -> None:
        """Starts the trial for which the device is kept free, if it fits there now; otherwise makes room there."""
        device, trial = self._reservation.device, self._reservation.trial
        if self._kept != (trial, device):
            self._kept, self._until, self._seen = (trial, device), math.inf, None
        if device is None or trial is None:
            return
        trial.exclusive = self._line.wants_device(trial)
        if trial.expected is None or trial.wants_all:
            place, short = self._fitting.find_whole(trial, [] if device.active else [device])
        else:
            now, later = self._fitting.holes(device)
            place = self._fitting.find(trial, [device]) if now >= trial.expected.peak else None
            short = self._fitting.short(trial, [device]) if place is None and later >= trial.expected.peak else []
        may_share = self._residents > 1 and not (trial.wants_all or trial.is_apart or trial.exclusive)
        if place is None and self._ledger.make_room(short) is None and may_share:
            # No lane of its own is available here for now: turns in a lane are better than further waiting.
            place = self._fitting.find(trial, [device], share=True) if trial.expected is not None else None
        if place is not None:
            self._start(trial, place)

    def fill(self) -> None:
        """Starts trials that do not delay that trial, or asks for room for them."""
        device, trial = self._reservation.device, self._reservation.trial
        if device is None or trial is None or device not in self._ledger.stirred:
            return
        # Most events there are progress, which makes no room.
        seen, self._seen = self._seen, (len(self._line), device.seats, self._fitting.holes(device))
        if self._seen == seen:
            return
        passed: dict[Shape, Mark] = {}
        for _ in range(LOOK):
            most = self._fitting.holes(device)[1]
            if not device.seats or most <= 0:
                return
            found = self._line.next_in_lane(most, passed)
            if found is None:
                return
            if self._line.refresh(found):
                continue
            found.exclusive = self._line.wants_device(found)
            place = self._fitting.find(found, [device])
            places = [place] if place is not None else self._fitting.short(found, [device])
            if found is trial or not places or self._is_in_the_way(found, places[0], trial):
                passed[self._line.shape(found)] = self._line.mark(found)
            elif place is not None:
                self._reservation.overtaken_by(found)
                self._start(found, place)
            elif self._ledger.make_room(places) is not None:
                return

    def _is_in_the_way(self, found: Trial, place: Place, trial: Trial) -> bool:
        """Whether the device's trial would wait too long if this one started there now."""
        device, now = place.device, self._ledger.now
        if math.isinf(self._until):
            alone = self._forecast.outlook(trial, device).seconds
            self._until = now + DELAY * alone if alone > 0 else math.inf
        coming = self._forecast.outlook(trial, device, found)
        if not 0 < coming.seconds < math.inf or now + coming.seconds > self._until:
            return True
        return place.quota > coming.spare and self._forecast.seconds(found, device) > coming.seconds
