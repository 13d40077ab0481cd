"""Shows a run while it goes on."""

from __future__ import annotations

import time

from cotune.dashboard.snapshot import RunningView, Snapshot, finished
from cotune.dashboard.views import View
from cotune.errors import printable
from cotune.packer import Packer
from cotune.record import Records

SHOW_EVERY = 0.25


class Display:
    """Updates a view with the state of a run, a few times a second.

    Args:
        view: Shows the run, if anything does.
        metric: The tuned metric; empty where only the search knows.
        trials: Number of trials wanted; None for no limit.
        records: The run's trials.
        packer: The brain.

    Attributes:
        note: The latest failure or news, in one line.
    """

    def __init__(self, view: View | None, metric: str, trials: int | None, records: Records, packer: Packer) -> None:
        self.note = ""
        self._view = view
        self._metric = metric or "value"
        self._trials = trials
        self._records = records
        self._packer = packer
        self._began = time.monotonic()
        # Finished in earlier sessions of the run.
        self._finished_before = finished(records.counts)
        self._due = 0.0
        # Why the run ends early, without and with advice for those who wait.
        self._ending = self._advice = ""

    def ends(self, why: str, advice: str = "") -> None:
        """The run ends early: what has not begun will not be run.

        Args:
            why: What has ended it.
            advice: For those who wait for its end.
        """
        self._ending = why
        self.note = self._advice = f"{why}: {advice}" if advice else why

    def show(self) -> None:
        """Updates the view, if an update is due."""
        now = time.monotonic()
        if self._view is not None and now >= self._due:
            self._due = now + SHOW_EVERY
            self._view.update(self.snapshot())

    def close(self) -> None:
        """Shows the last state."""
        if self.note == self._advice:
            self.note = self._ending
        if self._view is not None:
            self._view.close(self.snapshot())

    def snapshot(self) -> Snapshot:
        """The run as it stands."""
        records, packer = self._records, self._packer
        running = []
        for record, seconds in records.running():
            trial, step, value = record.trial, record.last_step, record.last_value
            demand, slowdown = packer.demand_of(trial), packer.slowdown_of(trial)
            running.append(RunningView(trial, seconds, step, value, demand.peak if demand else None, slowdown))
        best = records.best
        return Snapshot(
            records.name,
            self._metric,
            time.monotonic() - self._began,
            self._total(),
            dict(records.counts),
            (best.trial, best.last_value or 0.0) if best else None,
            tuple(running),
            packer.snapshot(),
            printable(self.note),
            self._seconds_left(len(running)),
            bool(self._ending),
        )

    def _total(self) -> int | None:
        """Trials wanted, or as many as earlier sessions have suggested if those are more; None for no limit."""
        return None if self._trials is None else max(self._trials, sum(self._records.counts.values()))

    def _seconds_left(self, running: int) -> float | None:
        """How long the rest takes if it goes on at the pace so far, with running trials half done."""
        total, ended = self._total(), finished(self._records.counts)
        done = ended - self._finished_before
        if total is None or not done or self._ending or not self._records.first_start:
            # Trials may have ended before the first lane is up.
            return None
        seconds = time.monotonic() - self._records.first_start
        return seconds * max(0.0, total - ended - running / 2) / (done + running / 2)
