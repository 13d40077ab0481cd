"""Functions and classes of the script in processes that a trial spawns.

Such a process would import the script to find them, but a lane runs no script, and one without a `__main__` guard would
start another sweep. So they travel by value, as they came to the lane.
"""

from __future__ import annotations

import pickle
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import ForkingPickler
from types import FunctionType
from typing import Any

from cotune.script import by_value

# Whether this process was spawned so, or has spawned one, in which names of the script mean nothing.
_is_apart = False


def send_script_along() -> None:
    """Has multiprocessing pickle the script's functions and classes by value once a process is spawned."""
    setattr(ForkingPickler, "reducer_override", _reduced)  # noqa: B010


def _reduced(_pickler: ForkingPickler, value: Any) -> Any:
    global _is_apart
    if not isinstance(value, type | FunctionType):
        return NotImplemented
    _is_apart = _is_apart or get_spawning_popen() is not None
    if not _is_apart or value.__module__ != "__main__":
        return NotImplemented
    try:
        return _arrive, (by_value.dumps(value),)
    except Exception:
        # By name it may still do, in a forked process.
        return NotImplemented


def _arrive(pickled: bytes) -> Any:
    """What was sent; this process sends in the same way from now on."""
    global _is_apart
    _is_apart = True
    send_script_along()
    return pickle.loads(pickled)
