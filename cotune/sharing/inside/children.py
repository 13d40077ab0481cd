"""Processes that a trial starts: they are not measured, so the cap of their lane is no measure for them either."""

from __future__ import annotations

import _posixsubprocess
import functools
import os
import resource
import subprocess
from collections.abc import Callable
from typing import Any

from cotune.sharing.memory import LaneMemory

# Where Python starts a program. What it only forks runs hooks in the child.
_STARTS: tuple[tuple[Any, str], ...] = (
    (_posixsubprocess, "fork_exec"),
    (subprocess, "_fork_exec"),
    (os, "posix_spawn"),
    (os, "posix_spawnp"),
    (os, "system"),
)


def uncap_children(memory: LaneMemory) -> None:
    """Has what is started from now on begin without the cap of this process, which they would inherit.

    A trial that holds little has a low one, whatever the program that it runs needs.

    Args:
        memory: Of this lane.
    """
    os.register_at_fork(after_in_child=_lift)
    for owner, name in _STARTS:
        start = getattr(owner, name, None)
        if start is not None:
            setattr(owner, name, _uncapped(start, memory))


def _lift() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def _uncapped(start: Callable[..., Any], memory: LaneMemory) -> Callable[..., Any]:
    @functools.wraps(start)
    def uncapped(*args: Any, **kwargs: Any) -> Any:
        memory.uncap()
        try:
            return start(*args, **kwargs)
        finally:
            memory.cap()

    return uncapped
