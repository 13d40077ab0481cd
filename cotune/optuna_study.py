"""`cotune.optimize`: an Optuna study and its objective, unchanged, on cotune's lanes."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from numbers import Integral
from typing import Any, Never

import optuna

from cotune._arguments import (
    assigned_outside,
    check_run_name,
    check_storage,
    checked_callbacks,
    checked_count,
    checked_flag,
    checked_mps,
    checked_seed,
    checked_threads,
    checked_timeout,
    made_up,
    packer_options,
    refuse_before_start,
)
from cotune.dashboard.views import is_terminal, make_view
from cotune.driver.options import SweepOptions
from cotune.driver.signals import Interrupts
from cotune.driver.sweep import Sweep
from cotune.engines.local import LocalEngine
from cotune.engines.local_options import LocalOptions
from cotune.errors import InputError, RunNameInUse
from cotune.packer import Packer, Policy
from cotune.paths import RunFolder, storage_folder
from cotune.record import VERSION, EventLog, Records, read_events
from cotune.script.pickling import Packed, pack
from cotune.search.study_pickling import globals_of, study_as_proxy
from cotune.search.study_proxy import StudyObjective
from cotune.search.study_search import StudySearch
from cotune.sharing.devices import find_devices
from cotune.sharing.lane_options import TrialOptions
from cotune.trainable import name_of, signature, takes

_LANE_MODULE = "cotune.search.study_proxy"
# Signals after which the driver's loop is no longer waited for.
LAST = 3
_INSTEAD = {
    "func": "pass the objective as second argument",
    "sampler": "give it to optuna.create_study(sampler=...)",
    "pruner": "give it to optuna.create_study(pruner=...)",
    "resume": "load the study: optuna.load_study, or optuna.create_study(load_if_exists=True)",
    "trials": "say n_trials= how many",
    "time_budget": "say timeout= how many seconds",
    "metric": "the objective returns what is tuned",
    "mode": "give it to optuna.create_study(direction=...)",
    "cluster": "start the script on each machine, with one storage for the study",
    "max_failures": "say catch= which exceptions end only their trial; a callback may enqueue its parameters again",
    "stop": "return from the objective, or call study.stop() to end the study",
    "lockstep": "leave it out: a trial is suggested as it starts",
    **dict.fromkeys(("priority", "max_slowdown", "max_steps"), "leave it out: only cotune.run() has it"),
}


def optimize(
    study: optuna.Study,
    objective: Callable[[optuna.Trial], float | Sequence[float]] | None = None,
    n_trials: int | None = None,
    timeout: float | timedelta | None = None,
    n_jobs: int = 1,
    catch: Iterable[type[Exception]] | type[Exception] = (),
    callbacks: Iterable[Callable[[optuna.Study, optuna.trial.FrozenTrial], Any]] | None = None,
    gc_after_trial: bool = False,
    show_progress_bar: bool = False,
    *,
    gpus: int | Sequence[int | str] | None = None,
    devices: Sequence[str] | None = None,
    lanes: int | None = None,
    residents: int = 1,
    reuse: bool = True,
    threads: int | None = None,
    policy: str | Policy | None = None,
    grants: bool = True,
    mps: bool | None = None,
    seed: int | None = None,
    iteration_timeout: float | timedelta | None = None,
    dashboard: bool | None = None,
    name: str | None = None,
    storage: str | os.PathLike[str] | None = None,
    **unsupported: Never,
) -> None:
    """Runs an Optuna objective as `study.optimize` does, packed onto the devices by measured memory.

    Positional arguments are in the order of `study.optimize`.

    Args:
        study: Any study: its sampler, pruner and storage are used as they are, in this process.
        objective: As for `study.optimize`. It runs in other processes; calls to its trial are answered in this one.
        n_trials: Number of trials, none if 0 or less; None for no limit, until the timeout, `study.stop()` or Ctrl-C.
        timeout: Seconds from the first trial's start after which no further trial begins; with 0 or less none begins.
        n_jobs: Only 1, which changes nothing: `lanes` says how many trials run at once.
        catch: Exceptions of the objective that end only their trial. Any other ends the call and is raised here.
        callbacks: Each is called with the study and every trial that has ended.
        gc_after_trial: Changes nothing: lanes collect garbage anyway.
        show_progress_bar: The same as `dashboard`.
        gpus: Number of GPUs, or a list of them; see `cotune.run`.
        devices: Explicit devices, such as `["cpu:0@4GiB"]`.
        lanes: Lanes that run at once on each device; found by measuring if left out.
        residents: Trials that may take turns in a lane, 64 at most.
        reuse: Whether a lane runs one trial after another. With False every trial has its own process, forked with
            everything imported: for libraries that keep state per process (see docs/limits.md).
        threads: Threads per operation in a trial; 1 on CPU devices if left out.
        policy: Which waiting trial goes first; see `cotune.run`.
        grants: Whether a device's idle room is lent to trials that use `cotune.micro_batches`.
        mps: Whether the lanes of a GPU compute at the same time; see `cotune.run`.
        seed: Seeds the random generators in the trials; the sampler has its own seed.
        iteration_timeout: Seconds, or a timedelta, without a report or an optimizer step after which a trial is overdue
            and killed; see `cotune.run` if left out.
        dashboard: True shows a live table. None shows it in a terminal where Optuna's log lines are switched off.
        name: Name of the folder for logs, tracebacks and checkpoints; generated if left out.
        storage: The folder that holds that folder; `COTUNE_STORAGE` or `~/cotune_runs` if left out. Not the study's
            storage.

    Raises:
        CotuneError: An argument is wrong (`InputError`), the folder is that of another run (`RunNameInUse`) or cannot
            be written (`StorageError`); the `hint` says what to do.
        Exception: The objective raised it and it is not in `catch`; or a callback, the sampler or the storage did.
        KeyboardInterrupt: Ctrl-C was pressed. The study has been told that running trials failed.
    """
    # A handler of the script's own may call `study.stop()`.
    interrupts = Interrupts(LAST, leaves_own=True)
    with interrupts.handled(signal.SIGINT, signal.SIGTERM), contextlib.ExitStack() as stack:
        caught = _check(study, objective, catch, name, unsupported)
        assert objective is not None
        if n_jobs != 1:
            raise InputError(
                f"n_jobs={n_jobs!r}: trials run in processes here, not in threads",
                hint="leave it out: how many run at once on each device is measured, or lanes= says it",
            )
        heard_by = checked_callbacks(callbacks, "study", "trial")
        checked_flag("grants", grants)
        checked_flag("dashboard", dashboard, or_none=True)
        options = packer_options(
            lanes, residents, reuse, policy, iteration_timeout,
            grants=grants,
            # Optuna does not prune trials of several objectives.
            judged=len(study.directions) == 1 and not isinstance(study.pruner, optuna.pruners.NopPruner),
        )  # fmt: skip
        mps = checked_mps(mps, lanes)
        # A caller that goes on with `n_trials=100 - len(study.trials)` may have more than 100 already.
        asked: Any = n_trials
        past = isinstance(asked, Integral) and asked < 0
        wanted, seconds = checked_count("n_trials", 0 if past else asked, least=0), checked_timeout(timeout)
        seed = secrets.randbits(32) if seed is None else checked_seed(seed) or 0
        threads = checked_threads(threads)
        found = find_devices(gpus, devices, threads)
        if wanted == 0 or seconds == 0:
            return
        folder = _folder(study, name, storage)
        if dashboard is None:
            dashboard = show_progress_bar or (
                optuna.logging.get_verbosity() > optuna.logging.INFO and is_terminal(sys.stderr)
            )
        stack.enter_context(folder.locked(is_named=name is not None))
        stack.enter_context(_in_optimize_loop(study))
        how = LocalOptions(
            TrialOptions(judged=False, seed=seed), threads, options.residents, preload=(_LANE_MODULE,), mps=mps
        )
        engine = LocalEngine(_packed(study, objective), found, folder.lanes, how)
        stack.callback(engine.close)
        log = EventLog(folder.events)
        stack.callback(log.close)
        log.write(
            "run", time.time(), version=VERSION, name=folder.path.name, study=study.study_name, seed=seed,
            policy=options.policy.name, residents=options.residents,
        )  # fmt: skip
        records = Records(folder, log, "", seed)
        search = StudySearch(
            study,
            folder=folder,
            timeout=seconds,
            since=lambda: records.first_start,
            catch=caught,
            callbacks=heard_by,
            wake=engine.wake,
        )
        settings = SweepOptions(name_of(objective), "", wanted, None, lockstep=True)
        sweep = Sweep(_Later(), search, Packer(options), engine, records, make_view(dashboard), settings)
        stack.callback(sweep.display.close)
        _logger.info(f"Logs and tracebacks of its trials are in {folder.path}")
        if lost := assigned_outside(objective):
            _logger.warning(
                f"The objective assigns {', '.join(lost)}, which changes in the process of its trial only. "
                "Use trial.set_user_attr() for what is to be read here."
            )
        _serve(study, search, sweep, interrupts)


_logger = optuna.logging.get_logger("optuna.study.cotune")


class _Later:
    """The `Configs` of a study, whose trials start without parameters and ask for them as they run."""

    def config(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def features(self, params: Mapping[str, Any]) -> dict[str, float]:
        return {}


def _packed(study: optuna.Study, objective: Callable[[optuna.Trial], Any]) -> Packed:
    """The objective, pickled for lanes; whatever in it refers to the study has the proxy there."""
    # Only here: callbacks may pickle the study itself, as Optuna's guide does.
    with study_as_proxy(study):
        trainable = StudyObjective(objective, len(study.directions), globals_of(study))
        return pack(trainable, plainly=True, what="the objective", blamed=objective)


@contextlib.contextmanager
def _in_optimize_loop(study: optuna.Study) -> Iterator[None]:
    """Lets `study.stop()` be called within a block."""
    study._stop_flag = False
    study._thread_local.in_optimize_loop = True
    try:
        yield
    finally:
        study._thread_local.in_optimize_loop = False


def _serve(study: optuna.Study, search: StudySearch, sweep: Sweep, interrupts: Interrupts) -> None:
    """Runs the driver's loop on a thread of its own, and the study on this one."""
    loop = threading.Thread(target=_loop, args=(sweep, search), name="cotune-driver", daemon=True)
    failure: BaseException = KeyboardInterrupt()
    try:
        interrupts.serving.set()
        interrupts.end(sweep)
        loop.start()
        search.serve()
    except BaseException as error:
        failure = error
        raise
    finally:
        interrupts.serving.clear()
        # Two interrupts end the loop at once; once it has ended they change nothing.
        sweep.interrupt(2)
        while loop.is_alive() and len(interrupts.received) < LAST:
            loop.join(0.1)
        try:
            search.give_up(failure)
        finally:
            study._storage.remove_session()


