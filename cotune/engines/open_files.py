"""How many files this process may have open."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator

from cotune.process_wide import process_wide

# Files of this process for other things than lanes.
OTHER_FILES = 64


def files_of_a_lane(seats: int) -> int:
    """How many files a lane takes: a socket and an eventfd per seat stay open here.

    Until the zygote has them, those of the lane's process are on their way there: its socket, its page, the eventfds.
    Linux counts all that are on their way against the same limit.
    """
    return 2 + seats


def files_left() -> int:
    """How many more can be opened for lanes, once the limit is raised."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard - _in_use()


def are_scarce(count: int) -> bool:
    """Whether the limit as it is leaves no room for so many more."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft != resource.RLIM_INFINITY and _in_use() + count > soft


@process_wide
def raised_limit() -> Iterator[None]:
    """Raises the limit within a block: many machines allow 1,024 files, and a million to those who ask."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _in_use() -> int:
    """Open files, and those to be kept for other things than lanes."""
    return len(os.listdir("/proc/self/fd")) + OTHER_FILES
