"""Connects Tune and the brain: Tune's requests become events, the brain's decisions become calls of lanes.

Tune ──a trial wants to run──▶ TrialAdded ──▶ Packer ──StartTrial──▶ "its resources are ready"
Tune ──train(), save(), stop()──▶ TrialHandle ──▶ the lane the trial is in
lane ──out of memory, dead──▶ TrialEnded, LaneLost ──▶ Packer ──StartTrial──▶ the same call again, in another lane

Tune decides *that* a trial runs, the brain where and when. A failure caused by the lane (out of memory, dead) is hidden
from Tune: the failed call is kept, and made again when the brain has restarted the trial from its last checkpoint.
"""

from __future__ import annotations

import itertools
import logging
import math
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import OutOfMemoryError, RayActorError, RaySystemError, RayTaskError

from cotune.packer import MOST_LANE_DEATHS, Packer
from cotune.packer import events as ev
from cotune.packer import instructions as do
from cotune.ray_tune import _private
from cotune.ray_tune.actor_lane import ActorLane
from cotune.ray_tune.cluster import Cluster
from cotune.ray_tune.features import features
from cotune.ray_tune.inbox import NotHere
from cotune.ray_tune.lane import AttemptSpec
from cotune.ray_tune.lane_trial import OutOfMemory
from cotune.ray_tune.refusals import behind, refusal_of, refuses
from cotune.ray_tune.ticket import Held, Ticket
from cotune.trial import Outcome

log = logging.getLogger(__name__)

# OutOfMemoryError: Ray itself has killed a process of a node that was short of memory.
_DEATHS = (RayActorError, OutOfMemoryError)
# Seconds between two looks at the news of lanes while answers of trials wait for Tune.
PUMP_EVERY = 0.05
# Seconds in which no trial runs though there are devices, before the reason is logged.
STUCK_AFTER = 20.0


