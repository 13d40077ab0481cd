"""Captures of CUDA graphs, during which no thread of the process may free memory or wait for the device.

CUDA refuses such a call of any thread and breaks off the capture with it, unless the capture was begun in another mode
than PyTorch's default, "global" (CUDA Runtime API, `cudaThreadExchangeStreamCaptureMode`).
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any


class Captures:
    """Knows of the captures of this process.

    Args:
        kind: `torch.cuda.CUDAGraph`, through which all of PyTorch's captures go.
    """

    def __init__(self, kind: Any) -> None:
        self._mutex = threading.Lock()
        self._open = 0
        kind.capture_begin = self._begins(kind.capture_begin)
        kind.capture_end = self._ends(kind.capture_end)

    def __bool__(self) -> bool:
        """Whether there is one now."""
        return self._open > 0

    @contextlib.contextmanager
    def held_off(self) -> Iterator[bool]:
        """Makes captures wait until the block ends; gives False where one is under way already."""
        with self._mutex:
            yield not self._open

    def _begins(self, begin: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(begin)
        def capture_begin(*args: Any, **options: Any) -> None:
            with self._mutex:
                self._open += 1
            try:
                begin(*args, **options)
            except BaseException:
                self._closed()
                raise

        return capture_begin

    def _ends(self, end: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(end)
        def capture_end(*args: Any, **options: Any) -> None:
            try:
                end(*args, **options)
            finally:
                self._closed()

        return capture_end

    def _closed(self) -> None:
        with self._mutex:
            self._open = max(0, self._open - 1)
