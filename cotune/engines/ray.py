"""A Ray cluster as a body: an actor with a local body for every GPU, or for every node where no GPUs are used.

RayEngine ──commands, in batches──▶ Member, an actor ──▶ LocalEngine ──▶ zygote, lanes
          ◀──events and reports, in batches──

A node runs what a machine without Ray runs: lanes forked from a warm zygote, with the same quotas and turns. Ray finds
and reserves resources, places the actors, carries the messages, and tells when a node is gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from cotune import errors
from cotune.engines.base import Engine
from cotune.engines.local_options import LocalOptions
from cotune.engines.ray_member import Down, Joined, News
from cotune.engines.ray_roster import SET_UP_WITHIN, Membership, Roster
from cotune.engines.translation import not_sent
from cotune.packer import events as ev
from cotune.packer import instructions as do
from cotune.script.pickling import Packed
from cotune.sharing import wire
from cotune.trial import Question, Report, TrialSpec

JOIN_WITHIN = 60.0
SETTLE = 2.0
KNOCK_WITHIN = 5.0
POLL_FOR = 10.0


class RayEngine(Engine):
    """Lanes on the nodes of a Ray cluster.

    Args:
        cluster: `auto` for the cluster this process is connected to or finds, or an address as `ray.init` takes it.
        packed: The trainable, which the lanes run.
        gpus: Number of GPUs; None for all, including those that come later; 0 for CPUs only.
        folder: Folder for logs, on storage that every node sees.
        options: How trials run.

    Raises:
        DeviceError: There is no such cluster.
    """

    def __init__(self, cluster: str, packed: Packed, gpus: int | None, folder: Path, options: LocalOptions) -> None:
        self._series = packed.series
        self._by_lane: dict[int, Membership] = {}
        self._by_trial: dict[int, Membership] = {}
        # Ends of trials whose configs could not be sent.
        self._unsent: list[News] = []
        self._arrived: queue.SimpleQueue[tuple[Membership, Future[Any]] | None] = queue.SimpleQueue()
        # Raised once what had happened before has been returned: trials may have ended.
        self._failure: Exception | None = None
        self._tick_due = 0.0
        self._closed = False
        self._ray, is_ours = _connect(cluster)
        with contextlib.ExitStack() as undo:
            if is_ours:
                undo.callback(self._ray.shutdown)
            sent = replace(packed, own={}, series=None)
            self._roster = Roster(self._ray, gpus, sent, folder, options, self._listen)
            self._connected = undo.pop_all()
        self.uses_gpus = self._roster.on_gpus

    def start(self, is_over: Callable[[], bool] = lambda: False) -> list[ev.DeviceFound]:
        """Returns the devices that join within `SETTLE` seconds; later ones come as events.

        While the cluster has fewer GPUs than requested, it waits for the first one without a time limit.

        Raises:
            DeviceError: The cluster gave us no device in time.
            RunError: The connection to the cluster is lost.
            BaseException: The error of the last actor, if the bodies of all actors have failed.
        """
        try:
            return self._join(is_over)
        except ConnectionError as error:
            raise _connection_lost(error) from error

    def _join(self, is_over: Callable[[], bool]) -> list[ev.DeviceFound]:
        roster = self._roster
        roster.warn_if_short()
        found: list[ev.DeviceFound] = []
        join_within = SET_UP_WITHIN if roster.sets_up else JOIN_WITHIN
        began = time.monotonic()
        while len(roster.by_device) < len(roster.members) or not found:
            if is_over():
                return found
            roster.look()
            now = time.monotonic()
            if not found and roster.gpus_missing():
                # An autoscaler may take minutes to start machines.
                began = now
            elif now - began > (SETTLE if found else join_within):
                break
            found += [event for event in self._gather(0.2) if isinstance(event, ev.DeviceFound)]
        if not found:
            if roster.refusal is not None:
                raise roster.refusal
            raise errors.DeviceError(
                f"the cluster gave us nothing within {join_within:.0f} s: "
                f"it has {_counts(self._ray.cluster_resources())}, {_counts(self._ray.available_resources())} free",
                hint="free some of it, or pass gpus= with what there is",
            )
        return found

    def _listen(self, member: Membership) -> None:
        answer = member.actor.poll.remote(POLL_FOR).future()
        answer.add_done_callback(lambda done: self._arrived.put((member, done)))

    # ---- instructions

    def execute(self, instruction: do.Instruction, spec: TrialSpec | None = None) -> None:
        member: Membership | None = None
        if isinstance(instruction, do.OpenLane):
            member = self._roster.by_device.get(instruction.device)
            if member is not None:
                self._by_lane[instruction.lane] = member
                instruction = replace(instruction, device=member.local)
        elif isinstance(instruction, do.StartTrial):
            member = self._by_lane.get(instruction.lane)
            if member is not None:
                assert spec is not None
                try:
                    spec = wire.sendable(spec, self._series)
                except errors.NotPicklable as error:
                    self._unsent.append(not_sent(instruction.trial, error, self.now()))
                    return self.wake()
                self._by_trial[instruction.trial] = member
        elif isinstance(instruction, do.ToTrial):
            member = self._by_trial.get(instruction.trial)
        elif isinstance(instruction, do.ToLane):
            member = self._by_lane.get(instruction.lane)
        _tell(member, "execute", instruction, spec)

    def verdict(self, trial: int, attempt: int) -> None:
        _tell(self._by_trial.get(trial), "verdict", trial, attempt)

    def answer(self, trial: int, attempt: int, payload: bytes) -> None:
        _tell(self._by_trial.get(trial), "answer", trial, attempt, payload)

    def _flush(self) -> None:
        for member in self._roster.members:
            if member.commands:
                commands, member.commands = member.commands, []
                member.actor.do.remote(commands)

    # ---- events

    def now(self) -> float:
        return time.monotonic()

    def wake(self) -> None:
        self._arrived.put(None)

    def poll(self, timeout: float) -> list[News]:
        wait, lost = max(0.0, min(timeout, self._tick_due - self.now())), None
        try:
            self._flush()
            self._roster.look()
        except ConnectionError as error:
            wait, lost = 0.0, error
        happened = self._gather(wait)
        self._failure = self._failure or lost
        happened, self._unsent = self._unsent + happened, []
        if self.now() >= self._tick_due:
            self._tick_due = self.now() + 1.0
            happened.append(ev.Tick(self.now()))
        happened += self._roster.losses(self.now())
        return happened

    def _gather(self, timeout: float) -> list[News]:
        if isinstance(self._failure, ConnectionError):
            raise _connection_lost(self._failure) from self._failure
        if self._failure is not None:
            raise self._failure
        happened: list[News] = []
        with contextlib.suppress(queue.Empty):
            arrived = self._arrived.get(timeout=timeout)
            while True:
                if arrived is not None and arrived[0] in self._roster.members:
                    try:
                        happened.extend(self._hear(*arrived))
                    except Exception as error:
                        # What others have said counts all the same.
                        self._failure = self._failure or error
                arrived = self._arrived.get_nowait()
        return happened

    def _hear(self, member: Membership, answer: Future[Any]) -> Iterator[News]:
        from ray.exceptions import RayError

        try:
            items = answer.result()
        except RayError as error:
            self._forget(member)
            self._roster.leave(member, errors.first_line(error) or type(error).__name__)
            return
        for item in items:
            if isinstance(item, Joined):
                yield self._roster.joined(member, item, self.now())
            elif isinstance(item, Down):
                self._forget(member)
                self._roster.refuse(member, item.error)
                return
            else:
                yield from self._translate(member, item)
        # Last, since it may raise.
        self._listen(member)

    def _forget(self, member: Membership) -> None:
        """Forgets a lost member's lanes and trials."""
        self._by_lane = {lane: other for lane, other in self._by_lane.items() if other is not member}
        self._by_trial = {trial: other for trial, other in self._by_trial.items() if other is not member}

    def _translate(self, member: Membership, item: News) -> Iterator[News]:
        if isinstance(item, (Report, Question)):
            yield item
        elif isinstance(item, ev.DeviceChanged):
            yield replace(item, time=self.now(), device=member.device)
        elif not isinstance(item, ev.Tick):
            if isinstance(item, ev.LaneLost):
                self._by_lane.pop(item.lane, None)
            elif isinstance(item, ev.TrialEnded):
                self._by_trial.pop(item.trial, None)
            yield replace(item, time=self.now())

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        # It may be large, and a traceback that somebody keeps may keep this object.
        self._series = None
        with self._connected:
            self._roster.close()


