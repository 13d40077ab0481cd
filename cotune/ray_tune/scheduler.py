"""`colocate`: wraps the scheduler of a Ray Tune run, the one line that users change.

The user passes a scheduler to Tune, and Tune passes its controller to the scheduler before any trial starts. Wrapping
changes the scheduler's class to a subclass of it, so that its other behaviour and every `isinstance` stay the same.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Never, cast

import ray
from ray import cloudpickle
from ray.tune.schedulers import FIFOScheduler, ResourceChangingScheduler, TrialScheduler, create_scheduler

from cotune._arguments import checked_count, checked_priority, checked_seconds, checked_slowdown, refuse_unknown
from cotune.errors import InputError
from cotune.packer import MAX_SLOWDOWN, Packer, PackerOptions
from cotune.packer.policies import Policy, make_policy
from cotune.ray_tune import _private, mends
from cotune.ray_tune.broker import Broker
from cotune.ray_tune.cluster import Cluster
from cotune.ray_tune.process import Fractions
from cotune.ray_tune.seam import LaneActorManager, LaneRequest, LaneResourceManager
from cotune.ray_tune.slot import ClusterOptions
from cotune.script.installed import spec_of
from cotune.script.preload import modules_to_preload
from cotune.sharing.cpu import ALLOCATORS

log = logging.getLogger(__name__)

# Resources that lanes provide. Ray grants requests for others, such as a custom resource, and for several GPUs.
_PLACED = {"CPU", "GPU", "memory", "object_store_memory"}
_MIXED = (
    "in one run, do not mix trials that name resources of their own, or ask for several bundles or GPUs, with others"
)
# Prefixes of the driver's environment variables that Tune passes to its own actors.
_PROPAGATED = ("RAY_CHDIR_TO_TRIAL_DIR", "TUNE_", "RAY_AIR_", "RAY_TRAIN_", "AWS_")


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments of `colocate`, those for the brain in its own form."""

    packer: PackerOptions
    gpus: int | None
    memory_margin: float | None
    isolation: str
    priority: Callable[[Mapping[str, Any]], float]


def colocate(
    scheduler: TrialScheduler | str | None = None,
    *,
    gpus: int | None = None,
    lanes: int | None = None,
    max_residents: int = 1,
    memory_margin: float | None = None,
    isolation: str = "lane",
    policy: str | Policy | None = None,
    iteration_timeout: float | timedelta | None = None,
    priority: float | Callable[[dict[str, Any]], float] = 0.0,
    max_slowdown: float = MAX_SLOWDOWN,
    **unknown: Never,
) -> TrialScheduler:
    """Makes the trials of a Ray Tune run share GPUs by measured memory.

        tune.TuneConfig(scheduler=colocate(ASHAScheduler()))

    Args:
        scheduler: The scheduler to use, or its name in Ray; first in, first out if left out.
        gpus: Number of the cluster's GPUs to use; all if left out, 0 for none. The GPU (or fraction) that a trial asks
            for is ignored: its memory is measured.
        lanes: Lanes per device; found by measuring if left out.
        max_residents: Trials that may take turns in one lane.
        memory_margin: Share of each device's memory that is left alone: 0.2 of a node's memory if left out, and
            256 MiB of a GPU's.
        isolation: "lane", or "process" for an actor per trial on a measured fraction of a GPU.
        policy: The order in which waiting trials start: "makespan" (the default), or another of docs/scheduling.md.
        iteration_timeout: Seconds, or a timedelta, without a report (or an optimizer's step) after which a trial has
            failed; as for `cotune.run` if left out.
        priority: A number for all trials, or a function of the config. Trials of higher priority get a lane first;
            residents of a lane still take turns evenly.
        max_slowdown: Factor, 1 or more, by which other trials on the device may slow down a trial with a priority
            above 0.

    Returns:
        The same scheduler, its class changed to a subclass.

    Raises:
        InputError: An argument is wrong, or this version of Ray is unknown.
    """
    refuse_unknown("colocate", unknown, {})
    chosen = _scheduler(scheduler)
    _check(gpus, lanes, max_residents, memory_margin, isolation)
    packer = PackerOptions(
        width=lanes,
        residents=max_residents,
        policy=make_policy(policy),
        iteration_timeout=checked_seconds("iteration_timeout", iteration_timeout),
        grants=False,
        judged=type(chosen) not in (FIFOScheduler, _colocated(FIFOScheduler)),
        max_slowdown=checked_slowdown(max_slowdown),
    )
    return wrap(chosen, Options(packer, gpus, memory_margin, isolation, checked_priority(priority)))


