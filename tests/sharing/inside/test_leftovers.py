"""What ended trials leave behind in their process."""

import os

from cotune.sharing.inside.leftovers import files_reach


def test_files_left_open_raise_the_number_up_to_which_they_reach_whatever_was_closed_below_them():
    before = files_reach()
    closed, left = ([os.open(os.devnull, os.O_RDONLY) for _ in range(count)] for count in (3, 80))
    for file in closed:
        os.close(file)
    assert files_reach() > max(left)
    for file in left:
        os.close(file)
    assert files_reach() == before
