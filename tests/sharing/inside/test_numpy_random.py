"""The state of numpy's global generator, moved raw and the long way."""

import numpy as np
import pytest

from cotune.sharing.inside import numpy_random
from cotune.sharing.inside.numpy_random import NumpyRandom


@pytest.fixture(autouse=True)
def restored():
    bits, state = np.random.mtrand._rand._bit_generator, np.random.get_state()
    yield
    np.random.mtrand.set_bit_generator(bits)
    np.random.set_state(state)


def test_this_numpy_lets_itself_be_moved_raw():
    assert numpy_random._memory is not None


@pytest.mark.parametrize("is_raw", [True, False])
def test_two_trials_by_turns_draw_what_each_draws_alone(monkeypatch, is_raw):
    if not is_raw:
        monkeypatch.setattr(numpy_random, "_memory", None)
    alone = [np.random.RandomState(seed) for seed in (1, 2)]
    states = [NumpyRandom(seed) for seed in (1, 2)]
    # Odd numbers of normals leave half of a pair, and many of them go round the words.
    for count in (1, 2, 1, 1300, 3):
        for own, state in zip(alone, states, strict=True):
            state.apply()
            assert np.array_equal(np.random.standard_normal(count), own.standard_normal(count))
            assert np.array_equal(np.random.randint(0, 99, count), own.randint(0, 99, count))
            state.capture()


def test_a_generator_of_another_kind_goes_the_long_way():
    state = NumpyRandom(1)
    state.apply()
    np.random.mtrand.set_bit_generator(np.random.PCG64(7))
    expected = np.random.RandomState(np.random.PCG64(7)).standard_normal(5)
    assert np.array_equal(np.random.standard_normal(2), expected[:2])
    state.capture()
    NumpyRandom(3).apply()
    np.random.standard_normal()
    state.apply()
    assert np.array_equal(np.random.standard_normal(3), expected[2:])
