"""How fast trials run beside each other, and so when each reaches its next boundary."""

from __future__ import annotations

from collections.abc import Callable

from cotune.engines.simulated.calendar import Calendar
from cotune.engines.simulated.lanes import Device, Run, busy


class Paces:
    """Keeps the calendar up to date with when trials reach their next goal.

    Args:
        calendar: The body's calendar.
        reach: Called with a run that has reached its goal.
        speed: How fast trials run beside each other.
    """

    def __init__(self, calendar: Calendar, reach: Callable[[Run], None], speed: Callable[[list[float]], float]) -> None:
        self._calendar = calendar
        self._reach = reach
        self._speed = speed

    def renew(self, device: Device) -> None:
        """Recomputes how fast the trials of a device run, and when each reaches its next boundary."""
        lanes = [(lane, lane.moving()) for lane in device.lanes.values()]
        loads = [load for _, moving in lanes if (load := busy(moving))]
        speed = self._speed(loads)
        for lane, moving in lanes:
            for run in lane.runs.values():
                share = 1.0 / len(moving) if run in moving else 0.0
                rate = share if run.is_starting else speed * share * run.work.gain(run.concurrency)
                self._set(run, rate, share)

    def _set(self, run: Run, rate: float, share: float) -> None:
        if rate == run.rate and run.booked:
            return
        run.settle(self._calendar.time)
        goal = run.next_goal()
        run.rate, run.share, run.goal = rate, share, goal
        run.version += 1
        run.booked = rate > 0.0
        if run.booked:
            self._calendar.later(run.seconds_to(goal) / rate, self._arrive, (run, run.version))

    def _arrive(self, what: tuple[Run, int]) -> None:
        run, version = what
        if version != run.version:
            return
        run.settle(self._calendar.time)
        run.startup = 0.0
        run.progress = run.goal * run.work.step_seconds
        run.booked = False
        at_once = run.concurrency
        self._reach(run)
        if run.lane.runs.get(run.trial) is run:
            if run.is_moving and run.concurrency == at_once:
                self._set(run, run.rate, run.share)
            else:
                self.renew(run.lane.device)
