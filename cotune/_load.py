"""`cotune.load`: the results of an earlier run, read from its folder."""

from __future__ import annotations

import contextlib
import difflib
import os
from pathlib import Path
from typing import Any

from cotune._arguments import RUN_NAME, check_run_name, check_storage
from cotune.errors import InputError, StorageError
from cotune.paths import RunFolder, storage_folder
from cotune.record import DAMAGED, read_run
from cotune.results import Results
from cotune.search.spaces import nested
from cotune.trial import TrialState

# What says where the folder for runs is.
SAID_BY = "storage=, --storage or COTUNE_STORAGE"


def load(name: str, storage: str | os.PathLike[str] | None = None) -> Results:
    """Reads back the results of a run without its trainable, even if the run was killed or is still going on.

    Configs are as JSON keeps them: tuples are lists, and a value that JSON cannot express, or that takes more than
    64 KiB, is replaced by its name.

    Args:
        name: The run's name.
        storage: The folder for runs; `COTUNE_STORAGE` or `~/cotune_runs` if left out.

    Returns:
        All trials of the run. The makespan is that of its last session.

    Raises:
        InputError: There is no such run, or it belongs to an Optuna study, which has the results; or `storage` is no
            folder.
        StorageError: The run cannot be read.
    """
    check_storage(storage, "a study in a database is loaded by optuna.load_study()")
    folder = earlier_run(name, storage)
    saved = read_run(folder)
    settings = saved.settings
    if "study" in settings:
        raise InputError(
            f"run {name!r} belongs to the Optuna study {settings['study']!r}, which has its results",
            hint="optuna.load_study(study_name=..., storage=...) gives it, if it had a storage",
        )
    metric, mode = settings.get("metric"), settings.get("mode")
    if not isinstance(metric, str) or mode not in ("min", "max"):
        raise StorageError(f"{folder.events} does not say what was tuned: {metric!r}, {mode!r}", hint=DAMAGED)
    goes_on = folder.is_locked
    unfinished = [record for record in saved.records if not record.state.is_final]
    for record in unfinished:
        if record.attempts:
            record.state = TrialState.RUNNING if goes_on else TrialState.INTERRUPTED
    constants, options = settings.get("constants", {}), settings.get("options", {})
    for record in saved.records:
        # A parameter may be a label that stands for an option.
        params = {name: _chosen(options.get(name, {}), value) for name, value in record.params.items()}
        record.config.update(nested({**params, **constants}))
    trials = tuple(record.result() for record in saved.records)
    # One without a trial ended before its first one.
    interrupted = (bool(unfinished) or not trials) and not goes_on
    return Results(trials, metric, mode, name, folder.path, saved.makespan, interrupted)


def earlier_run(name: str, storage: str | os.PathLike[str] | None) -> RunFolder:
    """The folder of a run that has begun, also of one that belongs to an Optuna study.

    Raises:
        InputError: There is no such run.
        StorageError: The folder for runs cannot be read.
    """
    if not isinstance(name, str):
        raise InputError(f"{name!r} is not the name of a run", hint="`cotune show` lists the names")
    if os.sep in name:
        path = Path(name)
        raise InputError(
            f"{name!r} is a path, not the name of a run",
            hint=f"pass the name, {path.name!r}, and as the folder for runs {str(path.parent)!r} ({SAID_BY})",
        )
    check_run_name(name)
    root = storage_folder(storage)
    folder = RunFolder(root / name)
    if not folder.has_begun():
        there = runs_in(root)
        hint = f"the newest there: {', '.join(there[:5])}" if there else f"say in which folder it is ({SAID_BY})"
        if near := difflib.get_close_matches(name, there):
            hint = f"did you mean {' or '.join(near)}?"
        raise InputError(f"no run named {name!r} is in {root}", hint=hint)
    return folder


def _chosen(options: dict[str, Any], value: Any) -> Any:
    """The option for which a label stands; any other value as it is."""
    return options.get(value, value) if isinstance(value, str) else value


def runs_in(root: Path) -> list[str]:
    """Names of the runs in a storage folder, the most recently written first.

    Raises:
        StorageError: The folder cannot be read.
    """
    try:
        os.listdir(root)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(
            f"the folder for runs, {root}, cannot be read: {error.strerror}",
            hint=f"pass another one ({SAID_BY})",
        ) from None
    written: dict[str, float] = {}
    for path in root.glob("*/events.jsonl"):
        # It may be removed at any moment.
        with contextlib.suppress(OSError):
            if path.is_file() and RUN_NAME.fullmatch(path.parent.name):
                written[path.parent.name] = path.stat().st_mtime
    return sorted(written, key=written.__getitem__, reverse=True)
