"""The zygote process: imports once, forks lanes, reaps them, and ends with all of them when the driver is gone.

It stays single-threaded, never computes and never touches CUDA: only then is every forked process sound.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import functools
import gc
import importlib
import mmap
import multiprocessing.context
import multiprocessing.process
import os
import pickle
import select
import shutil
import signal
import socket
import sys
import tempfile
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from cotune.script import settings
from cotune.script.compiler_settings import COMPILER
from cotune.script.own_modules import Finder
from cotune.sharing.inside.dynamo import defer_dynamo
from cotune.sharing.inside.temporary import remove_temporary
from cotune.sharing.process_groups import kill_children, kill_group
from cotune.sharing.zygote_payload import ZygotePayload

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
# Most file descriptors that one message can carry (SCM_MAX_FD).
_MAX_FDS = 253
# Packages whose import is known not to start CUDA.
_SAFE = ("numpy", "cloudpickle", "cotune", "torch")


def main(control: int, payload: int) -> NoReturn:
    """Serves fork requests until the control socket ends.

    Args:
        control: A sequenced-packet socket to the driver.
        payload: A file in memory with a `ZygotePayload`.
    """
    # The driver's thread may have blocked signals, which is inherited.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    # As ps and top show it, in at most 15 bytes.
    libc.prctl(_PR_SET_NAME, b"cotune zygote")
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _note)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Imports take seconds; ending the zygote need not wait for them.
    signal.signal(signal.SIGTERM, _leave)
    sock = socket_of(control)
    if _is_over(sock):
        # The driver died before PR_SET_PDEATHSIG was set.
        _leave()
    told = ZygotePayload.read(payload)
    sys.argv[:] = told.arguments
    sys.meta_path.insert(0, Finder(told.own))
    os.set_inheritable(payload, False)
    # Imports make objects that stay: collecting garbage among them takes half a second in all, and finds next to none.
    gc.disable()
    fork_by_default()
    unlock_cached_properties()
    _preload(told.modules)
    # An imported package may have replaced them.
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _note)
    settings.take_over(told.script)
    safe = [name for name in told.modules if name.split(".")[0] in _SAFE]
    if safe != told.modules and _touched_cuda():
        # A package started CUDA at its import, after which lanes cannot be forked: start again without such packages.
        again = told._replace(modules=safe).write()
        os.set_inheritable(again, True)
        os.execv(sys.executable, [*sys.orig_argv[:-1], str(again)])
    signal.signal(signal.SIGTERM, _note)
    _make_scratch()
    gc.freeze()
    gc.enable()
    with contextlib.suppress(OSError):
        # If the driver is gone, serve() cleans up and ends at once.
        sock.send(pickle.dumps(("up", os.getpid(), _scratch)))
    Zygote(sock, wake_read, told.trainable, libc).serve()


def socket_of(descriptor: int) -> socket.socket:
    """A socket without a timeout, whatever default a script has set (`setdefaulttimeout`)."""
    sock = socket.socket(fileno=descriptor)
    sock.settimeout(None)
    return sock


def _is_over(sock: socket.socket) -> bool:
    poller = select.poll()
    poller.register(sock, 0)
    return bool(poller.poll(0))


_terminated = False
_scratch = ""


def _make_scratch() -> None:
    """Makes a directory for multiprocessing's sockets in all lanes, since killed lanes would leave their own behind."""
    global _scratch
    with contextlib.suppress(OSError):
        _scratch = tempfile.mkdtemp(prefix="cotune-")
        # Not cached: a trial may set TMPDIR for its own files.
        tempfile.tempdir = None
        vars(multiprocessing.process.current_process())["_config"]["tempdir"] = _scratch


def fork_by_default() -> None:
    """Makes multiprocessing fork by default, as before Python 3.14: other methods run the script, which lanes lack."""
    processes: Any = multiprocessing.context._default_context
    processes._default_context = multiprocessing.get_context("fork")


def unlock_cached_properties() -> None:
    """Makes each `functools.cached_property` from now on without a lock, as Python 3.12 does.

    There is one lock for all objects of a class. A lane-mate would wait for it while it has the turn that the lock's
    holder waits for.
    """
    if sys.version_info < (3, 12):
        vars(functools)["RLock"] = contextlib.nullcontext


def _note(number: int, _frame: Any) -> None:
    global _terminated
    if number == signal.SIGTERM:
        _terminated = True


def _leave(*_signal: Any) -> NoReturn:
    """Ends this process and all it has forked."""
    # Or a signal from now on would find its pipe closed, and say so in the log.
    signal.set_wakeup_fd(-1)
    # An imported package may have started a resource tracker, which ends once its pipe is closed.
    with contextlib.suppress(OSError):
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd > 2:
                with contextlib.suppress(OSError):
                    os.close(fd)
    kill_children()
    if _scratch:
        shutil.rmtree(_scratch, ignore_errors=True)
    remove_temporary()
    os._exit(0)


