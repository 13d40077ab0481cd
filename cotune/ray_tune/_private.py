"""All private parts of Ray that this package relies on.

`check()` compares them with the installed Ray, so that an unknown Ray is refused at the start, with the missing names,
instead of failing in the middle of a run. All other modules of this package take these names from here.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import ray
from ray import actor, remote_function
from ray.actor import ActorHandle
from ray.air.execution._internal.actor_manager import RayActorManager
from ray.air.execution.resources.placement_group import PlacementGroupResourceManager
from ray.air.execution.resources.request import AcquiredResources
from ray.air.execution.resources.resource_manager import ResourceManager
from ray.train._internal import checkpoint_manager
from ray.train._internal import session as ray_session
from ray.train._internal.checkpoint_manager import _CheckpointManager as CheckpointManager
from ray.tune.execution import tune_controller
from ray.tune.logger import LoggerCallback, TBXLoggerCallback
from ray.tune.result import DONE, RESULT_DUPLICATE, TRAINING_ITERATION
from ray.tune.schedulers import hyperband
from ray.tune.trainable import function_trainable

from cotune.errors import InputError
from cotune.ray_tune import SUPPORTED

__all__ = [
    "DONE",
    "RESULT_DUPLICATE",
    "TRAINING_ITERATION",
    "AcquiredResources",
    "ActorHandle",
    "CheckpointManager",
    "LoggerCallback",
    "PlacementGroupResourceManager",
    "RayActorManager",
    "ResourceManager",
    "TBXLoggerCallback",
    "actor",
    "checkpoint_manager",
    "function_trainable",
    "hyperband",
    "ray_session",
    "remote_function",
    "tune_controller",
]

_NEEDED: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (RayActorManager, ("_actor_task_failed", "_schedule_tracked_actor_task", "_try_start_actors", "all_actors")),
    (ResourceManager, ("request_resources", "cancel_resource_request", "has_resources_ready", "acquire_resources")),
    (ResourceManager, ("free_resources", "get_resource_futures", "update_state", "clear")),
    (AcquiredResources, ("annotate_remote_entities",)),
    (tune_controller.TuneController, ("update_pending_trial_resources", "get_live_trials")),
    (tune_controller.TuneController, ("update_max_pending_trials", "_schedule_trial_pause")),
    (ray_session, ("_session", "_TrainSession", "_TrainingResult", "get_session", "init_session", "shutdown_session")),
    (ray_session._TrainSession, ("reset", "report", "get_next", "finish")),
    (function_trainable, ("init_session", "shutdown_session", "get_session", "FunctionTrainable")),
    (ray_session._FutureTrainingResult, ("resolve",)),
    (CheckpointManager, ("register_checkpoint",)),
    (checkpoint_manager, ("_delete_fs_path",)),
    (hyperband._Bracket, ("cleanup_full", "current_trials")),
    (LoggerCallback, ("_restore_from_remote",)),
    (TBXLoggerCallback, ("log_trial_start",)),
    (actor, ("_actor_launch_hook",)),
    (ray._private.state, ("available_resources_per_node",)),
    (remote_function, ("_task_launch_hook",)),
)
# Attributes that only instances have: each must be named in the code of a method.
_NEEDED_IN_INSTANCES: tuple[tuple[type, tuple[str, ...]], ...] = (
    (RayActorManager, ("_resource_manager", "_live_actors_to_ray_actors_resources")),
    (RayActorManager, ("_resource_request_to_pending_actors",)),
    (tune_controller.TuneController, ("_scheduler_alg", "_search_alg", "_actor_manager", "_reuse_actors")),
    (tune_controller.TuneController, ("_cached_trial_decisions",)),
    (ray_session._TrainSession, ("result_queue", "training_thread")),
    (function_trainable.FunctionTrainable, ("_last_training_result",)),
    (CheckpointManager, ("_checkpoint_results",)),
    (TBXLoggerCallback, ("_summary_writer_cls",)),
)


@functools.cache
def check() -> None:
    """Compares the parts this package relies on with the installed Ray.

    Raises:
        InputError: A part is missing.
    """
    missing = [f"{_name(owner)}.{name}" for owner, names in _NEEDED for name in names if not hasattr(owner, name)]
    for owner, names in _NEEDED_IN_INSTANCES:
        missing += [f"{_name(owner)}().{name}" for name in names if not _mentions(owner, name)]
    if missing:
        raise InputError(
            f"Ray {ray.__version__} is not one that colocate() knows: it has no {', '.join(missing)}",
            hint=f"use Ray {SUPPORTED}, or colocate(..., isolation='process'), which needs none of that",
        )


def _mentions(owner: type, attribute: str) -> bool:
    """Whether a method of a class, or of a base class, has an attribute in its code."""
    methods = [found for base in owner.__mro__ for found in vars(base).values()]
    return any(attribute in getattr(getattr(found, "__code__", None), "co_names", ()) for found in methods)


def _name(owner: Any) -> str:
    return str(getattr(owner, "__qualname__", None) or owner.__name__)


def core_worker() -> object:
    """Ray's core worker, another object after every `ray.init`."""
    return ray._private.worker.global_worker.core_worker


