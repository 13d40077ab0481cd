"""Pickles a study as its proxy, for objectives that refer to it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import optuna
from optuna.storages import InMemoryStorage

from cotune.process_wide import process_wide
from cotune.script.installed import loaded_modules
from cotune.search.study_proxy import storage_in_lane, study_in_lane

_logger = optuna.logging.get_logger("optuna.study.cotune")


class _Served(threading.local):
    """The study that this thread serves."""

    study: optuna.Study | None = None


_served = _Served()


@contextlib.contextmanager
def study_as_proxy(study: optuna.Study) -> Iterator[None]:
    """Within this block, pickles the study and its in-memory storage as proxies, for objectives that refer to them.

    A copy would look the same but never be updated. Other threads may do the same with their studies.
    """
    outer, _served.study = _served.study, study
    try:
        with _pickled_by(_reduce_study, optuna.Study), _pickled_by(_reduce_storage, InMemoryStorage):
            yield
    finally:
        _served.study = outer


def globals_of(study: optuna.Study) -> list[tuple[str, str]]:
    """The modules in which the study is a global, and its names there; without the script, whose globals travel."""
    loaded = [(module, names) for module, names in loaded_modules() if module != "__main__"]
    # Of copies, as other threads may add to them; by ids, without a frame of Python for each of 200,000 globals.
    holding = [(module, names) for module, names in loaded if id(study) in map(id, names.copy().values())]
    return [(module, name) for module, names in holding for name, value in names.copy().items() if value is study]


@process_wide
def _pickled_by(reduce: Callable[[Any, Any], Any], kind: Any) -> Iterator[None]:
    """Pickles objects of a class of Optuna's by `reduce`, which decides by the study that the calling thread serves."""
    # Not by `copyreg`, which would leave out classes derived from it.
    kind.__reduce_ex__ = reduce
    try:
        yield
    finally:
        del kind.__reduce_ex__


def _reduce_study(study: optuna.Study, protocol: Any) -> Any:
    return (study_in_lane, ()) if study is _served.study else object.__reduce_ex__(study, protocol)


def _reduce_storage(storage: InMemoryStorage, protocol: Any) -> Any:
    served = _served.study
    if served is not None and storage is served._storage:
        return storage_in_lane, ()
    if served is not None:
        _logger.warning(
            "The objective uses a storage in memory that is not its study's: every trial has a copy of it, and what is "
            "written there is lost. Use optuna.storages.JournalStorage, or a database."
        )
    return object.__reduce_ex__(storage, protocol)
