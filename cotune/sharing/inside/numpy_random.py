"""A trial's own state of numpy's global generator, in a process that several trials share."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np

_MT_BYTES = 624 * 4 + 4
# The flag `has_gauss`, an int with padding after it, and the number.
_GAUSS_BYTES = 16

_Raw = tuple[bytes, bytes]


class NumpyRandom:
    """The state of numpy's global generator.

    numpy takes 60 us each to get and to set its state. The words of the Mersenne Twister and the cached half of a
    Gaussian pair are therefore moved as raw memory. Generators of other kinds use numpy's own functions.
    """

    def __init__(self, seed: int) -> None:
        self._seed: int | None = seed % 2**32
        self._bits: Any = _plain_bits
        self._raw: _Raw | None = None
        self._state: Any = None

    def apply(self) -> None:
        rand = _numpy_global()
        if rand._bit_generator is not self._bits:
            np.random.mtrand.set_bit_generator(self._bits)
        if self._seed is not None:
            rand.seed(self._seed)
            self._seed = None
        elif self._raw is not None and _gauss_at is not None:
            _put(rand, _gauss_at, self._raw)
        else:
            rand.set_state(self._state)

    def capture(self) -> None:
        self._seed = None
        rand = _numpy_global()
        self._bits = rand._bit_generator
        self._raw = self._state = None
        if _gauss_at is not None and type(self._bits) is np.random.MT19937:
            self._raw = _taken(rand, _gauss_at)
        else:
            self._state = rand.get_state(legacy=False)


def _numpy_global() -> Any:
    return np.random.mtrand._rand


def _taken(rand: Any, gauss_at: int) -> _Raw:
    words = ctypes.string_at(rand._bit_generator.ctypes.state_address, _MT_BYTES)
    return words, ctypes.string_at(id(rand) + gauss_at, _GAUSS_BYTES)


def _put(rand: Any, gauss_at: int, raw: _Raw) -> None:
    words, gauss = raw
    ctypes.memmove(rand._bit_generator.ctypes.state_address, words, _MT_BYTES)
    ctypes.memmove(id(rand) + gauss_at, gauss, _GAUSS_BYTES)


def _find_gauss() -> int | None:
    """The offset in a generator of the cached half of a Gaussian pair; None if this numpy's state cannot be moved raw.

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
            raw, drawn = _taken(rand, place), rand.standard_normal(2 * 624 + 1)
            _put(rand, place, raw)
            if not np.array_equal(rand.standard_normal(len(drawn)), drawn):
                return None
    except Exception:
        return None
    return place


_plain_bits: Any = _numpy_global()._bit_generator
_gauss_at = _find_gauss()
