"""A private MPS daemon for one GPU, with which the kernels of its lanes run at the same time, not in time slices.

Without MPS the GPU's driver never runs kernels of two processes at once. The price of MPS: a fatal fault in one client
may break the contexts of all clients, and a client that dies with work under way does break them, after which the
server takes no new client until all have left (NVIDIA, Multi-Process Service, "Error containment", "Client early
termination"; seen on an H100, driver 580). A lane that finds its context broken therefore dies without blaming its
trial, which goes on in a lane without MPS. A lane that is to be killed is first removed from the server.

The daemon has directories of its own, which other users cannot enter; compute mode and clocks stay unchanged.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cotune.errors import DeviceError
from cotune.sharing.logs import last_lines

CONTROL = "nvidia-cuda-mps-control"
UP_WITHIN = 5.0
CLIENT_WITHIN = 15.0
QUIT_WITHIN = 10.0
# A shell between us and the daemon, which ends the daemon when our end of its input is closed, even by our death.
_KEEPER = '"$0" -f & read -r _; echo quit -t 1 | "$0"; wait; rm -rf -- "$CUDA_MPS_PIPE_DIRECTORY"'
# A minimal MPS client, without torch, whose import takes a second.
_CLIENT = (
    "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); device = ctypes.c_int(); context = ctypes.c_void_p(); "
    "print(cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0) "
    "or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))"
)


class MpsDaemon:
    """A running daemon that has been seen to serve a client on its GPU.

    Args:
        uuid: The GPU's UUID.

    Raises:
        DeviceError: The daemon cannot be started here, or serves no client.
    """

    def __init__(self, uuid: str) -> None:
        if shutil.which(CONTROL) is None:
            raise _refused(f"{CONTROL} is not installed")
        if os.environ.get("CUDA_MPS_PIPE_DIRECTORY"):
            raise _refused("CUDA_MPS_PIPE_DIRECTORY is set, which makes lanes clients of that daemon")
        try:
            # Not below the run's folder: the path of a socket must be short.
            self._folder = Path(tempfile.mkdtemp(prefix="cotune-mps-"))
        except OSError as error:
            raise _refused(f"no folder can be made for it: {error.strerror or error}") from error
        try:
            self._own = {"CUDA_MPS_PIPE_DIRECTORY": str(self._folder), "CUDA_MPS_LOG_DIRECTORY": str(self._folder)}
            self._own["CUDA_VISIBLE_DEVICES"] = uuid
            self._keeper = subprocess.Popen(
                ["/bin/sh", "-c", _KEEPER, CONTROL],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | self._own,
                start_new_session=True,
            )
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise _refused(f"{CONTROL} cannot be started: {error.strerror or error}") from error
        try:
            self._await_daemon()
            self._try_client()
        except BaseException:
            self.close()
            raise

    def environment(self) -> dict[str, str]:
        """Environment variables that make a process a client, if set before it touches CUDA."""
        return dict(self._own)

    def servers(self) -> list[int]:
        """Process ids of the servers that run now.

        Raises:
            DeviceError: The daemon does not answer.
        """
        return [int(word) for word in self._ask("get_server_list").split() if word.isdigit()]

    def dismiss(self, process: int) -> None:
        """Ends a client's work on the GPU, so that it can be killed without harm to other clients.

        Args:
            process: The process id; need not be a client's.
        """
        with contextlib.suppress(DeviceError):
            for server in self.servers():
                self._ask(f"terminate_client {server} {process}")

    def _ask(self, what: str) -> str:
        try:
            done = subprocess.run(
                [CONTROL],
                input=f"{what}\n",
                capture_output=True,
                text=True,
                timeout=UP_WITHIN,
                env=os.environ | self._own,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise _refused(f"the daemon does not answer{self._last_words()}") from error
        return done.stdout

    def close(self) -> None:
        """Ends the daemon, its server and any clients left."""
        assert self._keeper.stdin is not None
        with contextlib.suppress(OSError):
            self._keeper.stdin.close()
        try:
            self._keeper.wait(QUIT_WITHIN)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.killpg(self._keeper.pid, 9)
            self._keeper.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _await_daemon(self) -> None:
        until = time.monotonic() + UP_WITHIN
        while True:
            try:
                self.servers()
                return
            except DeviceError:
                if time.monotonic() > until or self._keeper.poll() is not None:
                    raise
                time.sleep(0.05)

    def _try_client(self) -> None:
        """Makes a test process use the GPU; if no server runs afterwards, it has bypassed the daemon.

        Raises:
            DeviceError: The process failed, or no server was started for it.
        """
        try:
            done = subprocess.run(
                [sys.executable, "-S", "-c", _CLIENT],
                capture_output=True,
                text=True,
                timeout=CLIENT_WITHIN,
                env=os.environ | self.environment(),
                check=False,
            )
            said = done.stdout.strip() or done.stderr.strip()[-200:] or f"exit status {done.returncode}"
        except subprocess.TimeoutExpired:
            said = f"no answer in {CLIENT_WITHIN:g} s"
        except OSError as error:
            # For want of processes or files, say.
            said = error.strerror or str(error)
        if said != "0":
            raise _refused(f"a client of it cannot use the GPU ({said}){self._last_words()}")
        if not self.servers():
            raise _refused(f"it started no server for a client{self._last_words()}")

    def _last_words(self) -> str:
        for name in ("server.log", "control.log"):
            if lines := last_lines(self._folder / name):
                return f"; {name} ends: {lines[-1][:200]}"
        return ""


def _refused(why: str) -> DeviceError:
    return DeviceError(f"MPS cannot be used: {why}", hint="leave mps out: lanes then take slices of time on the GPU")
