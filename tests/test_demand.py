"""Demands, and byte counts as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.demand import GIB, MIB, Demand, format_bytes, parse_bytes
from cotune.errors import InputError


def test_the_peak_is_what_is_held_and_what_comes_on_top():
    assert Demand(3 * MIB, 2 * MIB).peak == 5 * MIB


def test_a_demand_that_was_not_timed_has_no_busy_share():
    assert Demand(1, 1).busy is None


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("1B", 1),
        ("512MiB", 512 * MIB),
        ("512 MB", 512_000_000),
        ("4GiB", 4 * GIB),
        ("4gib", 4 * GIB),
        ("4 GB", 4_000_000_000),
        ("4G", 4 * GIB),
        ("1.5GiB", 3 * GIB // 2),
        (".5KiB", 512),
        ("  2 TiB  ", 2048 * GIB),
        ("1073741824", GIB),
    ],
)
def test_a_size_is_read(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "4XB", "-1GiB", "0", "0GiB", "1..5GiB", "4 Gi B", "1e9", "nan", "four", "²", "9" * 400]
)
def test_what_is_not_a_size_is_refused_with_a_hint(text):
    with pytest.raises(InputError) as refused:
        parse_bytes(text)
    assert repr(text) in refused.value.message
    assert "4GiB" in refused.value.hint


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (64 * MIB, "64.0 MiB"),
        (512 * MIB, "512 MiB"),
        (int(6.1 * GIB), "6.1 GiB"),
        (141 * GIB, "141 GiB"),
        (3 * 1024 * GIB, "3.0 TiB"),
        (-3 * GIB, "-3.0 GiB"),
    ],
)
def test_a_size_is_written_the_way_people_read_it(count, text):
    assert format_bytes(count) == text


@given(st.integers(min_value=1, max_value=2**60))
def test_what_is_written_reads_back_within_what_was_rounded(count):
    assert parse_bytes(format_bytes(count)) == pytest.approx(count, rel=0.05)


@given(st.integers(min_value=1, max_value=2**53))
def test_a_bare_number_of_bytes_reads_back_exactly(count):
    assert parse_bytes(str(count)) == count
