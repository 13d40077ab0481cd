"""Tune's calls to one trial, on their way from Ray's threads to the trial's thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any


class NotHere(RuntimeError):
    """The trial has left this lane before the call was served; it goes on in another lane, or is over."""


@dataclass(slots=True)
class Call:
    """One call of Tune to a Trainable.

    Attributes:
        method: Name of the method.
        args: Its arguments.
        kwargs: Its keyword arguments.
        answer: Resolved by the trial's thread.
    """

    method: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    answer: Future[Any] = field(default_factory=Future)


class Inbox:
    """The calls to one trial, in the order they were made, not that of their arrival.

    Attributes:
        is_unwanted: Whether the trial was stopped before it began.
    """

    def __init__(self) -> None:
        self.is_unwanted = False
        self._calls: dict[int, Call] = {}
        self._next = 0
        self._arrived = threading.Condition()
        self._closed = False

    def put(self, number: int, call: Call) -> None:
        with self._arrived:
            if self._closed:
                _refuse(call)
                return
            self._calls[number] = call
            self._arrived.notify()

    def take(self) -> Call | None:
        """The next call; None once the inbox is closed."""
        with self._arrived:
            while self._next not in self._calls and not self._closed:
                self._arrived.wait()
            call = self._calls.pop(self._next, None)
            self._next += 1
            return call

    def close(self) -> None:
        """Refuses all calls that have not been served, and all later ones."""
        with self._arrived:
            self._closed = True
            self._arrived.notify()
            for call in self._calls.values():
                _refuse(call)
            self._calls.clear()


def _refuse(call: Call) -> None:
    """Answers a call that came too late."""
    if call.method == "stop":
        call.answer.set_result(None)
    else:
        call.answer.set_exception(NotHere(f"{call.method}() came after the end of the trial"))
