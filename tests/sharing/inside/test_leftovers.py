"""What ended trials leave behind in their process."""

import os
from types import SimpleNamespace

import pytest

from cotune.sharing.inside.leftovers import open_files


@pytest.mark.parametrize("knows", [True, False])
def test_files_left_open_are_counted_whatever_was_closed_below_them(monkeypatch, knows):
    if not knows:
        # As before Linux 6.2.
        monkeypatch.setattr(os, "stat", lambda path: SimpleNamespace(st_size=0))
    before = open_files()
    closed, left = ([os.open(os.devnull, os.O_RDONLY) for _ in range(count)] for count in (40, 70))
    for file in closed:
        os.close(file)
    assert open_files() == before + 70
    for file in left:
        os.close(file)
    assert open_files() == before