def _scheduler(scheduler: TrialScheduler | str | None) -> TrialScheduler:
    if scheduler is None:
        return FIFOScheduler()
    if isinstance(scheduler, str):
        try:
            return create_scheduler(scheduler)
        except ValueError as error:
            raise InputError(
                f"scheduler={scheduler!r} is not one of Ray's names: {error}",
                hint="pass the scheduler itself, such as colocate(ASHAScheduler())",
            ) from None
    if not isinstance(scheduler, TrialScheduler):
        raise InputError(
            f"scheduler={scheduler!r} is no scheduler of Ray Tune",
            hint="write Tuner(trainable, tune_config=TuneConfig(scheduler=colocate(ASHAScheduler()), ...))",
        )
    _check_measures(scheduler)
    return scheduler


def _check_measures(scheduler: Any) -> None:
    if isinstance(scheduler, ResourceChangingScheduler):
        raise InputError(
            "a ResourceChangingScheduler decides what each trial gets, which here is measured",
            hint="give Tune the scheduler inside it in its place: scheduler=colocate(base_scheduler)",
        )


def _check(gpus: object, lanes: object, residents: object, margin: object, isolation: object) -> None:
    checked_count("gpus", gpus, least=0)
    checked_count("lanes", lanes)
    if checked_count("max_residents", residents) is None:
        raise InputError("max_residents=None is not a number", hint="leave it out, or write max_residents=2")
    if margin is not None and (isinstance(margin, bool) or not isinstance(margin, (int, float)) or not 0 <= margin < 1):
        raise InputError(f"memory_margin={margin!r} is not a share", hint="write 0.1 to leave a tenth alone")
    if isolation not in ("lane", "process"):
        raise InputError(f"isolation={isolation!r} is not known", hint="write 'lane' or 'process'")


def wrap(scheduler: TrialScheduler, options: Options) -> TrialScheduler:
    """Changes a scheduler's class to the subclass that places trials in lanes.

    Raises:
        InputError: This version of Ray is unknown.
    """
    # Checked and mended here, since a restored experiment comes through this function, too.
    if options.isolation == "lane":
        _private.check()
        mends.mend()
    if getattr(scheduler, "_cotune_options", None) is None:
        scheduler.__class__ = _colocated(cast(Any, type(scheduler)))
    scheduler._cotune_options = options
    scheduler._cotune_fractions = Fractions()
    return scheduler


@functools.cache
def _colocated(base: Any) -> type[TrialScheduler]:
    class Colocated(base):  # type: ignore[misc]
        def on_trial_add(self, tune_controller: Any, trial: Any, **kwargs: Any) -> None:
            if self._cotune_options.isolation == "process":
                # A request made long before its trial starts would be based on old measurements.
                _private.queue_one_ahead(tune_controller)
                # A process runs one trial only, so that its peak is that trial's.
                _private.reuse_no_actors(tune_controller)
                self._cotune_fractions.prepare(trial)
            else:
                controller = _private.unwrapped(tune_controller)
                _check_measures(controller._scheduler_alg)
                mends.keep_awaited_checkpoints(controller)
                admit(controller, trial, self._cotune_options)
            super().on_trial_add(tune_controller, trial, **kwargs)

        def on_trial_result(self, tune_controller: Any, trial: Any, result: Any, **kwargs: Any) -> Any:
            self._cotune_fractions.learn(trial, result)
            return super().on_trial_result(tune_controller, trial, result, **kwargs)

        def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
            state = {name: value for name, value in self.__dict__.items() if not name.startswith("_cotune_")}
            return _again, (base, state, self._cotune_options)

    Colocated.__name__, Colocated.__qualname__ = base.__name__, base.__qualname__
    return Colocated


def _again(base: Any, state: Mapping[str, Any], options: Options) -> TrialScheduler:
    scheduler = base.__new__(base)
    scheduler.__dict__.update(state)
    return wrap(scheduler, options)


# ---- at the first trial