def _preload(modules: Sequence[str]) -> None:
    """Imports the trials' modules; an import that fails here fails again in the trial, where the user sees it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # torch first: other modules may use `torch._dynamo` as optimizers do, so it must be deferred before.
        for name in sorted(modules, key=lambda name: name != "torch"):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
            if name == "torch" and COMPILER not in modules:
                defer_dynamo()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def _touched_cuda() -> bool:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return True
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if "nvidia-uvm" in os.readlink(f"/proc/self/fd/{fd}"):
                return True
    return False


class Zygote:
    """Forks lanes and rehearsals on request and tells the driver when they are gone."""

    def __init__(self, sock: socket.socket, wake: int, trainable: bytes | memoryview, libc: Any) -> None:
        self._sock = sock
        self._wake = wake
        self._trainable = trainable
        self._libc = libc
        self._pid = os.getpid()
        self._lanes: dict[int, int] = {}
        # Messages for which the driver has no room yet: it may itself wait for room in our socket, and hear nothing.
        self._unsent: deque[bytes] = deque()

    def serve(self) -> NoReturn:
        # Not select(), which fails above descriptor 1,023: inherited ones keep their numbers from the driver.
        control, poller = self._sock.fileno(), select.poll()
        poller.register(self._wake, select.POLLIN)
        while not _terminated:
            poller.register(control, select.POLLIN | (select.POLLOUT if self._unsent else 0))
            ready = dict(poller.poll())
            if self._wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
                self._reap()
            self._send()
            if ready.get(control, 0) & ~select.POLLOUT and not self._request():
                break
        for pid in self._lanes:
            kill_group(pid)
        _leave()

    def _request(self) -> bool:
        try:
            message, ancillary, _, _ = self._sock.recvmsg(4096, socket.CMSG_SPACE(4 * _MAX_FDS))
        except ConnectionError:
            return False
        if not message:
            return False
        what, lane = pickle.loads(message)
        fds = array.array("i")
        for _, _, data in ancillary:
            fds.frombytes(data)
        for fd in fds:
            os.set_inheritable(fd, False)
        if what == "fork":
            self._fork(lane, f"cotune lane {lane}", self._serve_lane, fds)
        elif what == "rehearse":
            self._fork(lane, "cotune estimate", self._rehearse, fds)
        elif what == "kill":
            for pid in [pid for pid, other in self._lanes.items() if other == lane]:
                kill_group(pid)
                with contextlib.suppress(OSError):
                    # The process may have left its group.
                    os.kill(pid, signal.SIGKILL)
        return True

    def _fork(self, lane: int, name: str, serve: Callable[..., NoReturn], fds: Sequence[int]) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            # Too many processes, or no memory for another; running lanes go on.
            for fd in fds:
                os.close(fd)
            return self._tell("gone", lane, -(error.errno or 1))
        if pid == 0:
            self._libc.prctl(_PR_SET_NAME, name.encode())
            self._become(serve, fds)
        # In both processes, so that the group exists whichever runs first.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        for fd in fds:
            os.close(fd)
        self._lanes[pid] = lane
        self._tell("forked", lane, pid)

    def _serve_lane(self, sock: int, page: int, *verdicts: int) -> NoReturn:
        from cotune.sharing.inside.lane_main import serve

        view = memoryview(mmap.mmap(page, mmap.PAGESIZE)).cast("d")
        serve(socket_of(sock), view, verdicts, self._trainable)

    def _rehearse(self, answer: int, request: int) -> NoReturn:
        from cotune.sharing.rehearsal import serve

        serve(answer, request, self._trainable)

    def _become(self, serve: Callable[..., NoReturn], fds: Sequence[int]) -> NoReturn:
        code = 1
        try:
            os.setpgid(0, 0)
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != self._pid:
                # The zygote died before PR_SET_PDEATHSIG was set.
                os._exit(1)
            self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            self._sock.close()
            os.close(self._wake)
            serve(*fds)
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 1
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            lane = self._lanes.pop(pid, None)
            if lane is not None:
                kill_group(pid)
                self._tell("gone", lane, status)

    def _tell(self, what: str, lane: int, value: int) -> None:
        self._unsent.append(pickle.dumps((what, lane, value)))
        self._send()

    def _send(self) -> None:
        # It has no room for more, or is gone.
        with contextlib.suppress(OSError):
            while self._unsent:
                self._sock.send(self._unsent[0], socket.MSG_DONTWAIT)
                self._unsent.popleft()
