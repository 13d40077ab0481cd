"""The simulated body: simulated devices and lanes that follow the contract of bodies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from cotune.engines.base import Engine
from cotune.engines.simulated.calendar import Calendar, Said
from cotune.engines.simulated.lanes import Device, Lane
from cotune.engines.simulated.model import Costs, Work
from cotune.engines.simulated.trials import Trials
from cotune.packer import events as ev
from cotune.packer import instructions as do
from cotune.packer.interference import speed_of_each
from cotune.trial import TrialSpec


class SimulatedEngine(Engine):
    """Runs simulated trials on simulated devices; `poll()` lets virtual time pass until something happens.

    Lanes run in parallel and slow each other down by the sum of their trials' device use; residents of a lane take
    turns evenly, or as `GiveTurn` says. A trial that exceeds its lane's quota runs out of memory; a trial with a grant
    gives that back first. The effect of a grant on other trials of the device is not modelled.

    Args:
        devices: The devices there are.
        model: Returns what a trial does.
        costs: Durations of the body's actions.
        speed: How fast trials run beside each other (1 is the speed alone), given what each uses of the device.
    """

    def __init__(
        self,
        devices: Iterable[ev.DeviceFound],
        model: Callable[[TrialSpec], Work],
        costs: Costs | None = None,
        speed: Callable[[list[float]], float] = speed_of_each,
    ) -> None:
        self._devices = {found.device: Device(found) for found in devices}
        self._costs = costs or Costs()
        self._calendar = Calendar()
        self._trials = Trials(model, self._costs, self._calendar, self._end_lane, speed)
        self._lanes: dict[int, Lane] = {}
        self._to_lanes: dict[type[do.ToLane], Callable[[Lane, Any], None]] = {
            do.ResizeLane: self._resize,
            do.CloseLane: self._close,
            do.GiveTurn: self._give_turn,
        }

    # ---- the contract

    def start(self, is_over: Callable[[], bool] = lambda: False) -> list[ev.DeviceFound]:
        return [device.found for device in self._devices.values()]

    def execute(self, instruction: do.Instruction, spec: TrialSpec | None = None) -> None:
        if isinstance(instruction, do.StartTrial):
            assert spec is not None
            lane = self._lanes.get(instruction.lane)
            if lane is not None and not lane.gone:
                self._trials.start(spec, lane)
        elif isinstance(instruction, do.OpenLane):
            self._open(instruction)
        elif isinstance(instruction, do.ToTrial):
            self._trials.tell(instruction)
        elif isinstance(instruction, do.ToLane) and instruction.lane in self._lanes:
            self._to_lanes[type(instruction)](self._lanes[instruction.lane], instruction)

    def poll(self, timeout: float) -> list[Said]:
        """The next events; the clock jumps to them, or by `timeout` seconds if nothing happens before."""
        return self._calendar.poll(timeout)

    def verdict(self, trial: int, attempt: int) -> None:
        self._trials.verdict(trial, attempt)

    def answer(self, trial: int, attempt: int, payload: bytes) -> None:
        """Does nothing: simulated trials ask nothing."""

    def wake(self) -> None:
        """Does nothing: a poll never waits in real time."""

    def close(self) -> None:
        self._calendar.clear()
        self._lanes.clear()

    def now(self) -> float:
        return self._calendar.time

    def at(self, time: float, event: Said) -> None:
        """Schedules an event from outside the engine."""
        self._calendar.later(time - self._calendar.time, self._calendar.say, event)

    # ---- lanes

    def _open(self, instruction: do.OpenLane) -> None:
        device = self._devices[instruction.device]
        lane = Lane(instruction.lane, device, instruction.quota, device.found.context)
        self._lanes[lane.id] = device.lanes[lane.id] = lane
        self._calendar.later(self._costs.open, self._opened, lane)

    def _opened(self, lane: Lane) -> None:
        if not lane.gone:
            lane.ready = True
            self._calendar.say(ev.LaneReady(self._calendar.time, lane.id, lane.context))
            self._trials.paces.renew(lane.device)

    def _resize(self, lane: Lane, instruction: do.ResizeLane) -> None:
        lane.quota = max(instruction.quota, min(lane.quota, lane.held))
        self._calendar.later(self._costs.resize, self._resized, (lane, lane.quota))

    def _resized(self, answer: tuple[Lane, int]) -> None:
        lane, quota = answer
        if not lane.gone:
            self._calendar.say(ev.LaneResized(self._calendar.time, lane.id, quota))

    def _close(self, lane: Lane, instruction: do.CloseLane) -> None:
        if not lane.gone:
            self._end_lane(lane, "killed" if instruction.kill else "closed", self._costs.close)

    def _end_lane(self, lane: Lane, detail: str, after: float = 0.0) -> None:
        """Ends a lane's process with everything that runs in it; `LaneLost`, after `after` seconds, frees its bytes."""
        holder = lane.holder
        lane.gone = True
        for run in list(lane.runs.values()):
            self._trials.forget(run)
        self._calendar.later(after, self._lost, (lane, holder.trial if holder else None, detail))
        self._trials.paces.renew(lane.device)

    def _lost(self, what: tuple[Lane, int | None, str]) -> None:
        lane, holder, detail = what
        del self._lanes[lane.id], lane.device.lanes[lane.id]
        self._calendar.say(ev.LaneLost(self._calendar.time, lane.id, holder, detail))

    def _give_turn(self, lane: Lane, instruction: do.GiveTurn) -> None:
        lane.given = instruction.trial
        self._trials.paces.renew(lane.device)


def devices(
    count: int, capacity: int, context: int = 0, max_width: int = 16, idle_width: int = 0
) -> Sequence[ev.DeviceFound]:
    """`count` equal devices."""
    device = ev.DeviceFound(0.0, "", capacity, context, max_width, idle_width=idle_width)
    return [replace(device, device=f"gpu {number}") for number in range(count)]