def admit(controller: Any, trial: Any, options: Options) -> None:
    """Has the brain place a trial, if the trial can run in a lane."""
    request = trial.placement_group_factory
    if request is None or isinstance(request, LaneRequest):
        return
    others = sorted(set(request.required_resources) - _PLACED)
    if request.required_resources.get("GPU", 0) > 1:
        # A lane has one GPU.
        others.append("several GPUs")
    if len(request.bundles) > 1 or request.head_bundle_is_empty or others:
        if isinstance(controller._actor_manager, LaneActorManager):
            raise InputError(
                f"{trial} cannot run in a lane, but trials of this run do, whose lanes hold what it asks for",
                hint=_MIXED,
            )
        if others:
            _warn_of(", ".join(others))
        return
    install(controller, trial, options)
    trial.placement_group_factory = LaneRequest.of(trial)


@functools.cache
def _warn_of(resources: str) -> None:
    log.warning("trials that ask Ray for %s are placed by Ray, each in a process of its own", resources)


def install(controller: Any, trial: Any, options: Options) -> None:
    """Replaces Tune's resource and actor managers, which Tune has not used yet, by those of `seam`."""
    manager = controller._actor_manager
    if isinstance(manager, LaneActorManager):
        return
    if manager.all_actors:
        raise InputError(
            "colocate() came too late: trials of this run have actors already",
            hint=_MIXED,
        )
    theirs = manager._resource_manager, type(manager)
    manager._resource_manager = LaneResourceManager(_broker(trial, options, _private.most_at_once(controller)))
    manager.__class__ = LaneActorManager
    _private.follow_resources(controller, lambda: _admit_anew(controller, options, theirs))
    # Lanes reuse their processes themselves; Tune's cache of actors would keep a place in a lane.
    _private.reuse_no_actors(controller)


def _admit_anew(controller: Any, options: Options, theirs: tuple[Any, type]) -> None:
    """Admits waiting trials whose resources Tune changed, as `tune.run(resume=True, resources_per_trial=...)` does."""
    waiting = [trial for trial in controller.get_trials() if trial.status == "PENDING"]
    changed = [trial for trial in waiting if not isinstance(trial.placement_group_factory, LaneRequest)]
    manager = controller._actor_manager
    is_ours = isinstance(manager, LaneActorManager)
    if changed and is_ours and not manager._resource_manager.broker.packer.unfinished:
        # No trial was asked for yet: whether there are lanes, and of which kind, follows from the new resources.
        manager._resource_manager, manager.__class__ = theirs
    for trial in changed:
        admit(controller, trial, options)


def _broker(trial: Any, options: Options, most: int | None) -> Broker:
    # A policy of its own for each experiment: a scheduler may be used for several.
    packer = replace(options.packer, policy=make_policy(options.packer.policy))
    asked = trial.placement_group_factory.required_resources
    cores = float(asked.get("CPU", 0.0))
    cluster = ClusterOptions(
        gpus=options.gpus,
        asks_gpu=asked.get("GPU", 0.0) > 0,
        cores=cores,
        margin=options.memory_margin,
        lanes=packer.width,
        trials=most,
        residents=packer.residents,
        environment=_environment(cores),
        modules=_modules(trial.get_trainable_cls()),
    )
    return Broker(Packer(packer), Cluster(cluster), options.priority)


def _environment(cores: float) -> dict[str, str]:
    told = {name: value for name, value in os.environ.items() if name.startswith(_PROPAGATED)}
    given = ray.get_runtime_context().runtime_env.get("env_vars") or {}
    # The values that Ray sets for an actor with so many CPUs, unless the user has set others for the job.
    usual = {"PL_DISABLE_FORK": "1", "OMP_NUM_THREADS": str(max(1, int(cores)))}
    return {name: value for name, value in (usual | ALLOCATORS).items() if name not in given} | told


def _modules(trainable: Any) -> list[str]:
    """Modules that lanes import ahead; only numpy for a trainable that cannot be pickled, which Ray will report."""
    try:
        # Tune's loggers load torch into the driver, whatever the trainable uses.
        found = modules_to_preload(cloudpickle.dumps(trainable), trainable, torch_if_loaded=False)
        return [name for name in found if spec_of(name.partition(".")[0]) is not None]
    except Exception:
        return ["numpy"]
