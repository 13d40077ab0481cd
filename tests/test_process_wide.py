"""Changes of a whole process that several of its threads want at once."""

from __future__ import annotations

import contextlib

import pytest

from cotune.process_wide import process_wide

done: list[str] = []


@process_wide
def changed(what):
    done.append(f"{what} made")
    try:
        yield
    finally:
        done.append(f"{what} undone")


@pytest.fixture(autouse=True)
def nothing_done():
    done.clear()


def test_the_first_within_makes_the_change_and_the_last_undoes_it():
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        first.enter_context(changed("it"))
        second.enter_context(changed("it"))
        first.close()
        assert done == ["it made"]
    assert done == ["it made", "it undone"]


def test_for_other_arguments_it_is_another_change():
    with changed("one"), changed("other"):
        assert done == ["one made", "other made"]
    assert done[2:] == ["other undone", "one undone"]


def test_it_is_undone_after_an_error_and_made_again():
    for _ in range(2):
        with contextlib.suppress(KeyError), changed("it"):
            raise KeyError
    assert done == ["it made", "it undone"] * 2
