"""When there will be room on a device."""

from __future__ import annotations

import math
from typing import NamedTuple

from cotune.packer.fitting import Fitting
from cotune.packer.interference import common_speed, foremost, speed_there
from cotune.packer.predictor import Predictor
from cotune.packer.state import Device, Lane
from cotune.packer.trial import Trial


class Outlook(NamedTuple):
    """What a trial that waits for room on a device has to expect.

    Attributes:
        seconds: Predicted seconds until there is room for it; infinite if unknown.
        spare: Bytes left for other trials then; 0 if it must not be slowed by any.
    """

    seconds: float
    spare: int = 0


class Forecast:
    """Predicts when room becomes free, from the predicted remaining times of running trials.

    Args:
        fitting: Knows how much room trials take.
        predictor: Predicts how long they go on.
    """

    def __init__(self, fitting: Fitting, predictor: Predictor) -> None:
        self._fitting = fitting
        self._predictor = predictor

    def outlook(self, trial: Trial, device: Device, beside: Trial | None = None) -> Outlook:
        """When a device will have room and a seat for a trial.

        Args:
            trial: The waiting trial.
            device: The device.
            beside: A trial that would also run there and slow down the others; None if nothing else starts there.
        """
        wants_all = trial.expected is None or trial.wants_all or trial.exclusive
        missing = (math.inf if wants_all else self._fitting.needs(trial, device)) - device.free
        running: list[Lane] = []
        for lane in device.lanes.values():
            if lane.is_empty or lane.closing:
                missing -= lane.quota
                continue
            missing -= lane.returning + self._fitting.slack(lane)
            if lane.residents:
                running.append(lane)
        seconds, seats = 0.0, device.seats
        if missing > 0 or not seats:
            crowd = [foremost(lane.residents.values()) for lane in running]
            speed = common_speed(crowd if beside is None else [*crowd, beside])
            for left, lane in sorted(((self._left(lane), lane) for lane in running), key=lambda end: end[0]):
                seconds, seats = left / speed, seats + 1
                missing -= lane.asked - self._fitting.slack(lane) - (lane.base if lane.paused else 0)
                if missing <= 0:
                    break
        if missing <= 0 and seats:
            # A trial with priority may not tolerate being slowed.
            return Outlook(seconds, -int(missing) if trial.priority <= 0 else 0)
        return Outlook(seconds if wants_all else math.inf)

    def seconds(self, trial: Trial, device: Device) -> float:
        """How long a trial will take on a device beside those that run there; infinite if unknown."""
        left = self._predictor.seconds_left(trial)
        return math.inf if left is None else left / speed_there(trial, device)

    def _left(self, lane: Lane) -> float:
        """How long a lane's trials, taking turns, go on if nothing slows them; infinite if unknown."""
        left = [self._predictor.seconds_left(trial) for trial in lane.residents.values()]
        return sum(math.inf if one is None else one for one in left)