def _tell(member: Membership | None, call: str, *arguments: Any) -> None:
    """Adds a call to the next batch for a member's engine; does nothing for None."""
    if member is not None:
        member.commands.append((call, arguments))


def _connection_lost(error: ConnectionError) -> errors.RunError:
    """What to say of the error that every call over ray:// raises from then on."""
    return errors.RunError(
        f"the connection to the cluster is lost: {errors.first_line(error)}",
        hint="what has run is kept; once the cluster can be reached, resume=True goes on with it",
    )


def _counts(resources: dict[str, float]) -> str:
    return f"{resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs"


def _connect(cluster: str) -> tuple[Any, bool]:
    """The `ray` module, connected, and whether this call has connected it."""
    try:
        import ray
    except ImportError as error:
        raise errors.DeviceError(
            f"cluster={cluster!r} needs Ray, which is not installed",
            hint="pip install '.[ray]' in the folder of cotune",
        ) from error
    if ray.is_initialized():
        return ray, False
    try:
        _knock(cluster)
        ray.init(address=cluster, log_to_driver=False, logging_level=logging.ERROR)
    except (Exception, SystemExit) as error:
        if _wants_token(error):
            raise errors.DeviceError(
                f"the Ray cluster at {cluster!r} asks for a token",
                hint="set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN where ~/.ray/auth_token is not the cluster's, before "
                "Ray is imported; cluster='auto' does so by itself on the cluster's own machine",
            ) from error
        raise errors.DeviceError(
            f"there is no Ray cluster at {_meant(cluster)!r}: {errors.first_line(error)}",
            hint="start one with `ray start --head`, pass its address as cluster=, or leave cluster= out",
        ) from error
    return ray, True


def _meant(cluster: str) -> str:
    """The address; for `auto` the one in RAY_ADDRESS, if set, as Ray does."""
    return (os.environ.get("RAY_ADDRESS") or cluster) if cluster == "auto" else cluster


def _wants_token(error: BaseException | None) -> bool:
    """Whether Ray asks for a token, which only the cause of its error says; Ray 2.44 has no such exception class."""
    return error is not None and ("AuthenticationError" in str(error) or _wants_token(error.__cause__))


def _knock(cluster: str) -> None:
    """Fails at once if nothing listens at an address; Ray takes 80 s to notice, and then ends the process."""
    host, _, port = _meant(cluster).removeprefix("ray://").rpartition(":")
    if host and port.isdigit() and "://" not in host:
        socket.create_connection((host, int(port)), KNOCK_WITHIN).close()
