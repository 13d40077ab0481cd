"""A lane process, seen from the driver."""

from __future__ import annotations

from cotune.sharing.lane import ended_how

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
