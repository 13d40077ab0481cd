"""Views of snapshots: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import textwrap
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cotune.dashboard.snapshot import RunningView, Snapshot, finished
from cotune.demand import format_bytes
from cotune.packer import LaneView

PLAIN_EVERY = 1.0
# Of the time so far: a run of hours prints hundreds of lines, not thousands.
PLAIN_SHARE = 1 / 60
PLAIN_AT_LEAST_EVERY = 60.0
# Seconds without a running trial; longer than between two trials.
STUCK_AFTER = 5.0
# The column of the metric, in which devices show how much of their memory is taken.
_METRIC = 3


def is_terminal(stream: Any) -> bool:
    """Whether a stream is a terminal; objects that replace Python's own streams may have no `isatty`."""
    return bool(getattr(stream, "isatty", lambda: False)())


class View(ABC):
    """Shows a run. Updates come a few times a second, from the driver's loop, and must be quick."""

    @abstractmethod
    def update(self, snapshot: Snapshot) -> None: ...

    @abstractmethod
    def close(self, snapshot: Snapshot) -> None:
        """Shows the last state and ends."""


class PlainLines(View):
    """Prints a line when something has changed: at most one per second, and less often the longer the run takes.

    After a minute without a line, prints the progress of the longest-running trial; if nothing runs for
    `STUCK_AFTER`, prints why.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._counts: dict[str, int] | None = None
        self._note = ""
        self._said = 0.0
        self._ran = 0.0
        self._is_stuck = False

    def update(self, snapshot: Snapshot) -> None:
        now, is_first = snapshot.seconds, self._counts is None
        is_noted = snapshot.note != self._note
        is_new = is_first or is_noted or snapshot.finished != finished(self._counts or {})
        if snapshot.running or not snapshot.packer.first:
            self._ran, self._is_stuck = now, False
        since = now - self._said
        if not self._is_stuck and now >= self._ran + STUCK_AFTER:
            self._is_stuck = True
            self._print(snapshot, _waiting(snapshot))
        elif since >= PLAIN_AT_LEAST_EVERY and snapshot.running:
            self._print(snapshot, _progress(max(snapshot.running, key=lambda view: view.seconds)))
        elif is_new and (is_first or since >= (PLAIN_EVERY if is_noted else max(PLAIN_EVERY, PLAIN_SHARE * now))):
            self._print(snapshot, _left(snapshot))

    def close(self, snapshot: Snapshot) -> None:
        if (snapshot.counts, snapshot.note) != (self._counts, self._note):
            self._print(snapshot)

    def _print(self, snapshot: Snapshot, more: str = "") -> None:
        # A note is printed once; it would otherwise stand in every line of a long run.
        shown = replace(snapshot, note="") if snapshot.note == self._note else snapshot
        self._counts, self._note, self._said = snapshot.counts, snapshot.note, snapshot.seconds
        # A reader that has gone away must not end the run.
        with contextlib.suppress(OSError, ValueError):
            print(", ".join(filter(None, [headline(shown), more])), file=self._stream, flush=True)


class LiveTable(View):
    """A table of devices, lanes and trials, drawn by a thread of its own so that it never holds up a trial."""

    def __init__(self, console: Console) -> None:
        # Other output goes where it would go without the table, such as into a file; in a terminal, above the table.
        is_shown = is_terminal(sys.stdout)
        self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=is_shown)
        self._latest: Snapshot | None = None
        self._changed = threading.Event()
        self._closing = False
        had = sys.stdout, sys.stderr
        with contextlib.suppress(OSError, ValueError):
            self._live.start()
            # Hidden, it would stay so in a shell to which Ctrl-Z or a signal leads.
            console.show_cursor(True)
        # What a handler wrote to the terminal itself would stand in the table, and go with its next state.
        self._replaced = [(old, new) for old, new in zip(had, (sys.stdout, sys.stderr), strict=True) if old is not new]
        self._moved = [handler for old, new in self._replaced for handler in _moved(_stream_handlers(), old, new)]
        _shown.add(self)
        self._thread = threading.Thread(target=self._draw, name="cotune-dashboard", daemon=True)
        self._thread.start()

    def update(self, snapshot: Snapshot) -> None:
        self._latest = snapshot
        self._changed.set()

    def close(self, snapshot: Snapshot) -> None:
        self._closing = True
        self._changed.set()
        self._thread.join()
        # The terminal may have gone away, but the run's results must still be returned.
        with contextlib.suppress(OSError, ValueError):
            self._live.stop()
        self.leave()
        with contextlib.suppress(OSError, ValueError):
            self._live.console.print(Text(headline(snapshot)), soft_wrap=True)

    def leave(self) -> None:
        """Has what is printed and logged go to the terminal itself again."""
        _shown.discard(self)
        for old, new in self._replaced:
            for name in ("stdout", "stderr"):
                if getattr(sys, name) is new:
                    setattr(sys, name, old)
            # Also those that were made meanwhile, or have been taken from their logger.
            _moved([*self._moved, *_stream_handlers()], new, old)

    def _draw(self) -> None:
        while not self._closing:
            self._changed.wait()
            self._changed.clear()
            if self._latest is not None and not self._closing:
                with contextlib.suppress(OSError, ValueError):
                    self._live.update(table(self._latest, *self._live.console.size), refresh=True)


_shown: weakref.WeakSet[LiveTable] = weakref.WeakSet()


def _leave_in_child() -> None:
    """A process that a callback forks has no thread that draws, and may have that thread's locks, never to be freed."""
    for view in list(_shown):
        view.leave()


