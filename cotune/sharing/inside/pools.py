"""The process pool that joblib, and so scikit-learn, keeps: it serves one trial after the other."""

from __future__ import annotations

import sys
import threading
from typing import Any, NamedTuple

# joblib brings its own copy of loky.
_HOMES = ("joblib.externals.loky.reusable_executor", "loky.reusable_executor")


class Pool(NamedTuple):
    """An idle pool's worker processes, and the threads that feed them.

    Attributes:
        processes: Ids of the worker processes.
        threads: Threads of this process.
    """

    processes: frozenset[int]
    threads: frozenset[threading.Thread]


def idle_pool() -> Pool:
    """The pool that may stay for the next trial, as in a plain loop; empty while it still works for this one."""
    processes: set[int] = set()
    threads: set[threading.Thread] = set()
    for home in _HOMES:
        executor: Any = getattr(sys.modules.get(home), "_executor", None)
        try:
            if executor is not None and not executor._pending_work_items:
                processes |= set(executor._processes)
                threads |= {executor._executor_manager_thread, executor._call_queue._thread} - {None}
        except (AttributeError, TypeError):
            # A pool that was shut down, or of an unknown version, counts as left behind by its trial.
            continue
    return Pool(frozenset(processes), frozenset(threads))
