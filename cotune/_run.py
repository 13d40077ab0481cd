"""`cotune.run`: checks the arguments, has the sweep assembled and run, and returns the results."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Never

from cotune._arguments import (
    check_goal,
    check_run_name,
    check_storage,
    checked_callbacks,
    checked_choice,
    checked_count,
    checked_flag,
    checked_max_steps,
    checked_mps,
    checked_priority,
    checked_seconds,
    checked_seed,
    checked_slowdown,
    checked_threads,
    made_up,
    packer_options,
    refuse_before_start,
)
from cotune.driver.fingerprint import digest, identity
from cotune.driver.profile import Profile, profile_path
from cotune.driver.signals import Interrupts
from cotune.engines.base import Engine
from cotune.engines.local import LocalEngine
from cotune.engines.local_options import LocalOptions
from cotune.errors import InputError, RunNameInUse
from cotune.packer import MAX_SLOWDOWN, MOST_PAUSED, Packer, Policy
from cotune.paths import RunFolder, storage_folder
from cotune.results import Results, TrialResult
from cotune.script.pickling import Packed, dumps, pack
from cotune.search import PRUNERS, SAMPLERS
from cotune.search.codes import shown
from cotune.search.promotion import AshaPromote
from cotune.search.spaces import Space
from cotune.sharing.devices import DeviceInfo, find_devices
from cotune.sharing.lane_options import TrialOptions
from cotune.stopping import checked_stop
from cotune.trainable import check_trainable

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler

    from cotune.record import Saved


# Hints for the names that other tuners use for the same argument.
_INSTEAD = {
    **dict.fromkeys(("num_samples", "n_trials"), "say trials= how many"),
    **dict.fromkeys(("timeout", "time_budget_s"), "say time_budget= how many seconds"),
    **dict.fromkeys(("storage_path", "local_dir"), "storage= is the folder"),
    **dict.fromkeys(("resources_per_trial", "gpus_per_trial", "resources"), "what a trial needs is measured"),
    "config": "pass the search space as second argument",
    "param_space": "pass the search space as second argument",
    "direction": "say mode='min' or mode='max'",
    **dict.fromkeys(
        ("n_jobs", "max_concurrent", "max_concurrent_trials"),
        "leave it out: how many trials run at once is found; or say lanes=",
    ),
    "scheduler": "pruner= stops trials early: 'asha', 'hyperband', 'median', or one of Optuna's",
    "search_alg": "sampler= proposes: 'tpe', 'random', 'grid', or one of Optuna's",
    **dict.fromkeys(
        ("max_t", "max_iter", "max_iterations", "max_epochs", "epochs"),
        "stop={'training_iteration': 100} ends a trial after its 100th report; or end it in the function",
    ),
    **dict.fromkeys(("retries", "max_retries"), "say max_failures="),
    "load_if_exists": "say resume=True",
}


def run(
    trainable: Callable[[dict[str, Any]], Any] | type,
    # Without defaults Python would refuse other tuners' names for these before their hints are seen.
    space: Mapping[str, Any] | None = None,
    *,
    metric: str = "",
    mode: str = "min",
    trials: int | None = None,
    gpus: int | Sequence[int | str] | None = None,
    devices: Sequence[str] | None = None,
    cluster: str | None = None,
    lanes: int | None = None,
    residents: int = 1,
    reuse: bool = True,
    threads: int | None = None,
    policy: str | Policy | None = None,
    grants: bool = True,
    stop: Mapping[str, float] | Callable[[int, dict[str, Any]], Any] | None = None,
    max_steps: int | Callable[[dict[str, Any]], int | None] | None = None,
    priority: float | Callable[[dict[str, Any]], float] = 0.0,
    max_slowdown: float = MAX_SLOWDOWN,
    mps: bool | None = None,
    sampler: str | BaseSampler | None = None,
    pruner: str | BasePruner | AshaPromote | None = None,
    seed: int | None = None,
    name: str | None = None,
    storage: str | os.PathLike[str] | None = None,
    resume: bool = False,
    time_budget: float | timedelta | None = None,
    max_failures: int = 0,
    lockstep: bool = False,
    callbacks: Iterable[Callable[[TrialResult], Any]] | None = None,
    dashboard: bool | None = None,
    iteration_timeout: float | timedelta | None = None,
    **unsupported: Never,
) -> Results:
    """Tunes a trainable: proposes configurations, packs their trials onto the devices, returns the results.

    Args:
        trainable: A function of the config, a dict, that calls `cotune.report`; or a class with `setup(config)` and
            `step() -> metrics`, which ends the trial by returning None or `"done": True`, and with `rehearse(config)`
            if trials shall be estimated before they run. Closures, lambdas and functions of a script or a notebook
            work.
        space: Names to domains (`cotune.loguniform(1e-5, 1e-1)`, Optuna distributions, Ray Tune domains), to
            constants, or to nested dicts of these.
        metric: The reported metric to tune.
        mode: `min` or `max`.
        trials: Number of trials; may be left out with `sampler="grid"` (all of it) or a time budget. What an earlier
            session has suggested is run in any case.
        gpus: Number of GPUs, or a list of positions or UUIDs, among those `CUDA_VISIBLE_DEVICES` shows; 0 for the CPU.
            All GPUs, or the CPU where there are none, if neither `gpus` nor `devices` is given.
        devices: Explicit devices, such as `["cpu:0@4GiB", "cpu:1@4GiB"]` or `["cuda:0"]`.
        cluster: Use a Ray cluster instead of this machine: `auto` for the running one, or its address, such as
            `host:6379` (`ray://host:10001` with `ray[client]`). `gpus` is then a count over the whole cluster; every
            node must see `storage`.
        lanes: Lanes that run at once on each device; found by measuring if left out.
        residents: Trials that may take turns in a lane, 64 at most. More than 1 shortens no sweep.
        reuse: Whether a lane runs one trial after another. With False every trial has its own process, forked with
            everything imported: for libraries that keep state per process (see docs/limits.md).
        threads: Threads per operation in a trial; 1 on CPU devices if left out.
        policy: Which waiting trial goes first: `makespan` (the default), `fifo`, `srtf`, `fair`, `pack`, `horus`,
            `gandiva`, `fluid` (see docs/scheduling.md), or a `Policy`.
        grants: Whether a device's idle room is lent to trials that use `cotune.micro_batches`, whose results may then
            differ in float rounding; never with `lockstep`.
        stop: Ends a trial early as done: a dict of metrics and the values at which (`>=`) they suffice, such as
            `{"accuracy": 0.95, "training_iteration": 50}` (the number of reports), or a function of the trial's
            number and a report's metrics. The trial ends after that report and the checkpoint that follows it.
        max_steps: Iterations (optimizer steps; reports where there is no optimizer) that a trial makes if it is not
            stopped: a number for all trials, or a function of the config. With it, a trial's remaining time is known
            from its second iteration on, instead of only after other trials have ended.
        priority: A number for all trials, or a function of the config. Trials of higher priority start first, and
            have the turn in their lane.
        max_slowdown: Factor, 1 or more, by which other trials on the device may slow down a trial with a priority
            above 0: its neighbours are chosen, and if need be left out, to keep it (`TrialResult.slowdown`).
        mps: Whether the lanes of a GPU compute at the same time, through an MPS daemon of this run; otherwise the
            GPU driver time-slices them. If left out, MPS is used wherever such a daemon can be started. With MPS, a
            fatal fault of one trial, such as a failed device-side assert, may cost other trials on that GPU their
            lanes: they go on from their checkpoints, without MPS.
        sampler: `tpe` (the default), `random`, `grid`, or any Optuna sampler.
        pruner: `asha`, `hyperband`, `median`, or any Optuna pruner; none if left out. With `asha-promote` (or an
            `AshaPromote`) trials wait at rungs until they are among the best there, instead of being stopped for good.
        seed: Makes suggestions and every trial repeatable (suggestions exactly with `lanes=1, lockstep=True` on one
            device; a sampler that is an object has a seed of its own); an integer from 0 to 2**32 - 1.
        name: Name of the run; generated if left out.
        storage: The folder for runs; `COTUNE_STORAGE` or `~/cotune_runs` if left out.
        resume: Go on with the run of this name, if there is one.
        time_budget: Seconds, or a timedelta, after which the run ends; trials that are running then can be resumed,
            with a budget of their own.
        max_failures: How often a trial that raised is tried again. Out-of-memory and lost lanes do not count.
        lockstep: Wait for the verdict on each report, and suggest a trial only when it can start: slower; reproducible
            with `lanes=1`, one device and one resident.
        callbacks: Each is called with the result of every trial that has ended; meanwhile no other trial starts. An
            exception from a callback is shown once; the run goes on.
        dashboard: False shows nothing; otherwise a live table in a terminal, and plain lines elsewhere.
        iteration_timeout: Seconds, or a timedelta, without an iteration boundary after which a trial is overdue and
            killed; by default, from its third iteration on, 1,800 s or twenty times its longest iteration, whichever
            is more.

    Returns:
        All trials; `results.best` is the best. A trial that failed is in `results.errors`; the other trials go on.

    Raises:
        InputError: An argument is wrong (`SpaceError`, `DeviceError`, `NotPicklable`); or the first report of the run
            lacks the metric (`UnknownMetric`).
        RunError: The run cannot begin or go on (`RunNameInUse`, `StorageError`). These and the errors above are a
            `CotuneError`, whose `hint` says what to do.
        KeyboardInterrupt: Ctrl-C was pressed twice. After one Ctrl-C, running trials stop and results are returned.
            (SIGTERM stops them, too, and then ends the process.)
    """
    refuse_before_start("run", unsupported, _INSTEAD)
    kind = check_trainable(trainable)
    tree = Space(space)
    for flag, value in (("grants", grants), ("resume", resume), ("lockstep", lockstep)):
        checked_flag(flag, value)
    checked_flag("dashboard", dashboard, or_none=True)
    sampler = checked_choice("sampler", sampler, SAMPLERS)
    pruner = checked_choice("pruner", pruner, PRUNERS)
    # Compared by class name, so that Optuna is not imported yet.
    pruner = None if pruner == "none" or type(pruner).__name__ == "NopPruner" else pruner
    options = packer_options(
        lanes, residents, reuse, policy, iteration_timeout,
        max_failures=checked_count("max_failures", max_failures, least=0) or 0,
        grants=grants and not lockstep,
        judged=pruner is not None,
        max_slowdown=checked_slowdown(max_slowdown),
    )  # fmt: skip
    priority_of, max_steps_of = checked_priority(priority), checked_max_steps(max_steps)
    seed = checked_seed(seed)
    check_goal(metric, mode)
    rule = checked_stop(stop, metric if mode == "min" else "")
    check_run_name(name)
    heard_by = checked_callbacks(callbacks, "trial")
    mps = checked_mps(mps, lanes)
    budget = checked_seconds("time_budget", time_budget)
    is_grid = sampler == "grid"
    if is_grid:
        tree.grid()
    wanted = checked_count("trials", trials)
    if wanted is None and budget is None and not is_grid:
        raise InputError("neither trials= nor time_budget= says when to end", hint="pass trials=50, for example")
    if not tree.domains and wanted != 1:
        _warn_of_lists(tree)
    threads = checked_threads(threads)
    found = find_devices(gpus, devices, threads) if cluster is None else []
    _check_cluster(cluster, gpus, devices)
    if resume and name is None:
        raise InputError("resume=True, but no name= says which run", hint="pass the name= that it had")
    folder = _open_run(name or made_up(kind), storage)
    promotes = isinstance(pruner, AshaPromote) or pruner == "asha-promote"
    # The first signal stops trials at their next boundary, the second ends the loop, which a callback may hold up.
    interrupts = Interrupts(last=2)
    with folder.locked(is_named=name is not None):
        saved = _saved(folder, resume)
        if saved is not None:
            seed = int(saved.settings["seed"])
        elif seed is None:
            seed = secrets.randbits(32)
        # Trials that may wait at rungs in one lane, beside those that run.
        paused = MOST_PAUSED if promotes and options.reuse else 0
        ends = dumps(rule, "stop=") if rule is not None else b""
        all_trials = TrialOptions(metric, lockstep, judged=pruner is not None, seed=seed, stop=ends)
        how = LocalOptions(all_trials, threads, options.residents, paused, mps=mps)
        packed = pack(trainable, plainly=tree.is_plain)
        engine = _engine(packed, found, cluster, gpus, folder, how)
        with interrupts.handled(signal.SIGTERM), contextlib.ExitStack() as stack:
            stack.callback(engine.close)
            if packed.series is not None:
                # Now, and not when a trial first draws it.
                for where, value in tree.objects():
                    packed.series.then(value, f"{where!r} of the space")
            del packed
            # Imported only now: Optuna takes long to import, and the zygote starts meanwhile.
            from cotune.driver.assembly import Asked, assemble
            from cotune.driver.options import SweepOptions

            # A trial needs other bytes on a GPU than in a CPU process, so each kind of device has its own profile.
            hardware = "cuda" if engine.uses_gpus else "cpu"
            profile = Profile(profile_path(folder.path.parent, trainable, tree.constants, hardware))
            until = SweepOptions(
                kind, metric, wanted, budget, lockstep,
                callbacks=tuple(heard_by), priority=priority_of, max_steps=max_steps_of,
            )  # fmt: skip
            asked = Asked(tree, mode, sampler, pruner, seed, dashboard, until, digest(*identity(trainable)))
            sweep, records = assemble(asked, folder, saved, engine, Packer(options), profile, stack)
            # Pushed last, so that the engine closes first: nothing arrives while the files are being closed.
            stack.callback(engine.close)
            interrupts.end(sweep)
            sweep.run()
        results = tuple(records[number].result() for number in sorted(records))
        return Results(results, metric, mode, folder.path.name, folder.path, records.makespan, sweep.interrupted)


def _engine(
    packed: Packed, found: list[DeviceInfo], cluster: str | None, gpus: Any, folder: RunFolder, how: LocalOptions
) -> Engine:
    if cluster is None:
        return LocalEngine(packed, found, folder.lanes, how)
    from cotune.engines.ray import RayEngine

    return RayEngine(cluster, packed, gpus, folder.lanes, how)


def _warn_of_lists(space: Space) -> None:
    """Warns of what may have been meant as options, where all trials have the same config."""
    for name, value in space.constants.items():
        if isinstance(value, list | tuple) and len(value) > 1:
            warnings.warn(
                f"all trials have the same config: {name!r} of the space is the constant {shown(value)}. To search it "
                "write cotune.choice([...])",
                stacklevel=3,
            )


def _open_run(name: str, storage: str | os.PathLike[str] | None) -> RunFolder:
    check_storage(storage, "a study in a database goes to cotune.optimize(study, ...)")
    folder = RunFolder(storage_folder(storage) / name)
    folder.create()
    return folder


def _saved(folder: RunFolder, resume: bool) -> Saved | None:
    """The state of an earlier session, or None; consistent only while this process holds the run's lock."""
    from cotune.record import has_started, read_events, read_run, study_of

    if folder.has_begun():
        if not resume and not has_started(folder):
            folder.clear()
        elif (study := study_of(folder)) is not None:
            raise RunNameInUse(
                f"run {folder.path.name!r} in {folder.path.parent} belongs to the Optuna study {study!r}",
                hint="choose another name=; cotune.optimize goes on with a study",
            )
        elif not resume:
            raise RunNameInUse(
                f"a run named {folder.path.name!r} is in {folder.path.parent} already",
                hint="pass resume=True to go on with it, or another name=",
            )
    if folder.events.exists() and any(read_events(folder.events)):
        return read_run(folder)
    # An earlier driver may have died, or found the disk full, before it wrote an event.
    if foreign := [path.name for path in (folder.journal, folder.trials) if path.exists()]:
        raise RunNameInUse(
            f"{folder.path} has {' and '.join(foreign)}, but no events of a run",
            hint="choose another name=, or move that away",
        )
    return None


def _check_cluster(cluster: Any, gpus: Any, devices: Any) -> None:
    if cluster is None:
        return
    if not isinstance(cluster, str) or not cluster:
        raise InputError(f"cluster={cluster!r} is not an address", hint="write cluster='auto', or 'ray://host:10001'")
    if devices is not None:
        raise InputError(
            f"devices={devices!r} names devices of this machine, but cluster={cluster!r} was given",
            hint="leave devices out; gpus=4 asks for four GPUs of the cluster, gpus=0 for its CPUs",
        )
    if gpus is not None and (isinstance(gpus, bool) or not isinstance(gpus, int) or gpus < 0):
        raise InputError(f"gpus={gpus!r} is not a count", hint="on a cluster gpus= says how many, such as gpus=4")
