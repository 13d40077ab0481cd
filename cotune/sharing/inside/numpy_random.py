"""A trial's own numpy generator, among the trials that share a process."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

_MT_BYTES = 624 * 4 + 4


class NumpyRandom:
    """The state of numpy's global generator.

    numpy needs 60 us each to give and take its state. The words of the Mersenne Twister are therefore moved raw, and
    only the cached half of a Gaussian pair goes through numpy. A generator of another kind takes the long way.
    """

    def __init__(self, seed: int) -> None:
        self._seed: int | None = seed % 2**32
        self._bits: Any = _plain_bits
        self._words = b""
        self._gauss: Any = None
        self._state: Any = None

    def apply(self) -> None:
        rand = _numpy_global()
        if rand._bit_generator is not self._bits:
            np.random.mtrand.set_bit_generator(self._bits)
        if self._seed is not None:
            rand.seed(self._seed)
            self._seed = None
        elif self._gauss is not None:
            ctypes.memmove(self._bits.ctypes.state_address, self._words, _MT_BYTES)
            _through_words(rand, lambda: rand.set_state(self._gauss))
        else:
            rand.set_state(self._state)

    def capture(self) -> None:
        rand = _numpy_global()
        self._bits = rand._bit_generator
        self._gauss = self._state = None
        if _moves_words and type(self._bits) is np.random.MT19937:
            self._words = ctypes.string_at(self._bits.ctypes.state_address, _MT_BYTES)
            self._gauss = _through_words(rand, lambda: rand.get_state(legacy=False))
        else:
            self._state = rand.get_state(legacy=False)


class _Wordless:
    """Stands in for a bit generator whose words are moved by other means."""

    @property
    def state(self) -> dict[str, Any]:
        return {"bit_generator": "MT19937", "state": {}}

    @state.setter
    def state(self, _: Any) -> None: ...


def _numpy_global() -> Any:
    return np.random.mtrand._rand


def _through_words(rand: Any, call: Callable[[], Any]) -> Any:
    """Calls something that takes the state of `rand`, for all of it but the words."""
    bits, rand._bit_generator = rand._bit_generator, _wordless
    try:
        return call()
    finally:
        rand._bit_generator = bits


def _can_move_words() -> bool:
    """Whether this numpy lets its words be moved: tried, since nothing documents it."""
    try:
        rand = np.random.RandomState(1)
        rand.standard_normal()
        before = rand.get_state(legacy=False)
        words = ctypes.string_at(rand._bit_generator.ctypes.state_address, _MT_BYTES)
        gauss = _through_words(rand, lambda: rand.get_state(legacy=False))
        rand.standard_normal(5)
        ctypes.memmove(rand._bit_generator.ctypes.state_address, words, _MT_BYTES)
        _through_words(rand, lambda: rand.set_state(gauss))
        after = rand.get_state(legacy=False)
        same_words = np.array_equal(before["state"]["key"], after["state"]["key"])
        return same_words and repr(_but_key(before)) == repr(_but_key(after))
    except Exception:
        return False


def _but_key(state: Any) -> Any:
    return state["state"]["pos"], state["has_gauss"], state["gauss"]


_wordless = _Wordless()
_plain_bits: Any = _numpy_global()._bit_generator
_moves_words = _can_move_words()
