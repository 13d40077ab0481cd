"""The zygote of an engine: started when a lane is wanted, and anew when it has died."""

from __future__ import annotations

import errno
import selectors
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from cotune import errors
from cotune.sharing.lane import signal_name
from cotune.sharing.zygote import Zygote


class LocalZygote:
    """Keeps one, and has it heard.

    Args:
        selector: Waits for what it says.
        hear: Called with it then.
        modules: What it imports.
        trainable: The pickled trainable.
        threads: Threads per operation in its lanes.
        log: Where its own output goes.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        hear: Callable[[Zygote], None],
        modules: Sequence[str],
        trainable: bytes,
        threads: int,
        log: Path,
    ) -> None:
        self._selector = selector
        self._hear = hear
        self._start = partial(Zygote, modules, trainable, threads, log)
        self._log = log
        self._zygote: Zygote | None = None
        # One was, before it was up: by want of memory, perhaps, which may be over.
        self._was_killed_early = False

    @property
    def is_starting(self) -> bool:
        """Whether there is one that has yet to import something."""
        return self._zygote is not None and not self._zygote.is_up

    def get(self) -> Zygote:
        """The zygote; starts one if there is none.

        Raises:
            RunError: That is not possible.
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

    def end(self) -> None:
        """Ends it, and with it every lane; what had left their process groups was its to kill and is not any more."""
        zygote, self._zygote = self._zygote, None
        if zygote is not None:
            self._selector.unregister(zygote)
            zygote.close()

    def died(self) -> None:
        """It has died. Was it killed before it was up, another may be started, once.

        Raises:
            RunError: It has failed to come up by itself, or was killed again.
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
        # The second is what we ourselves send to what is still about to end.
        is_unclear = zygote.killed_by in (0, signal.SIGTERM)
        how = "died" if is_unclear else f"was killed by {signal_name(zygote.killed_by)}"
        mend = "importing what the trainable uses must work by itself"
        if zygote.killed_by == signal.SIGKILL:
            mend = "the system does so for want of memory: make room, or import less where the trainable is defined"
        raise errors.RunError(
            f"the process that forks lanes {how} at its start: {words or 'it said nothing'}",
            hint=f"see {self._log}; {mend}",
        )
