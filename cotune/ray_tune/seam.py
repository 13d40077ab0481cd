"""Replacements for Tune's resource manager, actor class, actor handle and actor manager.

Tune asks a resource manager for the resources of each trial, annotates the actor class with them, creates an actor and
calls it. Here the brain decides when the resources are ready, the "actor class" begins a trial in a lane, and the
"handle" routes calls there.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.tune import PlacementGroupFactory

from cotune.ray_tune import _private
from cotune.ray_tune.broker import Broker
from cotune.ray_tune.ticket import Held, Ticket


class LaneRequest(PlacementGroupFactory):  # type: ignore[misc]
    """The resource request of one trial. It equals no other trial's: the brain places trials, not amounts.

    Pickling, as in the state of an experiment, makes it a plain `PlacementGroupFactory` again.
    """

    trial: Any

    @classmethod
    def of(cls, trial: Any) -> LaneRequest:
        request: LaneRequest = copy.copy(trial.placement_group_factory)
        request.__class__ = cls
        request.trial = trial
        return request

    def __eq__(self, other: object) -> bool:
        return self is other if isinstance(other, LaneRequest) else bool(super().__eq__(other))

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return PlacementGroupFactory, (self.bundles, self.strategy)

    def __deepcopy__(self, memo: dict[int, Any]) -> PlacementGroupFactory:
        return PlacementGroupFactory(self.bundles, self.strategy)


class LaneResources(_private.AcquiredResources):  # type: ignore[misc]
    """A place in a lane."""

    def __init__(self, request: LaneRequest, broker: Broker, ticket: Ticket) -> None:
        super().__init__(resource_request=request)
        self.broker = broker
        self.ticket = ticket

    def annotate_remote_entities(self, entities: list[Any]) -> list[Any]:
        return [TrialClass(self.broker, self.ticket, entity) for entity in entities]


class TrialClass:
    """Replaces the actor class of a Trainable; its "actors" run in a lane."""

    def __init__(self, broker: Broker, ticket: Ticket, actor_class: Any) -> None:
        self._broker = broker
        self._ticket = ticket
        self._class = _private.class_behind(actor_class)

    def remote(self, **kwargs: Any) -> TrialHandle:
        self._broker.seat(self._ticket, self._class, kwargs)
        return TrialHandle(self._broker, self._ticket)


@dataclass(frozen=True, slots=True)
class _Method:
    """The value of `handle.method`: an object with `remote()`."""

    remote: Callable[..., Any]


class TrialHandle(_private.ActorHandle):  # type: ignore[misc]
    """A trial in a lane, as an actor handle.

    It derives from `ActorHandle` only so that `ray.kill` accepts it, which takes this trial out of its lane and does
    nothing else.
    """

    broker: Broker
    ticket: Ticket

    def __init__(self, broker: Broker, ticket: Ticket) -> None:
        self.__dict__.update(broker=broker, ticket=ticket)

    @property
    def _ray_actor_id(self) -> Any:
        """The id of an unused actor; to `ray.kill`, which reads it, too, the trial is evicted."""
        if sys._getframe(1).f_code is inspect.unwrap(ray.kill).__code__:
            self.broker.evict(self.ticket)
        return _Decoy.id()

    @property
    def __ray_ready__(self) -> _Method:
        """Always ready: an error of the trial shows at its first call."""
        return _Method(lambda: self.broker.answer(self.ticket))

    @property
    def __ray_terminate__(self) -> _Method:
        return _Method(lambda: self.broker.call(self.ticket, "stop", (), {}))

    def __getattr__(self, name: str) -> _Method:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Method(lambda *args, **kwargs: self.broker.call(self.ticket, name, args, kwargs))

    def __del__(self) -> None: ...

    # Ray's asks for signatures of methods, which only the trial's lane knows.
    __dir__ = object.__dir__

    def __repr__(self) -> str:
        return f"TrialHandle({self.ticket.number})"

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __reduce__(self) -> Any:
        raise TypeError("the handle of a trial in a lane stays with Tune: it cannot be sent to other processes")

    # What Ray calls instead of pickling a handle.
    _serialization_helper = __reduce__


class _Decoy:
    """An actor to be killed in place of a lane; killing it again does nothing."""

    _made: Any = None
    _made_in: object = None

    @classmethod
    def id(cls) -> Any:
        if cls._made_in is not _private.core_worker():
            cls._made, cls._made_in = ray.remote(num_cpus=0)(_Nothing).remote(), _private.core_worker()
        return cls._made._ray_actor_id


class _Nothing:
    pass


class LaneResourceManager(_private.ResourceManager):  # type: ignore[misc]
    """Grants places in lanes to `LaneRequest`s; passes other requests to Ray's own manager."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._tickets: dict[LaneRequest, Ticket] = {}
        self._others = _private.PlacementGroupResourceManager()

    def request_resources(self, resource_request: Any) -> None:
        if isinstance(resource_request, LaneRequest):
            self._tickets[resource_request] = self.broker.ask(resource_request.trial)
        else:
            self._others.request_resources(resource_request)

    def cancel_resource_request(self, resource_request: Any) -> None:
        if isinstance(resource_request, LaneRequest):
            # There is no ticket if the brain or the user's policy raised when the request was made.
            if (ticket := self._tickets.pop(resource_request, None)) is not None:
                self.broker.let_go(ticket)
        else:
            self._others.cancel_resource_request(resource_request)

    def has_resources_ready(self, resource_request: Any) -> bool:
        if not isinstance(resource_request, LaneRequest):
            return bool(self._others.has_resources_ready(resource_request))
        ticket = self._tickets.get(resource_request)
        return ticket is not None and (ticket.lane is not None or ticket.refusal is not None)

    def acquire_resources(self, resource_request: Any) -> Any:
        if not isinstance(resource_request, LaneRequest):
            return self._others.acquire_resources(resource_request)
        if not self.has_resources_ready(resource_request):
            return None
        return LaneResources(resource_request, self.broker, self._tickets.pop(resource_request))

    def free_resources(self, acquired_resource: Any) -> None:
        if isinstance(acquired_resource, LaneResources):
            self.broker.let_go(acquired_resource.ticket)
        else:
            self._others.free_resources(acquired_resource)

    def get_resource_futures(self) -> list[Any]:
        return [*self.broker.futures(), *self._others.get_resource_futures()]

    def update_state(self) -> None:
        self.broker.pump()
        self._others.update_state()

    def clear(self) -> None:
        self.broker.close()
        self._tickets.clear()
        self._others.clear()


