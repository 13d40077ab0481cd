"""A lane process, seen from the driver."""

from __future__ import annotations

import errno
import os
import signal
from types import SimpleNamespace

import pytest

from cotune.sharing.lane import LAST_WORDS, LaneHandle, ended_how
from cotune.sharing.lane_options import LaneOptions
from cotune.trial import TrialSpec

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


def test_of_a_log_that_a_library_has_filled_only_the_end_is_read(tmp_path):
    with open(tmp_path / "log", "wb") as log:
        log.truncate(1 << 40)
        log.seek(0, os.SEEK_END)
        log.write(LOG.encode())
    assert ended_how(256, tmp_path / "log").endswith("code 1 (torch.AcceleratorError: CUDA error: out of memory)")


RUST = "memory allocation of 120000000 bytes failed\nmemory allocation of 3145728 bytes failed\n"
CPP = "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"
THREAD = (
    "terminate called after throwing an instance of 'std::system_error'\n  what():  Resource temporarily unavailable"
)
TENSORFLOW = "F0000 env.cc:84] Check failed: ret == 0 (11 vs. 0) Thread tf_data creation via pthread_create() failed."


@pytest.mark.parametrize(
    ("status", "said", "refused"),
    [
        (signal.SIGABRT, RUST, 120_000_000),
        (signal.SIGABRT, CPP, 0),
        (signal.SIGABRT, THREAD, 0),
        (signal.SIGABRT, TENSORFLOW + "\n    @     0x7fce3d7437e2  tsl::PThread::PThread()" * 2 * LAST_WORDS, 0),
        (signal.SIGABRT, "assertion failed\n", None),
        (signal.SIGABRT, RUST + "what the next attempt has said\n" * LAST_WORDS, None),
        (signal.SIGSEGV, RUST, None),
        (256, RUST, None),
        (None, RUST, None),
    ],
)
def test_what_native_code_was_refused_is_known_from_its_last_words(tmp_path, status, said, refused):
    handle = LaneHandle(SimpleNamespace(fork=lambda *_: None), LaneOptions(1, "cpu:0", "", 1, 1 << 30, 1))
    try:
        handle.start(TrialSpec(3, 0, {}, 0, tmp_path))
        (tmp_path / "log.txt").write_text(said)
        assert handle.refused(status, 3) == refused
        assert handle.refused(status, None) is None
    finally:
        handle.close()


def test_a_lane_that_cannot_be_opened_for_want_of_files_keeps_none_open(monkeypatch):
    options, real, made = LaneOptions(1, "cpu:0", "", 1, 1 << 30, 1, seats=4), os.eventfd, []

    def eventfd(*arguments):
        if len(made) == 3:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        made.append(None)
        return real(*arguments)

    monkeypatch.setattr(os, "eventfd", eventfd)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="Too many open files"):
        LaneHandle(None, options)
    assert os.listdir("/proc/self/fd") == before
