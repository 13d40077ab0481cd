"""Lower bounds of the makespan of a workload."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cotune.packer.interference import shared_speed
from cotune.simulation.workload import Workload

# The most work per second that trials sharing a device can do, in seconds of its time when alone.
BEST_LOAD = max(load / 64 * shared_speed(load / 64) for load in range(1, 256))


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower bounds of the makespan, in seconds.

    Attributes:
        chain: The latest of arrival plus length, over all trials.
        device_time: All work over what all devices can do at best when shared.
        memory: All bytes times seconds over all memory.
        large: The same with sizes rounded by dual feasible functions, which know that two large trials do not fit.
        lanes: All seconds over all lanes.
    """

    chain: float
    device_time: float
    memory: float
    large: float
    lanes: float

    @property
    def best(self) -> float:
        return max(self.chain, self.device_time, self.memory, self.large, self.lanes)


def lower_bounds(
    workload: Workload,
    devices: int | None = None,
    capacity: int | None = None,
    max_width: int | None = None,
    ran: Sequence[int] | None = None,
) -> Bounds:
    """Lower bounds of the makespan of a workload.

    Args:
        workload: The jobs to run.
        devices: Number of devices; None, as for the next two, for the workload's own figure.
        capacity: Bytes of each device.
        max_width: Lanes of each device; None for as many as the workload has or could have.
        ran: Iterations that each trial (by arrival) ran, if a stopping rule ended some.
    """
    devices, room = devices or workload.devices, capacity or workload.capacity
    jobs = sorted(workload.jobs, key=lambda job: job.arrival)
    begin = jobs[0].arrival if jobs else 0.0
    width = max_width or most_lanes(workload)
    counts = ran if ran is not None else [job.iterations for job in jobs]
    # A trial that did not run at all, since it fits no device, takes no time.
    seconds = [(job.startup + n * job.step_seconds) if n else 0.0 for job, n in zip(jobs, counts, strict=True)]
    # Only iterations load the device; a start-up leaves it waiting, but takes a lane and memory.
    loads = [count * job.step_seconds * job.busy for job, count in zip(jobs, counts, strict=True)]
    sizes = [(job.peak + workload.context) / room for job in jobs]
    ends = [job.arrival - begin + length for job, length in zip(jobs, seconds, strict=True)]
    return Bounds(
        max(ends, default=0.0),
        sum(loads) / (BEST_LOAD * devices),
        sum(size * length for size, length in zip(sizes, seconds, strict=True)) / devices,
        max(_rounded(sizes, seconds, parts) for parts in range(1, 9)) / devices,
        sum(seconds) / (width * devices),
    )


def most_lanes(workload: Workload) -> int:
    """Most lanes per device that could be opened, or were asked for."""
    return max(workload.max_width, workload.lanes or 1)


def _rounded(sizes: Iterable[float], seconds: Iterable[float], parts: int) -> float:
    """Volume with sizes rounded to parts of a device (Fekete and Schepers, Math. Program. 91, 2001, u^(k))."""
    total = 0.0
    for size, length in zip(sizes, seconds, strict=True):
        scaled = (parts + 1) * size
        whole = abs(scaled - round(scaled)) < 1e-9
        total += length * (size if whole else int(scaled) / parts)
    return total
