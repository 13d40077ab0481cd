"""A trial's measurements: bytes held, peak bytes within an iteration, and running time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cotune.sharing.delays import ThreadDelays

if TYPE_CHECKING:
    from cotune.sharing.inside.host import Host


class Measured(NamedTuple):
    """Measurements of a trial since the last `take()`.

    Attributes:
        seconds: Seconds in which it had the turn, less its waits.
        persistent: Bytes it holds between iterations.
        ephemeral: Peak bytes on top of those.
        busy: Share of the device's time it would have used alone; None if not known.
    """

    seconds: float
    persistent: int
    ephemeral: int
    busy: float | None


class TrialMeter:
    """Books changes of the lane's meters to the trial that has the turn, since only that trial runs.

    Attributes:
        persistent: Bytes that this trial holds.
    """

    def __init__(self, host: Host) -> None:
        self.persistent = 0
        self._host = host
        # The highest peak above what it held then, since the last `take()`.
        self._ephemeral = 0
        self._since = 0.0
        self._seconds = 0.0
        self._busy_since: float | None = None
        self._busy: float | None = 0.0
        # Delays of the trial's thread, readable from any thread; None where the device is not the CPU.
        self._delays: ThreadDelays | None = None
        self._delayed_since = 0.0
        self._delayed = 0.0

    def begin(self, now: float) -> None:
        """Starts measuring at the begin of a turn; the holder before has read and reset the meters."""
        self._since, self._busy_since = now, self._host.memory.busy_seconds()
        if self._delays is None and self._busy_since is not None:
            self._delays = ThreadDelays()
        self._delayed_since = self._delays.seconds() if self._delays is not None else 0.0

    def follow(self) -> None:
        """Measures the delays of the calling thread from now on, which runs the trainable in place of the trial's."""
        if self._delays is not None:
            self.close()
            self._delays = ThreadDelays()
            self._delayed_since = self._delays.seconds()

    def read(self, now: float, *, final: bool = False) -> None:
        """Reads the meters, and resets them for the next holder of the turn.

        With `final`, at the end of a trial, when its locals are gone, `persistent` stays as of the last boundary and
        only the peak above that is updated.
        """
        host = self._host
        level, peak = host.memory.read()
        if final:
            self._ephemeral = max(self._ephemeral, peak - host.level)
        else:
            self.persistent += level - host.level
            self._ephemeral = max(self._ephemeral, peak - level)
        host.level = level
        host.memory.reset_peak()
        host.show_held()
        self._seconds += now - self._since
        self._since = now
        before, self._busy_since = self._busy_since, host.memory.busy_seconds()
        if before is None or self._busy_since is None or self._busy is None:
            self._busy = None
        else:
            self._busy += self._busy_since - before
        if self._delays is not None:
            delayed = self._delays.seconds()
            self._delayed += delayed - self._delayed_since
            self._delayed_since = delayed

    def close(self) -> None:
        """Ends the measurement of delays."""
        if self._delays is not None:
            self._delays.close()
            self._delays = None

    def leave_out(self, seconds: float) -> None:
        """Leaves out seconds that the trial has spent waiting."""
        self._since += seconds

    def wanted(self, refused: int) -> int:
        """Bytes the trial would hold if it had got the `refused` bytes."""
        return self.persistent + self._host.memory.read()[0] - self._host.level + refused

    def take(self) -> Measured:
        """Returns the measurements since the last call, and starts new ones."""
        # Alone the trial would not have been delayed.
        own = self._seconds - self._delayed
        busy = self._busy / own if self._busy is not None and own > 0 else None
        measured = Measured(self._seconds, max(0, self.persistent), max(0, self._ephemeral), busy)
        self._ephemeral = 0
        self._seconds = self._busy = self._delayed = 0.0
        return measured
