"""Search, brain, body and records of a run, put together as `cotune.run` was asked for."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler, GridSampler
from optuna.trial import TrialState

from cotune.dashboard.views import make_view
from cotune.engines.base import Engine
from cotune.errors import InputError, RunError
from cotune.event_log import VERSION, EventLog
from cotune.packer import Packer
from cotune.paths import RunFolder
from cotune.profile import Profile
from cotune.record import Record, Saved
from cotune.records import Records
from cotune.results import TrialResult
from cotune.search.promotion import AshaPromote
from cotune.search.samplers import learns, make_pruner, make_sampler
from cotune.search.search import PastTrial, Search
from cotune.search.spaces import Space
from cotune.sweep import Sweep, SweepOptions


@dataclass(frozen=True, slots=True)
class Asked:
    """The arguments of `cotune.run` that say what is searched and how, checked.

    Attributes:
        kind: Name of the trainable.
        trials: How many; None for no limit.
        time_budget: Seconds; None for no limit.
        priority: Of a config.
        max_steps: Iterations to its end, of a config.
    """

    kind: str
    space: Space
    metric: str
    mode: str
    trials: int | None
    sampler: str | BaseSampler | None
    pruner: str | BasePruner | AshaPromote | None
    seed: int | None
    time_budget: float | None
    lockstep: bool
    callbacks: tuple[Callable[[TrialResult], Any], ...]
    dashboard: bool | None
    priority: Callable[[Mapping[str, Any]], float]
    max_steps: Callable[[Mapping[str, Any]], int | None]


def assemble(
    asked: Asked, folder: RunFolder, saved: Saved | None, engine: Engine, packer: Packer, profile: Profile
) -> tuple[Sweep, Records, Callable[[], None]]:
    """Builds a sweep.

    Args:
        asked: What it is to do.
        folder: Of the run.
        saved: What an earlier session has left there, if the run is resumed.
        engine: Runs.
        packer: Decides.
        profile: What earlier runs have measured.

    Returns:
        The sweep, the records it fills, and what ends all it writes to.

    Raises:
        RunError: The earlier session tuned something else.
        InputError: There is no such sampler or pruner.
    """
    settings, earlier = (saved.settings, saved.records) if saved else ({}, [])
    _take_up(asked, folder, settings, earlier)
    base = int(settings["seed"]) if settings else secrets.randbits(32) if asked.seed is None else asked.seed
    # A sampler that starts again from its seed would make its first suggestions again; a grid must stay the same.
    is_grid = isinstance(asked.sampler, str) and asked.sampler.lower() == "grid"
    sampler = make_sampler(asked.sampler, asked.space, base if is_grid else (base + len(earlier)) % 2**32)
    pruner = make_pruner(asked.pruner)
    # A grid is run once, also by Optuna's own sampler, which would begin again while its last points are running.
    points = getattr(sampler, "_n_min_trials", None) if isinstance(sampler, GridSampler) else None
    trials = points if asked.trials is None else min(asked.trials, points or asked.trials)
    log = EventLog(folder.events)
    # Once for each session of a run; the first is what others go by.
    log.write(
        "run", time.time(), version=VERSION, name=folder.path.name, kind=asked.kind, metric=asked.metric,
        mode=asked.mode, seed=base, trials=trials,
        space={name: repr(domain) for name, domain in asked.space.domains.items()},
    )  # fmt: skip
    log.flush()
    folder.journal.unlink(missing_ok=True)
    search = Search(
        asked.space,
        sampler,
        pruner,
        direction="minimize" if asked.mode == "min" else "maximize",
        journal=folder.journal,
        name=folder.path.name,
        past=[_past(record) for record in earlier],
        prepare=lambda number: folder.trial(number).create(),
        wake=engine.wake,
    )
    options = SweepOptions(
        asked.kind,
        asked.metric,
        trials,
        asked.time_budget,
        asked.lockstep,
        is_blind=not learns(sampler),
        callbacks=asked.callbacks,
        priority=asked.priority,
        max_steps=asked.max_steps,
    )
    records = Records(folder, log, asked.mode, base, earlier)
    sweep = Sweep(asked.space, search, packer, engine, records, make_view(asked.dashboard), options, profile)
    ending = contextlib.ExitStack()
    for end in (log.close, profile.save, search.close, sweep.display.close):
        ending.callback(end)
    return sweep, records, ending.close


def _take_up(asked: Asked, folder: RunFolder, settings: Mapping[str, Any], earlier: list[Record]) -> None:
    """Gives the trials of the earlier session their configs, if this one tunes the same."""
    same = ((asked.metric, settings.get("metric", asked.metric)), (asked.mode, settings.get("mode", asked.mode)))
    for now, before in same:
        if now != before:
            raise RunError(
                f"run {folder.path.name!r} tuned {before!r}, now {now!r} is asked for",
                hint="resume with the same metric= and mode=, or choose another name=",
            )
    for record in earlier:
        try:
            record.config.update(asked.space.config(record.params))
        except InputError as error:
            raise RunError(
                f"run {folder.path.name!r} was made with another space: its trial {record.trial}: {error.message}",
                hint="resume with the same space, or choose another name=",
            ) from error


def _past(record: Record) -> PastTrial:
    states = {"done": TrialState.COMPLETE, "stopped": TrialState.PRUNED, "failed": TrialState.FAIL}
    state = states.get(record.state, TrialState.RUNNING)
    return PastTrial(record.params, record.values, record.last_value, state)
