"""When there will be room on a device."""

from __future__ import annotations

import math
from typing import NamedTuple

from cotune.packer.fitting import Fitting
from cotune.packer.interference import common_speed, foremost, neighbours
from cotune.packer.predictor import Predictor
from cotune.packer.state import Device, Lane
from cotune.packer.trial import Trial


class Outlook(NamedTuple):
    """What one that waits for room on a device has to expect.

    Attributes:
        seconds: Until there is room for it, if all go on as long as they are expected to; infinite if nobody can tell.
        spare: Bytes that are left for others then; none if it is not to be slowed down by any.
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

    def outlook(self, trial: Trial, device: Device, beside: Trial | None = None) -> Outlook:
        """When a device will have room and a seat for a trial.

        Args:
            trial: Who waits.
            device: Where.
            beside: Who would run there, too, and slow down the others; None if nothing else starts there.
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
            # Who has priority may not want to be slowed down by anybody there.
            return Outlook(seconds, -int(missing) if trial.priority <= 0 else 0)
        return Outlook(seconds if wants_all else math.inf)

    def seconds(self, trial: Trial, device: Device) -> float:
        """How long a trial will take on a device beside those that run there; infinite if nobody can tell."""
        left = self._predictor.seconds_left(trial)
        return math.inf if left is None else left / common_speed([trial, *neighbours(trial, device)])

    def _left(self, lane: Lane) -> float:
        """How long a lane's trials, by turns, go on if nobody slows them down; infinite if nobody can tell."""
        left = [self._predictor.seconds_left(trial) for trial in lane.residents.values()]
        return sum(math.inf if one is None else one for one in left)
