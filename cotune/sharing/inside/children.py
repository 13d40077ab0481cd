"""Processes that a trial starts: they are not measured, so their lane's cap must not apply to them either."""

from __future__ import annotations

import _posixsubprocess
import functools
import os
import subprocess
from collections.abc import Callable
from typing import Any

from cotune.sharing.memory import LaneMemory

# Functions with which Python starts a program. Forks without exec run the at-fork hook instead.
_STARTS: tuple[tuple[Any, str], ...] = (
    (_posixsubprocess, "fork_exec"),
    (subprocess, "_fork_exec"),
    (os, "posix_spawn"),
    (os, "posix_spawnp"),
    (os, "system"),
)


def uncap_children(memory: LaneMemory) -> None:
    """Makes processes started from now on begin without this process's cap, which they would inherit.

    The cap of a trial that holds little is low, whatever its programs need.

    Args:
        memory: The lane's memory.
    """
    # Never put back, so that a program which the child starts in turn does not put the cap on the child.
    os.register_at_fork(after_in_child=memory.uncap)
    for owner, name in _STARTS:
        start = getattr(owner, name, None)
        if start is not None:
            setattr(owner, name, _uncapped(start, memory))


def _uncapped(start: Callable[..., Any], memory: LaneMemory) -> Callable[..., Any]:
    @functools.wraps(start)
    def uncapped(*args: Any, **kwargs: Any) -> Any:
        with memory.uncapped():
            return start(*args, **kwargs)

    return uncapped
