"""What a zygote starts with."""

import os
import resource

import pytest

from cotune.script.own_modules import OwnModule
from cotune.sharing.zygote_payload import ZygotePayload


def test_what_is_written_is_read():
    own = {"mine": OwnModule("/mine.py", (1, 2), b"x = 1")}
    written = ZygotePayload(b"[]", ["torch"], ["script.py", "--fast"], own, {"random": b"3"}, b"train")
    fd = written.write()
    read = ZygotePayload.read(fd)
    os.close(fd)
    assert read._replace(trainable=bytes(read.trainable)) == written


def test_a_payload_that_there_is_no_room_for_leaves_no_file_open():
    before, limits = os.listdir("/proc/self/fd"), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            ZygotePayload(b"", [], [], {}, {}, bytes(1 << 17)).write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir("/proc/self/fd") == before
