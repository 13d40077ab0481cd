"""Captures of CUDA graphs, during which no thread of the process may allocate or free memory, or wait for the device.

CUDA refuses such a call in any thread and invalidates the capture, unless the capture was begun in another mode than
PyTorch's default, "global" (CUDA Runtime API, `cudaThreadExchangeStreamCaptureMode`). Threads that a trial has started
run without the turn; keeping them from such calls is up to the trial, as it is without cotune.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any


class Captures:
    """Keeps track of the captures of this process.

    Attributes:
        has_failed: Whether a capture could not begin or end.

    Args:
        kind: `torch.cuda.CUDAGraph`, which `torch.cuda.graph`, `make_graphed_callables` and `torch.compile` use.
    """

    def __init__(self, kind: Any) -> None:
        self._mutex = threading.Lock()
        self._open: set[int] = set()
        self.has_failed = False
        kind.capture_begin = self._begins(kind.capture_begin)
        kind.capture_end = self._ends(kind.capture_end)

    def __bool__(self) -> bool:
        """Whether a capture is under way."""
        return bool(self._open)

    @contextlib.contextmanager
    def held_off(self) -> Iterator[bool]:
        """Makes new captures wait until the block ends; yields False if one is under way already."""
        with self._mutex:
            yield not self._open

    def _begins(self, begin: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(begin)
        def capture_begin(graph: Any, *args: Any, **options: Any) -> None:
            with self._mutex:
                self._open.add(id(graph))
            try:
                begin(graph, *args, **options)
            except BaseException:
                self.has_failed = True
                self._closed(graph)
                raise

        return capture_begin

    def _ends(self, end: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(end)
        def capture_end(graph: Any, *args: Any, **options: Any) -> None:
            try:
                end(graph, *args, **options)
            except BaseException:
                self.has_failed = True
                raise
            finally:
                self._closed(graph)

        return capture_end

    def _closed(self, graph: Any) -> None:
        with self._mutex:
            self._open.discard(id(graph))
