"""When there will be room on a device."""

from __future__ import annotations

import math
from typing import NamedTuple

from cotune.packer.fitting import Fitting
from cotune.packer.interference import common_speed, neighbours
from cotune.packer.predictor import Predictor
from cotune.packer.state import Device, Lane, Trial


class Outlook(NamedTuple):
    """What one that waits for room on a device has to expect.

    Attributes:
        seconds: Until there is room for it; infinite if nobody can tell.
        spare: Bytes that are left beside it then for others; none if it is not to be slowed down by any.
    """

    seconds: float
    spare: int = 0


class Forecast:
    """Looks ahead by how long those that run are expected to go on.

    Args:
        fitting: Knows how much room trials take.
        predictor: Knows how long they go on.
    """

    def __init__(self, fitting: Fitting, predictor: Predictor) -> None:
        self._fitting = fitting
        self._predictor = predictor

    def outlook(self, trial: Trial, device: Device) -> Outlook:
        """When a device will have room for a trial, if nothing else starts there."""
        wants_all = trial.expected is None or trial.wants_all
        missing = (math.inf if wants_all else self._fitting.needs(trial, device)) - device.free
        running: list[Lane] = []
        for lane in device.lanes.values():
            if lane.residents:
                running.append(lane)
            missing -= lane.quota if lane.is_empty else lane.returning
        seconds = 0.0
        if missing > 0:
            speed = common_speed([trial for lane in running for trial in lane.residents.values()])
            for left, lane in sorted(((self._left(lane), lane) for lane in running), key=lambda end: end[0]):
                seconds = left / speed
                missing -= lane.asked - (lane.base if lane.paused else 0)
                if missing <= 0:
                    break
        if missing <= 0:
            return Outlook(seconds, -int(missing) if trial.priority <= 0 else 0)
        return Outlook(seconds if wants_all else math.inf)

    def is_in_the_way(self, trial: Trial, device: Device, coming: Outlook) -> bool:
        """Whether a trial that started there now would neither be over by then nor leave enough room."""
        if self._fitting.needs(trial, device) <= coming.spare:
            return False
        left = self._predictor.seconds_left(trial)
        return left is None or left / common_speed([trial, *neighbours(trial, device)]) > coming.seconds

    def _left(self, lane: Lane) -> float:
        """How long a lane's trials, by turns, go on if nobody slows them down; infinite if nobody can tell."""
        left = [self._predictor.seconds_left(trial) for trial in lane.residents.values()]
        return sum(math.inf if one is None else one for one in left)
