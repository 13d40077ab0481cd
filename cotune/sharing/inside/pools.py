"""The pool of processes that joblib keeps, and with it scikit-learn: it serves one trial after the other."""

from __future__ import annotations

import sys
import threading
from typing import Any, NamedTuple

# joblib brings its own.
_HOMES = ("joblib.externals.loky.reusable_executor", "loky.reusable_executor")


class Pool(NamedTuple):
    """Processes that wait for work, and the threads that give them some.

    Attributes:
        processes: Their numbers.
        threads: Of this process.
    """

    processes: frozenset[int]
    threads: frozenset[threading.Thread]


def idle_pool() -> Pool:
    """What of a pool may stay for the next trial, as it would in a loop: nothing where it still works for this one."""
    processes: set[int] = set()
    threads: set[threading.Thread] = set()
    for home in _HOMES:
        executor: Any = getattr(sys.modules.get(home), "_executor", None)
        try:
            if executor is not None and not executor._pending_work_items:
                processes |= set(executor._processes)
                threads |= {executor._executor_manager_thread, executor._call_queue._thread} - {None}
        except (AttributeError, TypeError):
            # One that was shut down, or of a version that we do not know: it ends with its trial.
            continue
    return Pool(frozenset(processes), frozenset(threads))