class Broker:
    """Passes Tune's requests to the brain, and the brain's instructions to the cluster.

    Args:
        packer: The brain.
        cluster: The body.
        priority: Gives a config's priority.
    """

    def __init__(
        self,
        packer: Packer,
        cluster: Cluster,
        priority: Callable[[Mapping[str, Any]], float] = lambda config: 0.0,
    ) -> None:
        self.packer = packer
        self._priority = priority
        self._cluster = cluster
        self._tickets: dict[int, Ticket] = {}
        self._numbers = itertools.count()
        # Ids of trials that failed since too many lanes died under them; if Tune runs one again, one death is enough.
        self._lane_killers: set[str] = set()
        self._blobs: dict[type, tuple[int, bytes]] = {}
        self._answers: list[Any] = []
        self._events: deque[tuple[ev.Event, ...]] = deque()
        self._is_following = False
        self._ran = self._pumped = cluster.now()

    # ---- what Tune asks for

    def ask(self, trial: Any) -> Ticket:
        """Takes in a trial that Tune wants to run."""
        ticket = Ticket(next(self._numbers), trial)
        self._admit(ticket)
        return ticket

    def _admit(self, ticket: Ticket) -> None:
        self._tickets[ticket.number] = ticket
        self._cluster.reserve(len(self._tickets))
        trial = ticket.trial
        now, name, priority = self._cluster.now(), trial.trainable_name, self._priority(trial.config)
        before = int(trial.checkpoint is not None)
        known = features(trial.config)
        deaths = MOST_LANE_DEATHS - 1 if trial.trial_id in self._lane_killers else 0
        self._feed(ev.TrialAdded(now, ticket.number, name, known, priority, attempts=before, lane_deaths=deaths))

    def seat(self, ticket: Ticket, trainable: type, kwargs: Mapping[str, Any]) -> None:
        """Begins a trial whose resources Tune has acquired."""
        if trainable not in self._blobs:
            self._blobs[trainable] = len(self._blobs), cloudpickle.dumps(trainable)
        ticket.seated, ticket.trainable, ticket.kwargs = True, self._blobs[trainable], kwargs
        ticket.cleans_up = not issubclass(trainable, _private.function_trainable.FunctionTrainable)

    def _attempt(self, ticket: Ticket, lane: ActorLane) -> AttemptSpec:
        """The attempt, which is sent to the lane with the first call."""
        trial = ticket.trial
        # After a checkpoint the trial draws other numbers than before it, as in a process of its own.
        seed = zlib.crc32(f"{trial.trial_id} {trial.checkpoint.path if trial.checkpoint else ''}".encode())
        number, pickled = ticket.trainable
        # Before the lane counts as having the class: if pickling raises, nothing is sent to the lane.
        kwargs, checkpoint = cloudpickle.dumps(dict(ticket.kwargs)), ticket.checkpoint
        known = number in lane.trainables
        lane.trainables.add(number)
        folder = trial.local_path or ""
        reached = (trial.last_result or {}).get(_private.TRAINING_ITERATION, 0)
        return AttemptSpec(
            *ticket.key, seed, folder, number, None if known else pickled, kwargs, checkpoint, reached, lane.resizes
        )

    def answer(self, ticket: Ticket) -> Any:
        """A resolved future. Each one made takes room in Ray's store, so they are used again."""
        ticket.answers.append(self._answers.pop() if self._answers else ray.put(None))
        return ticket.answers[-1]

    def call(self, ticket: Ticket, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A call of Tune to the Trainable, as a future."""
        lane = ticket.lane
        if method == "stop":
            # Before the brain is told, so that its `StopTrial` does not interrupt a trial that Tune itself stops.
            ticket.stopping, has_begun = True, ticket.calls > 0
            ticket.held.clear()
            # A Trainable may take as long to clean up as Tune lets it; then it is evicted.
            self._withdraw(ticket, patient=ticket.cleans_up)
            if lane is not None and ticket.over:
                lane.calls.pop(ticket.number, None)
            if lane is None or ticket.over or not has_begun:
                return self.answer(ticket)
            return self._send(lane, ticket, "stop", (), {})
        if method == "get_auto_filled_metrics" and kwargs.get("debug_metrics_only"):
            # All that Tune shows of a trial that never reports; answered at once, whatever the lane is doing. Only Tune
            # passes that argument, and takes a value for a future.
            known = {"trial_id": ticket.trial.trial_id, "config": dict(ticket.trial.config)} | _when_and_where(lane)
            if lane is not None and lane.pid is None:
                lane.unsigned.append(known)
            return known
        if method == "export_model" and not ticket.cleans_up:
            # Asked for once a function has returned, when its trial is over; it has none.
            return self.answer(ticket)
        if ticket.refusal is not None:
            return refuses.remote(ticket.refusal)
        if lane is None:
            return refuses.remote(NotHere(f"{method}(): the trial is between two lanes"))
        return self._send(lane, ticket, method, args, kwargs)

    def _send(
        self, lane: ActorLane, ticket: Ticket, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        attempt = self._attempt(ticket, lane) if ticket.calls == 0 else None
        number, ticket.calls = ticket.calls, ticket.calls + 1
        answer = lane.actor.call.remote(ticket.key, number, method, args, dict(kwargs), attempt)
        if method == "stop":
            # The result of the stop, and of the call it breaks off, does not matter.
            lane.unheard += [answer, *filter(None, [lane.calls.pop(ticket.number, None)])]
        else:
            lane.calls[ticket.number] = answer
        return answer

    def let_go(self, ticket: Ticket) -> None:
        """Withdraws a trial that Tune is done with, or has given up before it began."""
        ticket.held.clear()
        self._withdraw(ticket)
        # Tune waits for these no longer, so they can be used again.
        self._answers += ticket.answers
        ticket.answers = []

    def evict(self, ticket: Ticket) -> None:
        """Takes a trial out of its lane, whatever it is doing; its lane-mates go on."""
        ticket.held.clear()
        if ticket.lane is not None and ticket.calls and not ticket.over:
            ticket.lane.actor.evict.remote(ticket.key)
            ticket.lane.unheard += filter(None, [ticket.lane.calls.pop(ticket.number, None)])
            ticket.stopping = True
        self._withdraw(ticket)

    def _withdraw(self, ticket: Ticket, patient: bool = False) -> None:
        if not ticket.over:
            self._feed(ev.TrialWithdrawn(self._cluster.now(), ticket.number, patient))

    # ---- failures

    def takes_over(self, ticket: Ticket, held: Held, attempt: int) -> bool:
        """Takes over a failed call whose failure the lane caused, to make it again or refuse it; else returns False."""
        error = held.error
        cause = getattr(error, "cause", error)
        # The error is of both classes if an actor of the trainable's own has died: that is the trainable's failure.
        is_dead = isinstance(error, _DEATHS) and not isinstance(error, RayTaskError)
        if isinstance(cause, RaySystemError) and "MemoryError" in str(cause):
            # A lane-mate had taken all there was when Ray unpacked the call, which the trial waits for now.
            is_dead = True
            if ticket.lane is not None and ticket.attempt == attempt:
                ticket.lane.missed = True
        if not is_dead and not isinstance(cause, (OutOfMemory, NotHere)):
            return False
        if ticket.refusal is not None:
            held.refuse(behind(held.error, ticket.refusal))
        elif ticket.over and (ticket.stopping or not is_dead):
            return False
        elif ticket.over:
            # The trial had ended, and the answer was lost with the lane, perhaps because of what it is.
            ticket.lost += 1
            if ticket.lost == MOST_LANE_DEATHS:
                return False
            ticket.held.append(held)
            self._readmit(ticket)
        elif ticket.lane is not None and ticket.attempt > attempt:
            held.again()
        else:
            ticket.held.append(held)
        return True

    def _readmit(self, ticket: Ticket) -> None:
        ticket.number, ticket.lane, ticket.over = next(self._numbers), None, False
        self._admit(ticket)

    # ---- the brain

    def futures(self) -> list[Any]:
        """The futures that should wake Tune. Called at every step of Tune, so it also pumps when that is due."""
        answers_wait = self._cluster.answers_wait()
        if self._cluster.is_watch_due or (answers_wait and self._cluster.now() - self._pumped > PUMP_EVERY):
            self.pump()
        return [] if answers_wait else self._cluster.futures()

    def pump(self) -> None:
        """Passes the cluster's events to the brain."""
        self._pumped = self._cluster.now()
        happened = self._cluster.poll()
        if happened:
            self._feed(*happened)
        if any(isinstance(event, ev.Tick) for event in happened):
            self._tend()

    def _tend(self) -> None:
        """Once a second: asks for devices if trials wait, gives idle ones back if none does."""
        if self.packer.waiting or not self._cluster.has_devices:
            self._cluster.reserve(self.packer.unfinished)
        self._cluster.grow(is_wanted=bool(self.packer.waiting))
        if not self.packer.waiting:
            lanes = (ticket.lane for ticket in self._tickets.values())
            self._cluster.release_idle(lane.slot.name for lane in lanes if lane is not None)
        self._say_what_is_missing()

    def _say_what_is_missing(self) -> None:
        """Logs once why nothing runs: Tune knows only that trials wait."""
        now, waiting = self._cluster.now(), [ticket for ticket in self._tickets.values() if ticket.lane is None]
        if len(waiting) < len(self._tickets) or not waiting or not self._cluster.has_devices:
            self._ran = now
        elif now - self._ran > STUCK_AFTER:
            self._ran = math.inf
            why = self.packer.why_waiting(waiting[0].number)
            log.warning("nothing runs: trial %s waits, %s", waiting[0].trial.trial_id, why or "for its lane")

    def _feed(self, *events: ev.Event) -> None:
        """Passes events to the brain and carries out its instructions; events caused by these are queued."""
        self._events.append(events)
        if self._is_following:
            return
        self._is_following = True
        try:
            while self._events:
                self._follow(self.packer.handle(*self._events.popleft()))
        finally:
            self._is_following = False

    def _follow(self, instructions: list[do.Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, do.StartTrial):
                self._start(self._tickets[instruction.trial], instruction.lane)
            elif isinstance(instruction, do.StopTrial):
                self._stop(self._tickets[instruction.trial])
            elif isinstance(instruction, do.RetryTrial):
                self._retry(self._tickets[instruction.trial], instruction.reason)
            elif isinstance(instruction, do.ConcludeTrial):
                self._conclude(self._tickets[instruction.trial], instruction)
            else:
                self._cluster.execute(instruction)

    def _start(self, ticket: Ticket, lane: int) -> None:
        ticket.lane, ticket.calls = self._cluster.lane(lane), 0
        if not ticket.seated or ticket.lane is None:
            return
        ticket.attempt += 1
        held, ticket.held = ticket.held, []
        restores = any(one.method == "restore" for one in held)
        ticket.checkpoint = None if restores else ticket.trial.latest_checkpoint_result
        for one in held:
            one.again()

    def _stop(self, ticket: Ticket) -> None:
        if ticket.calls == 0:
            # The lane does not know the trial before Tune's first call.
            self._feed(ev.TrialEnded(self._cluster.now(), ticket.number, Outcome.STOPPED))
        elif ticket.lane is not None and not ticket.stopping:
            ticket.lane.actor.interrupt.remote(ticket.key)

    def _retry(self, ticket: Ticket, reason: str) -> None:
        if ticket.lane is not None:
            ticket.lane.calls.pop(ticket.number, None)
        ticket.lane = None
        log.info("trial %s starts again: %s", ticket.trial.trial_id, reason)

    def _conclude(self, ticket: Ticket, end: do.ConcludeTrial) -> None:
        ticket.over = True
        ticket.lane = None if not ticket.seated else ticket.lane
        del self._tickets[ticket.number]
        held, ticket.held = ticket.held, []
        if end.outcome is Outcome.FAILED and end.error != "TrialFailed":
            ticket.refusal = refusal_of(ticket.trial, end)
            if end.error == "LaneDied":
                self._lane_killers.add(ticket.trial.trial_id)
        for one in held:
            one.refuse(behind(one.error, ticket.refusal) if ticket.refusal else one.error)

    def close(self) -> None:
        self._cluster.close()
        self._tickets.clear()


def _when_and_where(lane: ActorLane | None) -> dict[str, Any]:
    now = datetime.now()
    found: dict[str, Any] = {"date": now.strftime("%Y-%m-%d_%H-%M-%S"), "timestamp": int(now.timestamp())}
    if lane is not None and lane.slot.site is not None:
        found |= {"hostname": lane.slot.site.host, "node_ip": lane.slot.site.address}
    if lane is not None and lane.pid is not None:
        found["pid"] = lane.pid
    return found
