"""The largest of numbers that change, and of devices that come."""

import sys

from hypothesis import given
from hypothesis import strategies as st

from cotune.demand import GIB
from cotune.packer import DeviceFound, Packer
from cotune.packer.largest import FEW, Largest


@given(st.lists(st.integers(-3, 3) | st.integers(), max_size=200), st.data())
def test_it_is_the_largest_whatever_comes_and_goes(coming: list[int], data: st.DataObject) -> None:
    bag, there = Largest(), []
    for number in coming:
        bag.add(number)
        there.append(number)
        if data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(there))
            bag.remove(gone)
            there.remove(gone)
        assert bag.get(-99) == max(there, default=-99)


def test_of_numbers_that_are_gone_few_are_kept() -> None:
    # As what waiting trials are expected to take, which changes with every prediction.
    bag = Largest[float]()
    bag.add(1e6)
    for number in range(10_000):
        bag.add(float(number))
        bag.remove(float(number))
    assert len(bag._heap) <= 2 * FEW
    assert bag.get(0.0) == 1e6


def test_a_device_is_found_at_a_price_that_does_not_grow_with_how_many_there_are() -> None:
    packer = Packer()
    calls = [0]

    def count(frame: object, event: str, argument: object) -> None:
        calls[0] += event == "call"

    def price(numbers: range) -> int:
        calls[0] = 0
        sys.setprofile(count)
        for number in numbers:
            packer.handle(DeviceFound(0.0, f"gpu {number}", 16 * GIB, 300 << 20, 16))
        sys.setprofile(None)
        return calls[0]

    few = price(range(100))
    price(range(100, 900))
    assert price(range(900, 1000)) < 1.5 * few
