"""An engine's zygote, started when it is needed and again after it has died."""

from __future__ import annotations

import contextlib
import errno
import selectors
import signal
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from cotune import errors
from cotune.sharing.lane import signal_name
from cotune.sharing.zygote import ZygoteHandle


class LocalZygote:
    """Keeps a zygote, and registers it with a selector.

    Args:
        selector: Waits for the zygote's messages.
        hear: Called with the zygote when a message arrives.
        start: Starts a zygote.
        log: File for the zygote's own output.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        hear: Callable[[ZygoteHandle], None],
        start: Callable[[], ZygoteHandle],
        log: Path,
    ) -> None:
        self._selector = selector
        self._hear = hear
        self._start = start
        self._log = log
        self._zygote: ZygoteHandle | None = None
        # A zygote was killed before it was up, perhaps for lack of memory; a second try may succeed.
        self._was_killed_early = False

    @property
    def is_starting(self) -> bool:
        """Whether there is a zygote that has not finished its imports."""
        return self._zygote is not None and not self._zygote.is_up

    def get(self) -> ZygoteHandle:
        """The zygote; starts one if there is none.

        Raises:
            RunError: No process can be started.
        """
        if self._zygote is None:
            try:
                self._zygote = self._start()
            except OSError as error:
                raise errors.RunError(
                    f"no process can be started: {error.strerror or error}",
                    hint="make room where the run is stored, or pass another storage="
                    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
                    else "raise the limits of this process (`ulimit -u`, `ulimit -n`), or end others",
                ) from error
            self._selector.register(self._zygote, selectors.EVENT_READ, partial(self._hear, self._zygote))
        return self._zygote

    def end(self, leaving: Iterable[int] = ()) -> None:
        """Ends the zygote and all its lanes; processes that have left their lanes' groups survive a killed zygote.

        Args:
            leaving: Lanes that end by themselves.
        """
        zygote, self._zygote = self._zygote, None
        if zygote is not None:
            self._selector.unregister(zygote)
            with contextlib.closing(zygote):
                zygote.await_ends(leaving)

    def died(self) -> None:
        """Called when the zygote has died; `get()` may start another, even if it was killed before it was up, once.

        Raises:
            RunError: It failed to come up by itself, or was killed a second time before it was up.
        """
        zygote = self._zygote
        assert zygote is not None
        words = zygote.last_words()
        self.end()
        if zygote.is_up:
            return
        if zygote.killed_by == signal.SIGKILL and not self._was_killed_early:
            self._was_killed_early = True
            return
        # SIGTERM is what `end()` sends to a zygote that has not ended yet.
        is_unclear = zygote.killed_by in (0, signal.SIGTERM)
        how = "died" if is_unclear else f"was killed by {signal_name(zygote.killed_by)}"
        mend = "importing what the trainable uses must work by itself"
        if zygote.killed_by == signal.SIGKILL:
            mend = "the system does so for want of memory: make room, or import less where the trainable is defined"
        raise errors.RunError(
            f"the process that forks lanes {how} at its start: {words or 'it said nothing'}",
            hint=f"see {self._log}; {mend}",
        )
