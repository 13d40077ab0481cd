"""The limit of open files, and how a run raises it."""

import os
import resource

import pytest

from cotune.demand import GIB
from cotune.engines.open_files import OTHER_FILES, are_scarce, files_left, files_of_a_lane, raised_limit
from cotune.sharing.lane import LaneHandle
from cotune.sharing.lane_options import LaneOptions


@pytest.fixture
def limit():
    """Sets the soft limit to the files in use and so many more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def to(more):
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + more, before[1]))

    yield to
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_files_are_scarce_where_the_limit_leaves_no_room_beside_what_else_a_run_opens(limit):
    limit(OTHER_FILES + 20)
    assert not are_scarce(20)
    assert are_scarce(21)


def test_within_a_raised_limit_as_many_can_be_opened_as_the_system_allows(limit):
    limit(OTHER_FILES)
    lowered = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = files_left()
    assert room > 0
    with raised_limit():
        assert not are_scarce(min(room, 1000))
        # Of another run in another thread.
        with raised_limit():
            pass
        assert not are_scarce(min(room, 1000))
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == lowered


def test_a_lane_counts_for_what_is_on_its_way_to_its_process_and_for_what_stays_open():
    class Zygote:
        def fork(self, lane, sock, page, verdicts):
            self.sent = 2 + len(verdicts)

    zygote, before = Zygote(), len(os.listdir("/proc/self/fd"))
    lane = LaneHandle(zygote, LaneOptions(0, "cpu:0", "", cores=1, quota=GIB, threads=1, seats=5))
    assert max(zygote.sent, len(os.listdir("/proc/self/fd")) - before) == files_of_a_lane(5)
    lane.close()
