"""What holds for a whole process, and is wanted by several of its threads at once."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import ParamSpec

P = ParamSpec("P")

# Set in whatever a zygote starts, and in what that starts.
IN_LANE = "COTUNE_LANE"


def process_wide(change: Callable[P, Iterator[None]]) -> Callable[P, AbstractContextManager[None]]:
    """As `contextlib.contextmanager`, but of those within at once the first makes the change and the last undoes it.

    Args:
        change: Makes it, yields and undoes it; for other positional arguments it is another one.
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
