"""The MPS daemon: started, tried, ended with us. Without a GPU a shell script stands in for NVIDIA's program."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import cotune
from cotune.errors import DeviceError
from cotune.sharing import mps
from cotune.sharing.mps import MpsDaemon

UUID = "GPU-11111111-2222-3333-4444-555555555555"

STAND_IN = """#!/bin/sh
own="$CUDA_MPS_PIPE_DIRECTORY"
if [ "$1" = "-f" ]; then
    echo "began on $CUDA_VISIBLE_DEVICES" >>"$own/control.log"
    [ -z "$FAILS" ] || exit 1
    mkfifo "$own/quit" && touch "$own/control"
    read -r order <"$own/quit"
    echo "$order" >>"$ORDERS"
    exit 0
fi
[ -e "$own/control" ] || exit 1
while read -r line; do
    case "$line" in
        get_server_list) cat "$own/servers" 2>/dev/null ;;
        terminate_client*) echo "$line" >>"$ORDERS" ;;
        quit*) echo "$line" >"$own/quit" ;;
    esac
done
exit 0
"""
SERVED = "import os; open(os.environ['CUDA_MPS_PIPE_DIRECTORY'] + '/servers', 'w').write('4711\\n'); print(0)"


@pytest.fixture
def orders(tmp_path, monkeypatch):
    """The stand-in is what is found; the file says which orders it was given at its end."""
    program = tmp_path / "bin" / mps.CONTROL
    program.parent.mkdir()
    program.write_text(STAND_IN)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("ORDERS", str(tmp_path / "orders"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(mps, "_CLIENT", SERVED)
    return tmp_path / "orders"


def test_a_daemon_serves_its_gpu_until_it_is_closed(orders):
    daemon = MpsDaemon(UUID)
    folder = Path(daemon.environment()["CUDA_MPS_PIPE_DIRECTORY"])
    assert daemon.servers() == [4711]
    assert (folder / "control.log").read_text() == f"began on {UUID}\n"
    assert folder.stat().st_mode & 0o777 == 0o700
    daemon.close()
    assert orders.read_text() == "quit -t 1\n"
    assert not folder.exists()


def test_a_client_is_made_by_its_environment(orders):
    daemon = MpsDaemon(UUID)
    own = daemon.environment()
    assert set(own) == {"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "CUDA_VISIBLE_DEVICES"}
    assert own["CUDA_VISIBLE_DEVICES"] == UUID
    daemon.close()


def test_who_is_to_be_killed_is_taken_from_the_server_first(orders):
    daemon = MpsDaemon(UUID)
    daemon.dismiss(1234)
    assert orders.read_text() == "terminate_client 4711 1234\n"
    daemon.close()
    daemon.dismiss(1234)
    assert "1234" not in orders.read_text().partition("quit")[2], "there is no server any more"


def test_a_daemon_ends_with_the_process_that_started_it(orders):
    code = (
        "import os; from cotune.sharing import mps; "
        f"mps._CLIENT = {SERVED!r}; daemon = mps.MpsDaemon({UUID!r}); print(daemon._folder, flush=True); os._exit(1)"
    )
    root = Path(cotune.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=root)
    folder = Path(done.stdout.strip())
    assert folder.name.startswith("cotune-mps-"), done.stderr
    until = time.monotonic() + 10
    while folder.exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert not folder.exists()
    assert orders.read_text() == "quit -t 1\n"


def refusal():
    with pytest.raises(DeviceError, match="MPS cannot be used") as refused:
        MpsDaemon(UUID)
    assert "leave mps out" in refused.value.hint
    return refused.value.message


def test_it_is_said_why_there_is_no_daemon(orders, monkeypatch, tmp_path):
    monkeypatch.setattr(mps, "_CLIENT", "print(805)")
    assert "(805)" in refusal()
    with monkeypatch.context() as without:
        without.setattr(sys, "executable", str(tmp_path / "gone"))
        assert "(No such file or directory)" in refusal()
    monkeypatch.setattr(mps, "_CLIENT", "print(0)")
    assert "started no server" in refusal()
    monkeypatch.setattr(mps, "CLIENT_WITHIN", 0.2)
    monkeypatch.setattr(mps, "_CLIENT", "import threading; threading.Event().wait()")
    assert "no answer in 0.2 s" in refusal()
    monkeypatch.setattr(mps, "UP_WITHIN", 1.0)
    monkeypatch.setenv("FAILS", "1")
    assert f"control.log ends: began on {UUID}" in refusal()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp/theirs")
    assert "CUDA_MPS_PIPE_DIRECTORY is set" in refusal()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "is not installed" in refusal()
    assert list(tmp_path.glob("cotune-mps-*")) == []
