"""A trial's own state of Python's `random`, in a process that several trials share."""

from __future__ import annotations

import ctypes
import random
import struct
from typing import Any, cast

# Index of the Mersenne Twister's next word, and its words.
_LAYOUT = struct.Struct("=i624I")
_AT = object.__basicsize__


class PythonRandom:
    """The state of Python's global generator.

    The words are moved as raw memory: `getstate` and `setstate` convert them to integers and back, which takes 35 us
    each with caches as cold as at a turn change.
    """

    def __init__(self, seed: int) -> None:
        self._seed: int | None = seed
        self._raw = b""
        self._gauss: float | None = None
        self._state: Any = None

    def apply(self) -> None:
        if self._seed is not None:
            random.seed(self._seed)
            self._seed = None
        elif _moves_raw:
            ctypes.memmove(id(_global) + _AT, self._raw, _LAYOUT.size)
            _global.gauss_next = self._gauss
        else:
            random.setstate(self._state)

    def capture(self) -> None:
        self._seed = None
        if _moves_raw:
            self._raw = ctypes.string_at(id(_global) + _AT, _LAYOUT.size)
            self._gauss = _global.gauss_next
        else:
            self._state = random.getstate()


def _can_move_raw() -> bool:
    """Whether this Python lays a generator out as expected, which is undocumented and therefore tested."""
    try:
        found = random.Random(1)
        found.random()
        _, (*words, index), _ = found.getstate()
        fits = type(found).__basicsize__ >= _AT + _LAYOUT.size
        return fits and ctypes.string_at(id(found) + _AT, _LAYOUT.size) == _LAYOUT.pack(index, *words)
    except Exception:
        return False


_global: Any = cast(Any, random)._inst
_moves_raw = _can_move_raw()
