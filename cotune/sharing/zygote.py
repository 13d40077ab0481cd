"""The driver's handle on the zygote."""

from __future__ import annotations

import array
import contextlib
import json
import os
import pickle
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cotune.paths import working_directory
from cotune.process_wide import IN_LANE
from cotune.script.own_modules import OwnModule
from cotune.sharing.cpu import ALLOCATORS
from cotune.sharing.logs import last_lines
from cotune.sharing.process_groups import kill_group
from cotune.sharing.zygote_payload import ZygotePayload

CLOSES_WITHIN = 10.0
# Seconds for lanes without trials to end by themselves.
LEAVE_WITHIN = 4.0

_START = (
    "import sys, os, json; control, payload = map(int, sys.argv[1:]); "
    "size = int.from_bytes(os.pread(payload, 8, 0), 'little'); "
    "sys.path[:] = json.loads(os.pread(payload, size, 8)); "
    "from cotune.sharing.zygote_main import main; main(control, payload)"
)


class ZygoteHandle:
    """A process that forks lanes in about 10 ms each, with everything imported.

    The constructor does not wait for the imports; the first fork request does.

    Args:
        modules: Modules to import before forking.
        trainable: The pickled trainable, which all lanes read from the same memory.
        threads: Threads per operation in its lanes.
        log: File for the zygote's own output.
        own: The user's own modules by name, which are not read again.
        settings: What the script has set (`settings.of_script`).

    Attributes:
        is_up: Whether it has imported everything.
    """

    def __init__(
        self,
        modules: Sequence[str],
        trainable: bytes,
        threads: int,
        log: Path,
        own: Mapping[str, OwnModule] = MappingProxyType({}),
        settings: Mapping[str, bytes] = MappingProxyType({}),
    ) -> None:
        # Imports ignore entries of sys.path that are not strings, such as a pathlib.Path.
        path = [entry or working_directory() for entry in sys.path if isinstance(entry, str)]
        environment = ALLOCATORS | os.environ
        # torch.cuda.is_available() in the zygote must not start CUDA, or no lane could be forked any more.
        environment["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        environment[IN_LANE] = "1"
        # joblib, and so scikit-learn, takes n_jobs=-1 as LOKY_MAX_CPU_COUNT: without it every trial starts a pool of
        # processes.
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LOKY_MAX_CPU_COUNT"):
            environment[name] = str(threads)
        # GUI windows need the main thread; trials run in other threads.
        environment.setdefault("MPLBACKEND", "agg")
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        with contextlib.ExitStack() as opened, contextlib.ExitStack() as undo:
            self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.enter_context(self._sock)
            opened.enter_context(theirs)
            self._sock.settimeout(None)
            payload = ZygotePayload(json.dumps(path).encode(), modules, sys.argv, own, settings, trainable).write()
            opened.callback(os.close, payload)
            output = opened.enter_context(open(log, "ab"))
            self._process = subprocess.Popen(
                # -P: the working directory may hold a json.py.
                [sys.executable, *flags, "-P", "-c", _START, str(theirs.fileno()), str(payload)],
                pass_fds=[theirs.fileno(), payload],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
            undo.pop_all()
        self.is_up = False
        self._scratch = ""
        self._groups: dict[int, int] = {}
        self._log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        return self._sock.fileno()

    def fork(self, lane: int, sock: socket.socket, page: int, verdicts: Sequence[int]) -> None:
        """Requests a lane process, which inherits one end of a socket pair, the page's memory file and the eventfds."""
        self._ask("fork", lane, [sock.fileno(), page, *verdicts])

    def rehearse(self, number: int, answer: int, request: int) -> None:
        """Requests a rehearsal, which reads the memory file `request` and writes to the pipe `answer`.

        Its number must not be that of a lane.
        """
        self._ask("rehearse", number, [answer, request])

    def _ask(self, what: str, number: int, fds: Sequence[int]) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        with contextlib.suppress(ConnectionError):
            self._sock.sendmsg([pickle.dumps((what, number))], rights, socket.MSG_NOSIGNAL)

    def process_of(self, lane: int) -> int | None:
        """The process id of a lane; None if the zygote has not reported the fork, or the lane is gone."""
        return self._groups.get(lane)

    def kill(self, lane: int) -> None:
        """Requests that the whole process group of a lane or a rehearsal be killed."""
        # The socket may be closed by now.
        with contextlib.suppress(OSError):
            self._sock.send(pickle.dumps(("kill", lane)), socket.MSG_NOSIGNAL)

    def receive(self) -> tuple[str, int, Any] | None:
        """One message: `("forked", lane, pid)`, `("gone", lane, status)`, `("up", pid, scratch)`; None if it died.

        A negative status is the negative errno of a failed fork.
        """
        try:
            data = self._sock.recv(4096)
        except ConnectionError:
            return None
        if not data:
            return None
        message: tuple[str, int, Any] = pickle.loads(data)
        if message[0] == "up":
            self.is_up, self._scratch = True, message[2]
        elif message[0] == "forked":
            self._groups[message[1]] = message[2]
        elif message[0] == "gone":
            self._groups.pop(message[1], None)
        return message

    @property
    def killed_by(self) -> int:
        """The signal that ended the process, known after `close()`; 0 if none did."""
        return max(0, -(self._process.returncode or 0))

    def last_words(self) -> str:
        """The end of its log, for an error message."""
        return " | ".join(last_lines(self._log)[-3:])

    def await_ends(self, lanes: Iterable[int]) -> None:
        """Waits, though not for ever, until lanes that were told to end are gone."""
        leaving, deadline = set(lanes), time.monotonic() + LEAVE_WITHIN
        poller = select.poll()
        poller.register(self._sock, select.POLLIN)
        while leaving & self._groups.keys() and poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            if self.receive() is None:
                return

    def close(self) -> None:
        """Ends the zygote, its lanes and all processes of the lanes."""
        self._sock.close()
        self._process.terminate()
        try:
            self._process.wait(timeout=CLOSES_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.returncode:
            # The zygote was killed, and its lanes with it, but not the processes that trials have started in them.
            for group in self._groups.values():
                kill_group(group)
        if self._scratch:
            # A zygote that was killed has not removed it.
            shutil.rmtree(self._scratch, ignore_errors=True)