def free_cpus() -> dict[str, float]:
    """CPUs that are not reserved, by node."""
    found = ray._private.state.available_resources_per_node()
    return {node: float(resources.get("CPU", 0.0)) for node, resources in found.items()}


def unwrapped(controller: Any) -> Any:
    """Tune's controller, which schedulers are given sometimes in a wrapper and sometimes bare."""
    return getattr(controller, "_tune_controller", controller)


def reuse_no_actors(controller: Any) -> None:
    """Keeps Tune from reusing an actor for another trial."""
    controller = unwrapped(controller)
    if hasattr(controller, "_reuse_actors"):
        controller._reuse_actors = False


def queue_one_ahead(controller: Any) -> None:
    """Makes Tune queue one trial ahead, unless the user has set a number."""
    if "TUNE_MAX_PENDING_TRIALS_PG" not in os.environ:
        unwrapped(controller).update_max_pending_trials(1)


def most_at_once(controller: Any) -> int | None:
    """The smaller of the number of trials and the user's limit on concurrent ones; None if neither is known."""
    algorithm = getattr(controller, "_search_alg", None)
    limits = [
        getattr(algorithm, "total_samples", None),
        getattr(algorithm, "max_concurrent", None),
        getattr(getattr(algorithm, "searcher", None), "max_concurrent", None),
    ]
    # 0 stands for no limit, or for a number that a restored search has forgotten.
    return min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=None)


def follow_resources(controller: Any, changed: Callable[[], None]) -> None:
    """Calls `changed` whenever Tune gives waiting trials new resource requests. May be called more than once."""
    base: Any = type(controller)
    if hasattr(base, "is_followed"):
        return

    class Followed(base):  # type: ignore[misc]
        is_followed = True

        def update_pending_trial_resources(self, resources: Any) -> None:
            super().update_pending_trial_resources(resources)
            changed()

    # Done by a subclass, not an attribute of the controller: Tune saves its attributes.
    Followed.__name__, Followed.__qualname__ = base.__name__, base.__qualname__
    controller.__class__ = Followed


def class_behind(actor_class: Any) -> type:
    """The trainable behind Tune's actor class, without the wrappers that Ray puts around each method."""
    modified = actor_class.__ray_metadata__.modified_class
    found: type = getattr(modified, "__ray_actor_class__", modified)
    return found


def handle_of(manager: Any, tracked_actor: Any) -> Any:
    """The handle that Tune holds for an actor; None if Tune has released the actor."""
    found = manager._live_actors_to_ray_actors_resources.get(tracked_actor)
    return found[0] if found else None


def pending_actors(manager: Any) -> dict[Any, list[Any]]:
    """Actors that wait for a resource request to be granted, by request."""
    waiting: dict[Any, list[Any]] = manager._resource_request_to_pending_actors
    return waiting


def last_result() -> Any:
    """The result that a function trainable gives when its function has returned."""
    return ray_session._TrainingResult(None, {RESULT_DUPLICATE: True})


def no_result() -> Any:
    """The result of `save` when there is no checkpoint."""
    return ray_session._TrainingResult(None, {})


def is_function(trainable: Any) -> bool:
    """Whether a Trainable runs a user's function, not a user's methods."""
    return isinstance(trainable, function_trainable.FunctionTrainable)


def has_nothing_to_save(trainable: Any) -> bool:
    """Whether a function trainable has not reported yet."""
    return is_function(trainable) and getattr(trainable, "_last_training_result", None) is None