class LaneActorManager(_private.RayActorManager):  # type: ignore[misc]
    """Tune's actor manager, but it hides failures from Tune that the broker makes good.

    The manager that Tune has made gets this class.
    """

    def _schedule_tracked_actor_task(self, tracked_actor_task: Any, method_name: str, **kwargs: Any) -> Any:
        handle = _private.handle_of(self, tracked_actor_task._tracked_actor)
        if isinstance(handle, TrialHandle):
            tracked_actor_task.cotune_call = (method_name, kwargs, handle.ticket.attempt)
        return super()._schedule_tracked_actor_task(tracked_actor_task, method_name, **kwargs)

    def _actor_task_failed(self, tracked_actor_task: Any, exception: Exception) -> None:
        handle = _private.handle_of(self, tracked_actor_task._tracked_actor)
        if isinstance(handle, TrialHandle) and self._is_taken(handle, tracked_actor_task, exception):
            return
        super()._actor_task_failed(tracked_actor_task, exception)

    def _is_taken(self, handle: TrialHandle, task: Any, exception: Exception) -> bool:
        method, kwargs, attempt = task.cotune_call
        kwargs = {name: value for name, value in kwargs.items() if name != "_return_future"}

        def again() -> None:
            if _private.handle_of(self, task._tracked_actor) is handle:
                self._schedule_tracked_actor_task(task, method, **kwargs)

        def refuse(error: Exception) -> None:
            if _private.handle_of(self, task._tracked_actor) is handle:
                super(LaneActorManager, self)._actor_task_failed(task, error)

        return handle.broker.takes_over(handle.ticket, Held(method, exception, again, refuse), attempt)

    def _try_start_actors(self, max_actors: int | None = None) -> int:
        started: int = super()._try_start_actors(max_actors)
        waiting = _private.pending_actors(self)
        if started:
            # Every trial has a request of its own, and Tune would go on checking those that are served.
            for request in [request for request, actors in waiting.items() if not actors]:
                del waiting[request]
        return started
