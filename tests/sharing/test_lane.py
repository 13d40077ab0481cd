"""A lane process, seen from the driver."""

from __future__ import annotations

import time
from array import array
from unittest import mock

import pytest

from cotune.sharing.lane import LaneHandle, ended_how
from cotune.sharing.lane_options import LaneOptions

LOG = """What a trial has printed
Traceback (most recent call last):
  File "cuda_memory.py", line 61, in start
    square = torch.ones(64, 64, device="cuda:0")
torch.AcceleratorError: CUDA error: out of memory
For more detailed error information, run with CUDA_LOG_FILE=stderr
"""


def test_how_a_lane_ended_is_told_with_its_error_and_not_with_the_advice_behind_it(tmp_path):
    (tmp_path / "log").write_text(LOG)
    assert ended_how(256, tmp_path / "log").endswith("code 1 (torch.AcceleratorError: CUDA error: out of memory)")
    (tmp_path / "log").write_text("terminate called\nwhat(): no room\n")
    assert ended_how(256, tmp_path / "log").endswith("code 1 (what(): no room)")
    (tmp_path / "log").write_text(f"{LOG}what(): no room\n")
    assert ended_how(9, tmp_path / "log").endswith("SIGKILL (what(): no room)")


def test_what_is_excused_is_left_out_of_the_iteration_under_way_only():
    lane = LaneHandle(mock.Mock(), LaneOptions(0, "cpu:0", "", 1, 1 << 30, 1))
    lane._page[:2] = memoryview(array("d", [7.0, time.monotonic() - 100]))
    lane.excuse(60)
    lane.excuse(30)
    assert lane.quiet_seconds() == pytest.approx(10, abs=5)
    lane._page[1] = time.monotonic() - 50
    assert lane.quiet_seconds() == pytest.approx(50, abs=5)
    lane.excuse(1000)
    assert lane.quiet_seconds() < 5
    assert lane._excused[1] == pytest.approx(50, abs=5), "it has begun since, and may yet hang"
    lane.close()
