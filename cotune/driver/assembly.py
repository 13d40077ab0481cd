"""Search, brain, body and records of a run, put together as `cotune.run` was asked for."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler

from cotune.dashboard.views import make_view
from cotune.driver.options import SweepOptions
from cotune.driver.profile import Profile
from cotune.driver.sweep import Sweep
from cotune.engines.base import Engine
from cotune.errors import InputError, RunError
from cotune.packer import Packer
from cotune.paths import RunFolder, TrialFolder
from cotune.record import VERSION, EventLog, Record, Records, Saved
from cotune.search.codes import shown
from cotune.search.domains import Choice, Domain
from cotune.search.journal import system_attributes
from cotune.search.promotion import AshaPromote
from cotune.search.samplers import learns, make_pruner, make_sampler, most_trials
from cotune.search.search import PastTrial, Search
from cotune.search.spaces import Space

# In JSON, of a constant or of all options of a choice in the events file.
LONGEST = 1 << 16


@dataclass(frozen=True, slots=True)
class Asked:
    """The arguments of `cotune.run` that say what is searched and how, checked.

    Attributes:
        until: What the sweep runs until; of the sampler it knows nothing yet.
        code: What tells the trainable from what it was before it was changed.
    """

    space: Space
    mode: str
    sampler: str | BaseSampler | None
    pruner: str | BasePruner | AshaPromote | None
    seed: int | None
    dashboard: bool | None
    until: SweepOptions
    code: str


def assemble(
    asked: Asked,
    folder: RunFolder,
    saved: Saved | None,
    engine: Engine,
    packer: Packer,
    profile: Profile,
    stack: contextlib.ExitStack,
) -> tuple[Sweep, Records]:
    """Builds a sweep.

    Args:
        asked: What it is to do.
        folder: Of the run.
        saved: What an earlier session has left there, if the run is resumed.
        engine: Runs.
        packer: Decides.
        profile: What earlier runs have measured.
        stack: Ends all that is written to.

    Returns:
        The sweep, and the records it fills.

    Raises:
        RunError: The earlier session tuned something else.
        InputError: There is no such sampler or pruner.
    """
    settings, earlier = (saved.settings, saved.records) if saved else ({}, [])
    _take_up(asked, folder, settings, earlier)
    base = int(settings["seed"]) if settings else secrets.randbits(32) if asked.seed is None else asked.seed
    # A sampler that starts again from its seed would make its first suggestions again.
    seed = (base + len(earlier)) % 2**32
    sampler = make_sampler(asked.sampler, asked.space, seed, [record.params for record in earlier])
    pruner = make_pruner(asked.pruner)
    points, wanted = most_trials(sampler, len(earlier)), asked.until.trials
    trials = points if wanted is None else min(wanted, points or wanted)
    log = EventLog(folder.events)
    stack.callback(log.close)
    # Once for each session of a run; the first is what others go by.
    log.write(
        "run", time.time(), version=VERSION, name=folder.path.name, kind=asked.until.kind, metric=asked.until.metric,
        mode=asked.mode, seed=base, trials=trials, code=asked.code,
        space={name: repr(domain) for name, domain in asked.space.domains.items()},
        constants={name: _kept(value) for name, value in asked.space.constants.items()},
        options={name: kept for name, domain in asked.space.domains.items() if (kept := _options(domain))},
    )  # fmt: skip
    log.flush()
    noted = system_attributes(folder.journal)
    search = Search(
        asked.space,
        sampler,
        pruner,
        direction="minimize" if asked.mode == "min" else "maximize",
        journal=folder.journal,
        name=folder.path.name,
        past=[
            PastTrial(record.params, record.values, record.last_value, record.state, record.start, record.end)
            for record in earlier
        ],
        noted=noted,
        prepare=lambda number: folder.trial(number).renew(),
        wake=engine.wake,
    )
    stack.callback(profile.save)
    stack.callback(search.close)
    options = replace(asked.until, trials=trials, is_blind=not learns(sampler))
    records = Records(folder, log, asked.mode, base, earlier)
    sweep = Sweep(asked.space, search, packer, engine, records, make_view(asked.dashboard), options, profile)
    stack.callback(sweep.display.close)
    return sweep, records


def _kept(value: Any) -> Any:
    """A constant as the events file keeps it: itself, if it is short in JSON."""
    return shown(value) if (text := _in_json(value)) is None else json.loads(text)


def _options(choice: Domain) -> dict[str, Any]:
    """What the labels of a choice stand for, as far as the events file can tell."""
    if not isinstance(choice, Choice):
        return {}
    found, left = {}, LONGEST
    for code, option in choice.codes.option.items():
        if code is not option and (text := _in_json(option)) is not None and (left := left - len(text)) >= 0:
            found[code] = json.loads(text)
    return found


def _in_json(value: Any) -> str | None:
    """The JSON that gives a value back, or a list for a tuple; None if there is none, or it is long."""
    try:
        text = json.dumps(value, default=_item)
    except (TypeError, ValueError, RecursionError):
        return None
    return text if len(text) <= LONGEST and _has_names(value) else None


def _item(value: Any) -> Any:
    """The number that a scalar of numpy's is."""
    if getattr(value, "shape", None) == () and callable(item := getattr(value, "item", None)):
        return item()
    raise TypeError


def _has_names(value: Any) -> bool:
    """Whether keys are strings, which all others would become."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _has_names(part) for key, part in value.items())
    return not isinstance(value, list | tuple) or all(map(_has_names, value))


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """A constant that is another than it was, as far as the events file can tell."""
    for name in {**before, **now}:
        if name not in before or name not in now:
            return name
        text = _in_json(now[name])
        # The latter is how more of them were kept once.
        if text is not None and json.dumps(before[name]) != text and before[name] != shown(now[name]):
            return name
    return None


def _take_up(asked: Asked, folder: RunFolder, settings: Mapping[str, Any], earlier: list[Record]) -> None:
    """Gives the trials of the earlier session their configs, if this one tunes the same."""
    for what, now in (("metric", asked.until.metric), ("mode", asked.mode)):
        if now != (before := settings.get(what, now)):
            raise RunError(
                f"run {folder.path.name!r} tuned {before!r}, now {now!r} is asked for",
                hint="resume with the same metric= and mode=, or choose another name=",
            )
    # What others have done by now stays: they are over, or go on from a checkpoint.
    is_begun = any(record.state.is_final or TrialFolder(record.folder).latest_checkpoint() for record in earlier)
    if is_begun and asked.code != settings.get("code", asked.code):
        warnings.warn(
            f"run {folder.path.name!r} goes on with changed code: what trials have done by now stays as it is. "
            "To begin anew choose another name=",
            stacklevel=4,
        )
    constants = asked.space.constants
    had = settings.get("constants", constants)
    # Trials that go on, do so with what is asked for now.
    if is_begun and (name := _changed(had, constants)) is not None:
        was, now = (f"{shown(of[name])}" if name in of else "not there" for of in (had, constants))
        raise RunError(
            f"run {folder.path.name!r} was made with another space: the constant {name!r} was {was}, now it is {now}",
            hint="resume with the same space, or choose another name=; what may change need not be part of it",
        )
    for record in earlier:
        try:
            record.config.update(asked.space.config(record.params))
        except InputError as error:
            raise RunError(
                f"run {folder.path.name!r} was made with another space: its trial {record.trial}: {error.message}",
                hint="resume with the same space, or choose another name=",
            ) from error
