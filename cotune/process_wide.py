"""Changes to a whole process that several of its threads may need at the same time."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import ParamSpec

P = ParamSpec("P")

# Environment variable that is set in all processes a zygote starts, and in their children.
IN_LANE = "COTUNE_LANE"


def process_wide(change: Callable[P, Iterator[None]]) -> Callable[P, AbstractContextManager[None]]:
    """Like `contextlib.contextmanager`, but where uses overlap the first makes the change and the last undoes it.

    Args:
        change: Makes the change, yields and undoes it. Each set of positional arguments is a change of its own.
    """
    changed = contextlib.contextmanager(change)
    lock = threading.Lock()
    within: Counter[Hashable] = Counter()
    undo: dict[Hashable, ExitStack] = {}

    @contextlib.contextmanager
    def shared(*args: P.args, **kwargs: P.kwargs) -> Iterator[None]:
        with lock:
            if not within[args]:
                undo[args] = ExitStack()
                undo[args].enter_context(changed(*args, **kwargs))
            within[args] += 1
        try:
            yield
        finally:
            with lock:
                within[args] -= 1
                if not within[args]:
                    del within[args]
                    undo.pop(args).close()

    return shared
