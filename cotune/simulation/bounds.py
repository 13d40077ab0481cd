"""Lower bounds of the makespan of a workload."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import add

from cotune.packer.interference import shared_speed
from cotune.simulation.workload import Workload

# The most work per second that trials sharing a device can do, in seconds of its time when alone.
BEST_LOAD = max(load / 64 * shared_speed(load / 64) for load in range(1, 256))


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower bounds of the makespan, in seconds.

    Each but the first takes an amount of work per second from every trial. By any moment no more of it can be done than
    if each trial ran alone from its arrival on; what is left is done at the rate of all devices at best.

    Attributes:
        chain: The latest of arrival plus length, over all trials.
        device_time: Seconds of device time; start-ups take none.
        memory: Bytes times seconds, over all memory.
        large: The same with sizes rounded by dual feasible functions, which know that two large trials do not fit.
        lanes: Seconds of a lane, over all lanes.
    """

    chain: float
    device_time: float
    memory: float
    large: float
    lanes: float

    @property
    def best(self) -> float:
        return max(self.chain, self.device_time, self.memory, self.large, self.lanes)


def lower_bounds(workload: Workload, ran: Sequence[int] | None = None) -> Bounds:
    """Lower bounds of the makespan of a workload.

    Args:
        workload: The jobs to run, and the devices.
        ran: Iterations that each trial ran, if a stopping rule ended some.
    """
    devices = workload.devices
    jobs = workload.jobs
    begin = jobs[0].arrival if jobs else 0.0
    counts = ran if ran is not None else [job.iterations for job in jobs]
    # A trial that did not run at all, since it fits no device, takes no time.
    seconds = [(job.startup + n * job.step_seconds) if n else 0.0 for job, n in zip(jobs, counts, strict=True)]
    sizes = [(job.peak + workload.context) / workload.capacity for job in jobs]
    arrivals = [job.arrival - begin for job in jobs]

    def latest_end(weights: Iterable[float], rate: float) -> float:
        return _latest_end(zip(arrivals, seconds, weights, strict=True), rate)

    # Only iterations load the device; a start-up leaves it waiting, but takes a lane and memory.
    loads = (
        (arrival + job.startup, count * job.step_seconds, job.busy)
        for arrival, job, count in zip(arrivals, jobs, counts, strict=True)
    )
    return Bounds(
        max(map(add, arrivals, seconds), default=0.0),
        _latest_end(loads, BEST_LOAD * devices),
        latest_end(sizes, devices),
        max(latest_end((_rounded(size, parts) for size in sizes), devices) for parts in range(1, 9)),
        latest_end(repeat(1.0, len(jobs)), most_lanes(workload) * devices),
    )


def most_lanes(workload: Workload) -> int:
    """Most lanes per device that could be opened, or were asked for."""
    return max(workload.max_width, workload.idle_width, workload.lanes or 1)


def _latest_end(work: Iterable[tuple[float, float, float]], rate: float) -> float:
    """The least time in which all work can be done.

    Args:
        work: Of each trial the moment when it can begin, its seconds alone, and its work in each of these.
        rate: Work that all devices do in a second at best.
    """
    # Trials that could begin and end, each alone.
    changes, left = [], 0.0
    for begin, seconds, weight in work:
        if seconds:
            changes += [(begin, weight), (begin + seconds, -weight)]
            left += seconds * weight
    latest = now = speed = 0.0
    for time, change in sorted(changes):
        left -= speed * (time - now)
        latest = max(latest, time + left / rate)
        now, speed = time, speed + change
    return latest


def _rounded(size: float, parts: int) -> float:
    """A share rounded to parts of a device (Fekete and Schepers, Math. Program. 91, 2001, u^(k))."""
    scaled = (parts + 1) * size
    return size if abs(scaled - round(scaled)) < 1e-9 else int(scaled) / parts
