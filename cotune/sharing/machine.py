"""Memory and cores that this machine and our control groups leave for us."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

from cotune.demand import GIB


def available_memory(root: Path = Path("/")) -> int:
    """Available bytes of this machine, or of the enclosing control group that has fewest; at least 256 MiB.

    Args:
        root: The folder that holds `proc` and `sys`.
    """
    table = dict(line.split(":", 1) for line in (root / "proc/meminfo").read_text(encoding="ascii").splitlines())
    available = [int(table["MemAvailable"].split()[0]) * 1024]
    for group, is_unified in _control_groups(root, "memory"):
        limits, current = (("max", "high"), "current") if is_unified else (("limit_in_bytes",), "usage_in_bytes")
        # Above "high" the kernel slows a group down as far as it takes.
        for name in limits:
            with contextlib.suppress(OSError, ValueError):
                limit, used, stat = (
                    (group / f"memory.{file}").read_text(encoding="ascii") for file in (name, current, "stat")
                )
                # The kernel frees inactive file pages on demand.
                cached = re.findall(r"^(?:total_)?inactive_file (\d+)$", stat, re.MULTILINE)
                available.append(int(limit) - int(used) + int((cached or [0])[-1]))
    return max(min(available), GIB // 4)


def available_cores(root: Path = Path("/")) -> int:
    """Cores this process may run on, or that the CPU quota of an enclosing control group amounts to, if fewer.

    Args:
        root: The folder that holds `proc` and `sys`.
    """
    cores = [float(len(os.sched_getaffinity(0)))]
    for group, is_unified in _control_groups(root, "cpu"):
        names = ("cpu.max",) if is_unified else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        with contextlib.suppress(OSError, ValueError):
            # Without a limit the quota is "max" or negative.
            quota, period = " ".join((group / name).read_text(encoding="ascii") for name in names).split()
            if int(quota) > 0:
                cores.append(int(quota) / int(period))
    return max(1, math.ceil(min(cores)))


def _control_groups(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """Folders of our control group and of those around it, as far as visible, and whether they are of cgroup v2.

    A container may show its own group as the outermost, under another name than in `proc`.
    """
    base = root / "sys/fs/cgroup"
    with contextlib.suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text(errors="surrogateescape").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            # In cgroup v1 groups are in a folder named after their controller, perhaps a link.
            top = base / controller if controllers else base
            group = top / path.lstrip("/")
            yield from ((place, not controllers) for place in (group, *group.parents) if place.is_relative_to(top))
