"""SIGTERM in processes that trials on Ray fork: it ends them, from their first moment on, as it would without Ray.

A forked process inherits Ray's handler, which raises `SystemExit`. Where that happens within what Python does after a
fork, it is ignored, and whoever waits for the process, such as a `multiprocessing.Pool` that ends, waits for ever.
"""

from __future__ import annotations

import functools
import os
import signal
import threading


@functools.cache
def end_forks_on_sigterm() -> None:
    """Makes SIGTERM end processes that this one forks, unless a trial has installed a handler of its own."""
    of_ray, masks = signal.getsignal(signal.SIGTERM), threading.local()

    def hold_back() -> None:
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def let_through() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def in_child() -> None:
        if signal.getsignal(signal.SIGTERM) is of_ray:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        let_through()

    os.register_at_fork(before=hold_back, after_in_parent=let_through, after_in_child=in_child)