def _loop(sweep: Sweep, search: StudySearch) -> None:
    failure: BaseException | None = None
    try:
        sweep.run()
    except BaseException as error:
        failure = error
    search.finished(failure)


def _folder(study: optuna.Study, name: str | None, storage: str | os.PathLike[str] | None) -> RunFolder:
    check_storage(storage, "the study's own is given to optuna.create_study(storage=...)")
    root = storage_folder(storage)
    # The name that Optuna generates for a study without one is long and says nothing.
    kind = "study" if study.study_name.startswith("no-name-") else study.study_name
    folder = RunFolder(root / (name or made_up(kind)))
    if folder.has_begun():
        first, _ = next(read_events(folder.events), ({}, b""))
        if first and first.get("study") != study.study_name:
            raise RunNameInUse(f"a run named {name!r} is in {root} already", hint="choose another name=")
    folder.create()
    return folder


# ---- checks of the arguments


def _check(study: Any, objective: Any, catch: Any, name: Any, unsupported: Mapping[str, Any]) -> tuple[Any, ...]:
    """Refuses wrong arguments before anything starts; returns `catch` as a tuple."""
    refuse_before_start("optimize", unsupported, _INSTEAD)
    if not isinstance(study, optuna.Study):
        raise InputError(f"study={study!r} is not an Optuna study", hint="write cotune.optimize(study, objective, ...)")
    if study._thread_local.in_optimize_loop:
        raise InputError("optimize() was called within optimize() of the same study", hint="call it afterwards")
    _check_objective(objective)
    caught = tuple(catch) if isinstance(catch, Iterable) else (catch,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in caught):
        raise InputError(f"catch={catch!r} is no exception class, or tuple of them", hint="write catch=(ValueError,)")
    check_run_name(name)
    return caught


def _check_objective(objective: Any) -> None:
    if not callable(objective) or isinstance(objective, type):
        raise InputError(
            f"objective={objective!r} cannot be called with a trial",
            hint="pass a function, def objective(trial): ..., or an object with __call__(self, trial)",
        )
    if not takes(objective, 1):
        raise InputError(
            f"the objective {name_of(objective)}{signature(objective)} cannot be called with one argument",
            hint="it is called with the trial; bind others: lambda trial: objective(trial, data)",
        )
