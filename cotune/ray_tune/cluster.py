"""A Ray cluster as a body: lanes are actors on the devices that `Slots` has reserved."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from cotune.engines.others import OthersOnGpu, is_short_of_memory
from cotune.engines.stillborn import Stillborn
from cotune.engines.translation import event_of
from cotune.errors import first_line
from cotune.packer import events as ev
from cotune.packer import instructions as do
from cotune.ray_tune.actor_lane import ActorLane
from cotune.ray_tune.lane import Beat
from cotune.ray_tune.slot import ON_EVERY_NODE, ClusterOptions, Slot
from cotune.ray_tune.slots import Slots, alive_nodes, kill
from cotune.sharing import wire
from cotune.sharing.lane_options import LaneOptions

QUIET_AFTER = 1.5
WATCH_EVERY = 1.0
MISSED_AFTER = 20.0
MANY = 48

log = logging.getLogger(__name__)


class Cluster:
    """Lanes on the devices of a Ray cluster. For one thread only."""

    def __init__(self, options: ClusterOptions) -> None:
        self._options = options
        self._slots = Slots(options)
        self._lanes: dict[int, ActorLane] = {}
        self._stillborn = Stillborn(ON_EVERY_NODE)
        self._watch_due = 0.0
        self._missed_at = self.now() + MISSED_AFTER
        self._pending: list[ev.Event] = []

    @property
    def has_devices(self) -> bool:
        return bool(self._slots.up)

    @property
    def is_watch_due(self) -> bool:
        return self.now() >= self._watch_due

    def lane(self, number: int) -> ActorLane | None:
        return self._lanes.get(number)

    def _on(self, slot: Slot) -> list[ActorLane]:
        return [lane for lane in self._lanes.values() if lane.slot is slot]

    # ---- devices come and go

    def reserve(self, trials: int) -> None:
        """Asks for devices, at most one per trial."""
        self._slots.reserve(trials)

    def grow(self, is_wanted: bool) -> None:
        """Takes CPUs that have become free on nodes that are up, if a trial waits."""
        self._pending += self._slots.grow(is_wanted, self.now())

    def release_idle(self, busy: Iterable[str]) -> None:
        """Gives back devices on which nothing has run for a while."""
        for slot in self._slots.idle(busy, self.now()):
            self._drop(slot)

    def _drop(self, slot: Slot, is_useless: bool = False) -> None:
        """Gives up a device and its lanes; a useless one stays reserved."""
        for lane in self._on(slot):
            del self._lanes[lane.lane]
            lane.look_away(is_over=True)
            kill(lane.actor)
        self._slots.drop(slot, is_useless)
        if slot.site is not None:
            self._pending.append(ev.DeviceLost(self.now(), slot.name))

    # ---- instructions

    def execute(self, instruction: do.Instruction) -> None:
        """Carries out instructions about lanes; those about trials are left to the broker."""
        if isinstance(instruction, do.OpenLane):
            self._open(instruction)
        elif isinstance(instruction, do.ResizeLane):
            if instruction.lane in self._lanes:
                self._lanes[instruction.lane].resize(instruction.quota)
        elif isinstance(instruction, do.CloseLane) and instruction.lane in self._lanes:
            lane = self._lanes[instruction.lane]
            lane.leaving = True
            if instruction.kill:
                lane.calls.clear()
            if lane.is_answered:
                kill(lane.actor)

    def _open(self, instruction: do.OpenLane) -> None:
        slot = next((slot for slot in self._slots.up if slot.name == instruction.device), None)
        if slot is None or slot.site is None:
            return
        actor = self._slots.process(slot)
        options = LaneOptions(
            lane=instruction.lane,
            device=slot.name,
            uuid=slot.site.uuid,
            cores=slot.cores,
            quota=instruction.quota,
            threads=max(1, int(self._options.cores)),
        )
        lane = ActorLane(instruction.lane, actor, slot, actor.beat.remote(), actor.open.remote(options))
        lane.last_at, lane.quota = self.now(), instruction.quota
        self._lanes[lane.lane] = lane

    # ---- events

    def now(self) -> float:
        return time.monotonic()

    def futures(self) -> list[Any]:
        """The futures whose answers are news."""
        found = [lane.news for lane in self._lanes.values()]
        found += [lane.opening for lane in self._lanes.values() if lane.opening is not None]
        found += [answer for slot in self._slots.all for answer in slot.news]
        return found

    def answers_wait(self) -> bool:
        """Whether Tune should take answers of its trials before any news of lanes.

        Tune takes all news first, and with `MANY` lanes there always is some.
        """
        if len(self._lanes) < MANY:
            return False
        calls = [answer for lane in self._lanes.values() for answer in lane.calls.values()]
        return bool(calls) and bool(ray.wait(calls, num_returns=1, timeout=0)[0])

    def poll(self) -> list[ev.Event]:
        """The events so far; does not wait."""
        futures = self.futures()
        ready = set(ray.wait(futures, num_returns=len(futures), timeout=0)[0]) if futures else set()
        for slot in list(self._slots.all):
            answer = next((answer for answer in slot.news if answer in ready), None)
            if answer is not None:
                self._hear_slot(slot, answer)
        for lane in list(self._lanes.values()):
            if lane.opening in ready:
                self._hear_opening(lane)
            if lane.news in ready and lane.lane in self._lanes:
                self._hear_beat(lane)
            if (lane.leaving and lane.is_answered) or lane.is_deaf():
                kill(lane.actor)
            lane.look_away()
        if self.is_watch_due:
            self._watch()
        happened, self._pending = self._pending, []
        return happened

    def _hear_slot(self, slot: Slot, answer: Any) -> None:
        try:
            if slot.placed is not None:
                ray.get(answer)
                self._slots.start(slot)
            else:
                self._pending.append(self._slots.came_up(slot, answer, self.now()))
        except RayError as error:
            self._drop(slot)
            if (fault := self._stillborn.another(_said(getattr(error, "cause", None) or error))) is not None:
                raise fault from error

    def _hear_opening(self, lane: ActorLane) -> None:
        opening, lane.opening = lane.opening, None
        try:
            site = ray.get(opening)
        except RayActorError:
            # The beat fails with the same error, and is handled there.
            return
        except RayError as error:
            # The lane counts as lost once its beat fails, too.
            lane.fault = _said(getattr(error, "cause", None) or error)
            kill(lane.actor)
            return
        lane.opened(site.pid)
        if lane.slot.site is not None and site.place != lane.slot.site.place:
            log.error("lane %d of %s is at %s: closed", lane.lane, lane.slot.name, site.place)
            lane.fault = f"Ray has put a process for {lane.slot.name} on {site.place}"
            kill(lane.actor)

    def _hear_beat(self, lane: ActorLane) -> None:
        try:
            beat: Beat = ray.get(lane.news, timeout=0)
        except GetTimeoutError:
            return
        except RayError as error:
            self._lane_gone(lane, error)
            return
        lane.news = lane.actor.beat.remote()
        lane.last, lane.last_at = beat, self.now()
        for frame in beat.frames:
            event = event_of(*wire.decode(frame), lane.lane, lane.last_at)
            if isinstance(event, ev.LaneReady) and not lane.fault:
                lane.ready = True
                self._stillborn.lane_up()
                lane.slot.stillborn.lane_up()
            elif isinstance(event, ev.TrialEnded) and is_short_of_memory(event, lane.quota):
                self._look_at_others(lane.slot, beat)
            self._pending.append(event)
        if beat.quiet > QUIET_AFTER:
            self._pending.append(ev.LaneQuiet(self.now(), lane.lane, beat.holder, beat.quiet, beat.held))

    def _look_at_others(self, slot: Slot, beat: Beat) -> None:
        """Called when a trial was refused memory within its lane's quota: other programs may have taken it."""
        held = sum(lane.last.held for lane in self._on(slot))
        capacity = None if slot.others is None else slot.others.refused(beat.used, held)
        if capacity is not None:
            self._pending.append(ev.DeviceChanged(self.now(), slot.name, capacity))

    def _lane_gone(self, lane: ActorLane, error: RayError) -> None:
        slot = lane.slot
        if slot.site is not None and slot.site.node not in {node["NodeID"] for node in alive_nodes()}:
            self._drop(slot)
            return
        self._lanes.pop(lane.lane, None)
        if slot.others is not None:
            slot.others.unsettled()
        # The actor may be alive and only out of reach.
        kill(lane.actor)
        detail = lane.fault or _said(error)
        self._pending.append(ev.LaneLost(self.now(), lane.lane, lane.last.holder, detail))
        if lane.fault or not lane.ready:
            self._lane_stillborn(slot, detail)

    def _lane_stillborn(self, slot: Slot, detail: str) -> None:
        """Counts a lane that died before it was up; after too many in a row the device is given up.

        Raises:
            RunError: There is no other device.
        """
        # If another lane is up there, the device is usable, and may only have no room for more lanes.
        if slot not in self._slots.all or any(lane.ready for lane in self._on(slot)):
            return
        error = slot.stillborn.another(detail)
        if error is None:
            return
        if len(self._slots.useless) + 1 >= self._slots.most:
            raise error
        log.warning("%s is given up: %s", slot.name, error.message)
        self._drop(slot, is_useless=True)

    def _watch(self) -> None:
        """Once a second: looks for lost nodes, silent lanes, and other programs' use of the GPUs."""
        now = self.now()
        late, self._watch_due = now - self._watch_due, now + WATCH_EVERY
        for slot in self._slots.look():
            self._drop(slot)
        if now > self._missed_at and not self._slots.up:
            self._missed_at = float("inf")
            self._slots.say_what_is_missing()
        for slot in self._slots.up:
            if slot.others is not None:
                self._watch_others(slot, slot.others)
        for lane in self._lanes.values():
            if late > WATCH_EVERY:
                # The silence is this process's own: it did not listen.
                lane.last_at = min(now, lane.last_at + late)
            silent = now - lane.last_at
            if lane.ready and silent > 3 * WATCH_EVERY:
                # Native code holds the lane's interpreter: the trial that had the turn last still has it.
                self._pending.append(ev.LaneQuiet(now, lane.lane, lane.last.holder, silent, lane.last.held))
        self._pending.append(ev.Tick(now))

    def _watch_others(self, slot: Slot, others: OthersOnGpu) -> None:
        since, lanes = self.now() - 2 * WATCH_EVERY, self._on(slot)
        beats = [lane.last for lane in lanes if lane.ready and lane.last_at >= since]
        known = [beat for beat in beats if beat.used is not None]
        if len(known) < len(lanes):
            others.unsettled()
        used = max((beat.used or 0 for beat in known), default=None)
        capacity = others.changed_capacity(used, sum(beat.held for beat in known))
        if capacity is not None:
            self._pending.append(ev.DeviceChanged(self.now(), slot.name, capacity))

    def close(self) -> None:
        """Ends every lane and gives everything back."""
        if ray.is_initialized():
            for slot in list(self._slots.all):
                self._drop(slot)
            self._slots.close()
        self._lanes.clear()
        self._pending.clear()


def _said(error: BaseException) -> str:
    return first_line(error, 300) or type(error).__name__