os.register_at_fork(after_in_child=_leave_in_child)


def _stream_handlers() -> list[logging.StreamHandler[Any]]:
    """The stream handlers of all loggers."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    handlers = [handler for logger in loggers for handler in getattr(logger, "handlers", ())]
    return [handler for handler in handlers if isinstance(handler, logging.StreamHandler)]


def _moved(handlers: Iterable[logging.StreamHandler[Any]], old: Any, new: Any) -> list[logging.StreamHandler[Any]]:
    """Gives `new` to the handlers that write to `old`, and returns these."""
    found = [handler for handler in handlers if getattr(handler, "stream", None) is old]
    for handler in found:
        # Not by setStream(), which flushes the old one: that may be a terminal that has gone away.
        handler.stream = new
    return found


def make_view(dashboard: bool | None) -> View | None:
    """The view for this process: None chooses by whether there is a terminal; there is none for False."""
    if dashboard is False:
        return None
    # The user's own text goes through it, too.
    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    # Not by the console alone, which FORCE_COLOR makes take any file for a terminal.
    is_live = is_terminal(sys.stderr) and console.is_terminal and not console.is_dumb_terminal
    return LiveTable(console) if is_live else PlainLines()


def headline(snapshot: Snapshot) -> str:
    """The state of a run in one line."""
    total = "" if snapshot.total is None else f"/{snapshot.total}"
    parts = [f"{snapshot.name} {_clock(snapshot.seconds)}  {snapshot.finished}{total} trials"]
    parts += [f"{count} {state}" for state, count in snapshot.counts.items() if count and state != "waiting"]
    if snapshot.is_starting:
        parts.append("starting lanes")
    if snapshot.best is not None:
        trial, value = snapshot.best
        parts.append(f"best {snapshot.metric}={value:.6g} (trial {trial})")
    if snapshot.note:
        parts.append(snapshot.note)
    return ", ".join(parts)


def table(snapshot: Snapshot, width: int = 80, height: int = 24) -> RenderableType:
    """A snapshot as a rich table.

    Columns that do not fit the width are left out, rows beyond the height are counted, not shown.
    """
    most = max(4, height - 8)
    rows, hidden = _rows(snapshot, max(3, most - len(snapshot.packer.devices)))
    rows, hidden = rows[:most], hidden + len(rows[most:])
    names = ["lane", "trial", "step", snapshot.metric[: max(16, width // 5)], "quota", "peak", "time"]
    widths = [max(len(name), *(len(cells[n]) for cells, _ in rows), 0) for n, name in enumerate(names)]
    while len(widths) > _METRIC + 1 and sum(widths) + 2 * (len(widths) - 1) > width:
        widths.pop()
    # If that is still too wide, the names of devices and lanes are cut, not the values.
    widths[0] = max(8, min(widths[0], width - sum(widths[1:]) - 2 * (len(widths) - 1)))
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for name, wide in zip(names, widths, strict=False):
        grid.add_column(Text(name), justify="left" if name == "lane" else "right", no_wrap=True, width=wide)
    for cells, taken in rows:
        style = "" if taken is None else "bold cyan"
        shown: list[RenderableType] = [Text(cell, style=style) for cell in cells[: len(widths)]]
        if taken is not None:
            shown[_METRIC] = ProgressBar(1.0, taken, width=widths[_METRIC])
        grid.add_row(*shown)
    lines: list[RenderableType] = [Text(headline(snapshot), overflow="fold")]
    if snapshot.total:
        lines.append(_bar(snapshot, snapshot.total, width))
    lines.append(grid)
    if hidden:
        lines.append(Text(f"  and {hidden} more", style="dim"))
    if snapshot.packer.first:
        why = textwrap.wrap(_waiting(snapshot), max(width, 8), max_lines=2, placeholder="…")
        lines.append(Text("\n".join(why), style="dim"))
    return Group(*lines)


def _bar(snapshot: Snapshot, total: int, width: int) -> RenderableType:
    """How much of a run is done, and how long the rest may take."""
    share = min(1.0, snapshot.finished / total)
    said = f"{share:4.0%}"
    if left := _left(snapshot):
        said += f", {left}"
    line = Table.grid(padding=(0, 1))
    line.add_row(ProgressBar(1.0, share, width=max(8, min(40, width - len(said) - 1))), Text(said, no_wrap=True))
    return line


def _left(snapshot: Snapshot) -> str:
    """Roughly how long the rest will take; empty if that is unknown."""
    return "" if snapshot.seconds_left is None else f"about {_clock(snapshot.seconds_left)} left"


def _waiting(snapshot: Snapshot) -> str:
    """How many trials wait, and why the first of them does."""
    first = snapshot.packer.first
    assert first is not None
    return f"{snapshot.packer.waiting} waiting; trial {first.trial}: {first.reason}"


def _progress(view: RunningView) -> str:
    """How far a trial has come."""
    far = "no report yet" if view.step is None else f"step {view.step}"
    return f"trial {view.trial}: {far} after {_clock(view.seconds)}"


def _rows(snapshot: Snapshot, room: int) -> tuple[list[tuple[list[str], float | None]], int]:
    """The cells of each row that fits, with the share of memory taken if it is a device's; how many do not fit."""
    running = {view.trial: view for view in snapshot.running}
    rows: list[tuple[list[str], float | None]] = []
    hidden = 0
    for device in snapshot.packer.devices:
        active = sum(1 for lane in device.lanes if lane.residents)
        head = f"{device.device}  {active}/{device.width} lanes"
        memory = [format_bytes(device.taken), f"/ {format_bytes(device.capacity)}"]
        rows.append(([head, "", "", "", *memory, ""], device.taken / max(device.capacity, 1)))
        for lane in device.lanes:
            # Trials that are over may still be on their way out.
            for view in tuple(running[trial] for trial in lane.residents if trial in running) or (None,):
                if room <= 0:
                    hidden += 1
                    continue
                room -= 1
                rows.append((_row(lane, view), None))
    return rows, hidden


def _row(lane: LaneView, view: RunningView | None) -> list[str]:
    quota = format_bytes(lane.quota)
    if view is None:
        state = f"{len(lane.paused)} paused" if lane.paused else "idle" if lane.ready else "starting"
        return [f"  lane {lane.lane} ({state})", "", "", "", quota, "", ""]
    return [
        f"  lane {lane.lane}",
        str(view.trial),
        "-" if view.step is None else str(view.step),
        "-" if view.value is None else f"{view.value:.5g}",
        quota,
        "-" if view.peak is None else format_bytes(view.peak),
        _clock(view.seconds) + ("" if view.slowdown is None else f" x{view.slowdown:.2f}"),
    ]


def _clock(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:
        return f"{seconds:.1f}s"
    return (
        f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
        if whole >= 3600
        else f"{whole // 60}:{whole % 60:02d}"
    )
