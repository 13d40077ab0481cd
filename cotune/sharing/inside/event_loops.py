"""The thread of a trial gets an event loop when it asks for one, as the main thread of a script does.

`asyncio.run` needs none of this; older code and libraries call `asyncio.get_event_loop()`, which fails in any other
thread. From Python 3.14 on it fails in the main thread, too.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Any

from cotune import session

# The loop of each trial's own thread.
_made = threading.local()


def give_event_loops(asyncio: Any) -> None:
    """Has `asyncio`, the module, make an event loop for a trial's own thread; not under a policy of somebody else's."""
    if sys.version_info >= (3, 14) or type(asyncio.get_event_loop_policy()) is not asyncio.DefaultEventLoopPolicy:
        return

    class Policy(asyncio.DefaultEventLoopPolicy):  # type: ignore[misc]
        def get_event_loop(self) -> Any:
            if session.bound() is not None and self._local._loop is None and not self._local._set_called:
                _made.loop = self.new_event_loop()
                self.set_event_loop(_made.loop)
            return super().get_event_loop()

    asyncio.set_event_loop_policy(Policy())


def close_event_loop() -> None:
    """Closes the loop that the calling thread was given, if any, and ends the threads of its executor."""
    loop = getattr(_made, "loop", None)
    if loop is not None and not loop.is_running():
        # A trial may have put something else in its place.
        with contextlib.suppress(Exception):
            loop.close()
