"""What this machine, and the control groups around us, leave us of memory and cores."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

from cotune.demand import GIB


def available_memory(root: Path = Path("/")) -> int:
    """Bytes this machine, or whichever control group around us has least, still has for us.

    Args:
        root: Where `proc` and `sys` are.
    """
    table = dict(line.split(":", 1) for line in (root / "proc/meminfo").read_text(encoding="ascii").splitlines())
    available = [int(table["MemAvailable"].split()[0]) * 1024]
    for group, is_unified in _control_groups(root, "memory"):
        names = ("max", "current") if is_unified else ("limit_in_bytes", "usage_in_bytes")
        with contextlib.suppress(OSError, ValueError):
            limit, used, stat = ((group / f"memory.{name}").read_text(encoding="ascii") for name in (*names, "stat"))
            # Files that nobody uses the kernel gives up when asked.
            cached = re.findall(r"^(?:total_)?inactive_file (\d+)$", stat, re.MULTILINE)
            available.append(int(limit) - int(used) + int((cached or [0])[-1]))
    return max(min(available), GIB // 4)


def available_cores(root: Path = Path("/")) -> int:
    """Cores this process may run on, or as many as the time is worth that a control group around us has.

    Args:
        root: Where `proc` and `sys` are.
    """
    cores = [float(len(os.sched_getaffinity(0)))]
    for group, is_unified in _control_groups(root, "cpu"):
        names = ("cpu.max",) if is_unified else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        with contextlib.suppress(OSError, ValueError):
            # Without a limit the first is "max", or below 0.
            quota, period = " ".join((group / name).read_text(encoding="ascii") for name in names).split()
            if int(quota) > 0:
                cores.append(int(quota) / int(period))
    return max(1, math.ceil(min(cores)))


def _control_groups(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """Ours and those around it, as far as they are to be seen, and whether they are of the second version.

    A container may show its own group as the outermost, under another name than it has in `proc`.
    """
    base = root / "sys/fs/cgroup"
    with contextlib.suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text(errors="surrogateescape").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            # Those of the first version are below the name of their controller, which the system links to where it is.
            top = base / controller if controllers else base
            group = top / path.lstrip("/")
            yield from ((place, not controllers) for place in (group, *group.parents) if place.is_relative_to(top))
