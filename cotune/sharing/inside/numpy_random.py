"""A trial's own state of numpy's global generator, in a process that several trials share."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np

_MT_BYTES = 624 * 4 + 4
# The flag `has_gauss`, an int with padding after it, and the number.
_GAUSS_BYTES = 16

_State = tuple[bytes, bytes]


class NumpyRandom:
    """The state of numpy's global generator.

    numpy takes 60 us each to get and to set its state. The words of the Mersenne Twister and the cached half of a
    Gaussian pair are therefore moved as raw memory. Bit generators that a trial has put in use numpy's own functions.
    """

    def __init__(self, seed: int) -> None:
        self._seed: int | None = seed % 2**32
        self._bits: Any = _plain_bits
        # What `_memory`, or numpy for other bit generators, has told.
        self._state: Any = None

    def apply(self) -> None:
        if _global._bit_generator is not self._bits:
            np.random.mtrand.set_bit_generator(self._bits)
        if self._seed is not None:
            _global.seed(self._seed)
            self._seed = None
        elif _memory is not None and self._bits is _plain_bits:
            _memory.put(self._state)
        else:
            _global.set_state(self._state)

    def capture(self) -> None:
        self._seed = None
        self._bits = _global._bit_generator
        if _memory is not None and self._bits is _plain_bits:
            self._state = _memory.take()
        else:
            self._state = _global.get_state(legacy=False)


class _Memory:
    """Where a generator has its state.

    Args:
        rand: The generator.
        gauss_at: Offset in it of the cached half of a Gaussian pair.
    """

    def __init__(self, rand: Any, gauss_at: int) -> None:
        self._words = (ctypes.c_char * _MT_BYTES).from_address(rand._bit_generator.ctypes.state_address)
        self._gauss = (ctypes.c_char * _GAUSS_BYTES).from_address(id(rand) + gauss_at)

    def take(self) -> _State:
        return self._words.raw, self._gauss.raw

    def put(self, state: _State) -> None:
        self._words.raw, self._gauss.raw = state


def _memory_of(generator: Any) -> _Memory | None:
    """Where a generator with a Mersenne Twister has its state; None if this numpy's cannot be moved raw.

    The layout is undocumented and therefore tested.
    """
    try:
        rand, marks, places = np.random.RandomState(1), (0.739085, -1.202056), set()
        for mark in marks:
            rand.set_state({**rand.get_state(legacy=False), "has_gauss": 1, "gauss": mark})
            memory = ctypes.string_at(id(rand), type(rand).__basicsize__)
            places.add(memory.index(struct.pack("ixxxxd", 1, mark)))
        (place,) = places
        # An odd number of draws, so that one round starts with a cached half and one without.
        for _ in marks:
            found = _Memory(rand, place)
            state, drawn = found.take(), rand.standard_normal(2 * 624 + 1)
            found.put(state)
            if not np.array_equal(rand.standard_normal(len(drawn)), drawn):
                return None
        return _Memory(generator, place) if type(generator._bit_generator) is np.random.MT19937 else None
    except Exception:
        return None


_global: Any = np.random.mtrand._rand
_plain_bits: Any = _global._bit_generator
_memory = _memory_of(_global)
