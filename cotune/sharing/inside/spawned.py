"""What processes that a trial spawns know of the script.

Such a process would import the script, but a lane runs none, and one without a `__main__` guard would start another
sweep. So what a lane has of the script, which came by value, goes along to the main module of the process, once. There
as here, multiprocessing then finds functions and classes by name.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
import warnings
from multiprocessing.context import get_spawning_popen
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any

from cotune.script import by_value


def send_script_along() -> None:
    """Has every process that is spawned from now on get what the main module of this process contains."""
    setattr(ForkingPickler, "reducer_override", _reduced)  # noqa: B010


def _reduced(_pickler: ForkingPickler, value: Any) -> Any:
    # The class comes first of the object that stands for the process.
    if not isinstance(value, type) or not issubclass(value, BaseProcess) or get_spawning_popen() is None:
        return NotImplemented
    names = {name: one for name, one in vars(sys.modules["__main__"]).items() if not name.startswith("__")}
    if names:
        with contextlib.suppress(Exception):
            # The process's own class by name, which may be one of the script.
            return _arrive, (_packed(names), pickle.dumps(value))
    return NotImplemented


def _packed(names: dict[str, Any]) -> bytes:
    with contextlib.suppress(Exception):
        return by_value.dumps(names)
    return by_value.dumps({name: one for name, one in names.items() if _travels(one)})


def _travels(value: Any) -> bool:
    try:
        by_value.dumps(value)
    except Exception:
        return False
    return True


def _arrive(script: bytes, process: bytes) -> Any:
    """The class of this process, which has just been spawned."""
    try:
        vars(sys.modules["__main__"]).update(pickle.loads(script))
    except Exception as error:
        # It may need nothing of the script.
        warnings.warn(f"nothing of the script is known here: {type(error).__name__}: {error}", stacklevel=1)
    send_script_along()
    return pickle.loads(process)
