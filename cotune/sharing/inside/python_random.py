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
        self._state: Any = None

    def apply(self) -> None:
        if self._seed is not None:
            random.seed(self._seed)
            self._seed = None
        elif _words is not None:
            _words.raw, _global.gauss_next = self._state
        else:
            random.setstate(self._state)

    def capture(self) -> None:
        self._seed = None
        if _words is not None:
            self._state = _words.raw, _global.gauss_next
        else:
            self._state = random.getstate()


def _words_of(generator: random.Random) -> Any:
    """A generator's memory, where its words are; None if this Python lays it out differently.

    The layout is undocumented and therefore tested.
    """
    try:
        _, (*words, index), _ = generator.getstate()
        if type(generator).__basicsize__ < _AT + _LAYOUT.size:
            return None
        found = (ctypes.c_char * _LAYOUT.size).from_address(id(generator) + _AT)
        return found if found.raw == _LAYOUT.pack(index, *words) else None
    except Exception:
        return None


_global: Any = cast(Any, random)._inst
_words = _words_of(_global)
