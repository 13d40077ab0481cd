"""Shows a run while it goes on."""

from __future__ import annotations

import time
from collections.abc import Sequence

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
        # Why the run ends early, as said at its end and until then.
        self._ending = self._advice = ""

    def ends(self, why: str, advice: str = "", then: str = "") -> None:
        """The run ends early: what has not begun will not be run.

        Args:
            why: What has ended it.
            advice: For those who wait for its end.
            then: What to do once it has ended.
        """
        self._ending = f"{why}; {then}" if then else why
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
            self._seconds_left(running),
            bool(self._ending),
        )

    def _total(self) -> int | None:
        """Trials wanted, or as many as earlier sessions have suggested if those are more; None for no limit."""
        return None if self._trials is None else max(self._trials, sum(self._records.counts.values()))

    def _seconds_left(self, running: Sequence[RunningView]) -> float | None:
        """How long the rest takes if trials take as long as those that have ended, or run, and as many run at once.

        None while trials are held: how far they will go is open.
        """
        records, total, ended = self._records, self._total(), finished(self._records.counts)
        done = ended - self._finished_before
        if total is None or not done or self._ending or not records.first_start or self._packer.held:
            # Trials may have ended before the first lane is up.
            return None
        going = sum(view.seconds for view in running)
        # Those that have ended first may be the ones that failed at once.
        usual = max(records.ended_seconds / done, going / max(1, len(running)))
        # One that takes longer than others is not over yet.
        left = [max(usual - view.seconds, usual / 10) for view in running]
        ran = records.ended_seconds + going
        at_once = max(1.0, ran / (time.monotonic() - records.first_start))
        waiting = max(0, total - ended - len(running))
        return max([(waiting * usual + sum(left)) / at_once, *left])
