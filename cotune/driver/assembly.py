"""Assembles search, brain, body and records of a run from the arguments of `cotune.run`."""

from __future__ import annotations

import contextlib
import json
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
from cotune.search.promotion import AshaPromote
from cotune.search.samplers import learns, make_pruner, make_sampler, most_trials
from cotune.search.search import PastTrial, Search
from cotune.search.spaces import Space
from cotune.trial import TrialState

# Longest JSON of a constant, or of all options of a choice, that the events file keeps.
LONGEST = 1 << 16


@dataclass(frozen=True, slots=True)
class Asked:
    """The arguments of `cotune.run` that say what is searched and how, checked.

    Attributes:
        until: The sweep's options; `trials` and `is_blind` do not take the sampler into account yet.
        code: Digest of the trainable's code; changes when the code does.
    """

    space: Space
    mode: str
    sampler: str | BaseSampler | None
    pruner: str | BasePruner | AshaPromote | None
    seed: int
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
        asked: The arguments of `cotune.run`.
        folder: The run's folder.
        saved: The state of the earlier session, if the run is resumed.
        engine: The body.
        packer: The brain.
        profile: Measurements of earlier runs.
        stack: Closes the log, the search, the profile and the display.

    Returns:
        The sweep, and the records it fills.

    Raises:
        RunError: The earlier session tuned something else.
        InputError: There is no such sampler or pruner.
    """
    settings, earlier = (saved.settings, saved.records) if saved else ({}, [])
    _take_up(asked, folder, settings, earlier)
    # A sampler with the seed of the earlier session would repeat its first suggestions.
    seed = (asked.seed + len(earlier)) % 2**32
    sampler = make_sampler(asked.sampler, asked.space, seed, [record.params for record in earlier])
    pruner = make_pruner(asked.pruner)
    points, wanted = most_trials(sampler, asked.space, len(earlier)), asked.until.trials
    trials = points if wanted is None else min(wanted, points or wanted)
    log = EventLog(folder.events)
    stack.callback(log.close)
    # Once per session; later ones go by the first but for constants, options and code (`record.reading`).
    log.write(
        "run", time.time(), version=VERSION, name=folder.path.name, kind=asked.until.kind, metric=asked.until.metric,
        mode=asked.mode, seed=asked.seed, trials=trials, code=asked.code,
        space={name: repr(domain) for name, domain in asked.space.domains.items()},
        constants={name: _kept(value) for name, value in asked.space.constants.items()},
        options={name: kept for name, domain in asked.space.domains.items() if (kept := _options(domain))},
        policy=packer.options.policy.name, residents=packer.options.residents,
        max_slowdown=packer.options.max_slowdown,
    )  # fmt: skip
    log.flush()
    search = Search(
        asked.space,
        sampler,
        pruner,
        direction="minimize" if asked.mode == "min" else "maximize",
        folder=folder,
        past=[
            PastTrial(record.trial, record.params, record.values, record.state, record.start, record.end)
            for record in earlier
        ],
        wake=engine.wake,
    )
    stack.callback(profile.save)
    stack.callback(search.close)
    options = replace(asked.until, trials=trials, is_blind=not learns(sampler))
    records = Records(folder, log, asked.mode, asked.seed, earlier)
    sweep = Sweep(asked.space, search, packer, engine, records, make_view(asked.dashboard), options, profile)
    stack.callback(sweep.display.close)
    return sweep, records


def _kept(value: Any) -> Any:
    """A constant as the events file keeps it: the value if its JSON is short, else its name."""
    return shown(value) if (text := _in_json(value)) is None else json.loads(text)


def _options(choice: Domain) -> dict[str, Any]:
    """The options that the labels of a choice stand for, as far as the events file can keep them."""
    if not isinstance(choice, Choice):
        return {}
    found, left = {}, LONGEST
    for code, option in choice.codes.option.items():
        if code is not option and (text := _in_json(option)) is not None and (left := left - len(text)) >= 0:
            found[code] = json.loads(text)
    return found


def _in_json(value: Any) -> str | None:
    """JSON that restores a value, but tuples as lists; None if there is none or it is longer than `LONGEST`."""
    try:
        text = json.dumps(value, default=_item)
    except (TypeError, ValueError, RecursionError):
        return None
    return text if len(text) <= LONGEST and _has_names(value) else None


def _item(value: Any) -> Any:
    """A numpy scalar as a Python number."""
    if getattr(value, "shape", None) == () and callable(item := getattr(value, "item", None)):
        return item()
    raise TypeError


def _has_names(value: Any) -> bool:
    """Whether all keys are strings; JSON would turn other keys into strings."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _has_names(part) for key, part in value.items())
    return not isinstance(value, list | tuple) or all(map(_has_names, value))


def _ordered(value: Any) -> str:
    """The JSON of a value, the same in whichever order its dicts are."""
    return json.dumps(value, sort_keys=True)


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The name of a constant that has changed, as far as the events file can tell; None if none has."""
    for name in {**before, **now}:
        if name not in before or name not in now:
            return name
        text, was = _in_json(now[name]), before[name]
        # What has no JSON was kept by its name, and may be the same although it is named otherwise.
        if not isinstance(was, str) if text is None else _ordered(was) != _ordered(json.loads(text)):
            return name
    return None


def _take_up(asked: Asked, folder: RunFolder, settings: Mapping[str, Any], earlier: list[Record]) -> None:
    """Gives the earlier session's trials their configs; raises `RunError` if this session tunes something else."""
    for what, now in (("metric", asked.until.metric), ("mode", asked.mode)):
        if now != (before := settings.get(what, now)):
            raise RunError(
                f"run {folder.path.name!r} tuned {before!r}, now {now!r} is asked for",
                hint="resume with the same metric= and mode=, or choose another name=",
            )
    # The results of the old code and constants stay: such trials are over, or go on from a checkpoint.
    is_begun = any(record.state.is_final or TrialFolder(record.folder).latest_checkpoint() for record in earlier)
    if is_begun and asked.code != (settings.get("code") or asked.code):
        warnings.warn(
            f"run {folder.path.name!r} goes on with changed code: what trials have done by now stays as it is. "
            "To begin anew choose another name=",
            stacklevel=4,
        )
    constants = asked.space.constants
    had = settings.get("constants", constants)
    # Trials that go on would do so with the new constants.
    if is_begun and (name := _changed(had, constants)) is not None:
        was, now = (f"the constant {shown(of[name])}" if name in of else "no constant" for of in (had, constants))
        raise RunError(
            f"run {folder.path.name!r} was made with another space: {name!r} was {was}, now it is {now}",
            hint="resume with the same space, or choose another name=; what may change need not be part of it",
        )
    for name in [name for name, value in constants.items() if is_begun and _in_json(value) is None]:
        was, now = had[name], shown(constants[name])
        # Not refused: an object may read otherwise although it is the same, such as one that holds a set.
        if was != now:
            warnings.warn(
                f"run {folder.path.name!r} goes on although the constant {name!r} was {was}, and now is {now}. Trials "
                "that are over ran with the former, whatever their configs say. To begin anew choose another name=",
                stacklevel=4,
            )
    for record in earlier:
        if record.state is TrialState.FAILED and not record.attempts:
            # It never ran: `priority=` or `max_steps=` raised for it.
            record.state, record.error, record.end = TrialState.WAITING, None, None
        try:
            record.config.update(asked.space.config(record.params))
        except InputError as error:
            raise RunError(
                f"run {folder.path.name!r} was made with another space: its trial {record.trial}: {error.message}",
                hint="resume with the same space, or choose another name=",
            ) from error
