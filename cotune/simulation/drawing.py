"""Drawings of what was played: as lines of text, and as a Chrome trace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from cotune.accuracy import accuracy_lines
from cotune.simulation.played import Played, Segment
from cotune.simulation.workload import Job

_MARKS = {"done": "█", "stopped": "▒", "failed": "x", "out_of_memory": "!", "retried": "!"}
# For terminals that show ASCII only.
PLAIN = str.maketrans({"█": "#", "▒": "-", "·": "."})
MAX_LANES = 64


def gantt(segments: Sequence[Segment], columns: int = 72) -> str:
    """A row per lane and a column per slice of time; the mark shows what took most of the slice."""
    if not segments:
        return ""
    end = max(segment.end for segment in segments) or 1.0
    rows: dict[tuple[str, int], list[Segment]] = defaultdict(list)
    for segment in segments:
        rows[segment.device, segment.lane].append(segment)
    lines = [f"{'':>16} 0{duration(end):>{columns - 1}}"]
    for device, lane in sorted(rows, key=lambda row: (_numbered(row[0]), row[1]))[:MAX_LANES]:
        marks = (_mark(rows[device, lane], end * n / columns, end * (n + 1) / columns) for n in range(columns))
        lines.append(f"{f'{device} lane {lane}':>16} {''.join(marks)}")
    if len(rows) > MAX_LANES:
        lines.append(f"{'':>16} and {len(rows) - MAX_LANES} lanes more")
    lines.append(f"{'':>16} █ ran to its end  ▒ stopped  ! out of memory or lost  x failed")
    return "\n".join(lines)


def _numbered(device: str) -> tuple[str, int]:
    """Sorts device 2 before device 10."""
    name = device.rstrip("0123456789")
    return name, int(device[len(name) :] or 0)


def _mark(segments: Sequence[Segment], start: float, end: float) -> str:
    parts: defaultdict[str, float] = defaultdict(float)
    for one in segments:
        if one.end > start and one.start < end:
            parts[one.how] += min(one.end, end) - max(one.start, start)
    if sum(parts.values()) * 2 < end - start:
        return "·" if parts else " "
    return _MARKS.get(max(parts, key=lambda how: parts[how]), "?")


def chrome_trace(segments: Sequence[Segment], jobs: Sequence[Job] = ()) -> dict[str, Any]:
    """The segments as a Chrome trace (for `chrome://tracing` or Perfetto): a process per device, a thread per lane.

    A lane whose residents overlap has several threads of its name: events that overlap in one thread are not drawn.

    Args:
        segments: The segments to draw.
        jobs: The workload's jobs, whose names the trials get.
    """
    names = dict(enumerate(job.name for job in jobs))
    devices = {
        name: number for number, name in enumerate(sorted({one.device for one in segments}, key=_numbered), start=1)
    }
    bars = _bars(segments)
    threads = {row: number for number, row in enumerate(sorted({row for row, *_ in bars}), start=1)}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": {"name": name}}
        for name, number in devices.items()
    ]
    events += [
        {"ph": "M", "name": "thread_name", "pid": devices[device], "tid": thread, "args": {"name": f"lane {lane}"}}
        for (device, lane, _), thread in threads.items()
    ]
    for row, start, end, segment in bars:
        events.append(
            {
                "ph": "X",
                "name": names.get(segment.trial) or f"trial {segment.trial}",
                "cat": segment.how,
                "pid": devices[segment.device],
                "tid": threads[row],
                "ts": start,
                "dur": end - start,
                "args": {"trial": segment.trial, "outcome": segment.how},
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _bars(segments: Sequence[Segment]) -> list[tuple[tuple[str, int, int], int, int, Segment]]:
    """For each segment its device, its lane and a free row of it; and the microseconds of its start and its end."""
    taken: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    bars = []
    for one in sorted(segments, key=lambda segment: segment.start):
        # A length rounded by itself could reach beyond the start of the next.
        start, end = round(one.start * 1e6), round(one.end * 1e6)
        ends = taken[one.device, one.lane]
        row = next((number for number, last in enumerate(ends) if last <= start), len(ends))
        ends[row : row + 1] = [end]
        bars.append(((one.device, one.lane, row), start, end, one))
    return bars


def summary(played: Played, bound: float) -> str:
    """The figures, one per line."""
    figures = played.figures
    over = f", {figures.makespan / bound:.2f} times the best lower bound ({duration(bound)})" if bound > 0 else ""
    counts = f"{figures.trials} trials, {figures.stopped} stopped early, {figures.failed} too large for a device"
    used = f"their iterations use {figures.utilisation:.0%} of the devices' time"
    beyond = ", more than one at a time could" if figures.utilisation > 1.005 else ""
    lines = [
        ("trials", f"{counts}, {figures.out_of_memory} attempts out of memory"),
        ("makespan", f"{duration(figures.makespan)}{over}"),
        ("completion", f"{duration(figures.completion)} on average, p95 {duration(figures.completion_p95)}"),
        ("waiting", f"{duration(figures.waiting)} on average, p95 {duration(figures.waiting_p95)}"),
        ("running", f"{figures.at_once:.1f} trials at once on average; {used}{beyond}"),
        ("memory", f"{figures.fill:.0%} in use"),
    ]
    lines += accuracy_lines(played.set_aside, played.predicted_seconds)
    return "\n".join(f"{name:>14}  {text}" for name, text in lines)


def duration(seconds: float) -> str:
    """`2.5 s`, `3.4 min`, `5.1 h`, `2.0 d`."""
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds / 86400:.1f} d"
