"""cotune: hyperparameter tuning that packs trials onto GPUs by measured memory.

    import cotune

    def train(config):
        ...
        cotune.report({"loss": loss})

    results = cotune.run(train, {"lr": cotune.loguniform(1e-5, 1e-1)}, metric="loss", trials=50)
    print(results.best.config)

Importing cotune loads neither torch nor Optuna nor Ray: names are loaded when they are first used.
"""

from __future__ import annotations

import gc
import sys

# Optuna needs this module, and Python refuses to import it in a thread that begins a run after the main thread ended.
from concurrent.futures import thread as _thread  # noqa: F401
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from cotune._load import load
    from cotune._run import run
    from cotune.errors import (
        CotuneError,
        DeviceError,
        InputError,
        LaneDied,
        MetricError,
        NoReport,
        NoResult,
        NotPicklable,
        RunError,
        RunNameInUse,
        SpaceError,
        StorageError,
        TrialError,
        TrialFailed,
        TrialOverdue,
        TrialTooLarge,
        UnknownMetric,
    )
    from cotune.optuna_study import optimize
    from cotune.ray_tune import colocate
    from cotune.results import Results, TrialResult
    from cotune.search.domains import (
        choice,
        lograndint,
        loguniform,
        qloguniform,
        qrandint,
        quniform,
        randint,
        uniform,
    )
    from cotune.search.promotion import AshaPromote
    from cotune.session import TrialStopped, checkpoint, device, report, restore, shared, trial_id
    from cotune.sharing.micro_batch import micro_batches

_HOMES = {
    "cotune._load": ("load",),
    "cotune._run": ("run",),
    "cotune.optuna_study": ("optimize",),
    "cotune.ray_tune": ("colocate",),
    "cotune.results": ("Results", "TrialResult"),
    "cotune.session": ("TrialStopped", "checkpoint", "device", "report", "restore", "shared", "trial_id"),
    "cotune.sharing.micro_batch": ("micro_batches",),
    "cotune.search.promotion": ("AshaPromote",),
    "cotune.search.domains": (
        "choice",
        "lograndint",
        "loguniform",
        "qloguniform",
        "qrandint",
        "quniform",
        "randint",
        "uniform",
    ),
    "cotune.errors": (
        "CotuneError",
        "DeviceError",
        "InputError",
        "LaneDied",
        "MetricError",
        "NoReport",
        "NoResult",
        "NotPicklable",
        "RunError",
        "RunNameInUse",
        "SpaceError",
        "StorageError",
        "TrialError",
        "TrialFailed",
        "TrialOverdue",
        "TrialTooLarge",
        "UnknownMetric",
    ),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AshaPromote",
    "CotuneError",
    "DeviceError",
    "InputError",
    "LaneDied",
    "MetricError",
    "NoReport",
    "NoResult",
    "NotPicklable",
    "Results",
    "RunError",
    "RunNameInUse",
    "SpaceError",
    "StorageError",
    "TrialError",
    "TrialFailed",
    "TrialOverdue",
    "TrialResult",
    "TrialStopped",
    "TrialTooLarge",
    "UnknownMetric",
    "checkpoint",
    "choice",
    "colocate",
    "device",
    "load",
    "lograndint",
    "loguniform",
    "micro_batches",
    "optimize",
    "qloguniform",
    "qrandint",
    "quniform",
    "randint",
    "report",
    "restore",
    "run",
    "shared",
    "trial_id",
    "uniform",
]


class _ByName(ModuleType):
    """A module that is pickled by its name.

    dill, which Hugging Face datasets use, pickles all that modules outside of `site-packages` hold; this, the session.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return import_module, (self.__name__,)


sys.modules[__name__].__class__ = _ByName


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'cotune' has no attribute {name!r}")
    # A third of the time would go into looking for garbage, and a Ctrl-C that comes within a callback of that is lost.
    collects = gc.isenabled()
    gc.disable()
    try:
        value = getattr(import_module(home), name)
    except ModuleNotFoundError as error:
        if error.name == "ray":
            error.add_note(f"cotune.{name} needs Ray: pip install '.[ray]' in the folder of cotune")
        raise
    finally:
        if collects:
            gc.enable()
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
