"""A real zygote: it forks lanes, says when they are gone, and takes everything with it at the end."""

import concurrent.futures
import errno
import fcntl
import functools
import json
import logging
import multiprocessing
import os
import pickle
import resource
import select
import signal
import socket
import sys
import threading
from types import MappingProxyType
from unittest import mock

import pytest

from cotune.demand import GIB
from cotune.script import settings
from cotune.script.pickling import Series
from cotune.sharing import wire, zygote_main
from cotune.sharing.lane import LaneHandle, ended_how
from cotune.sharing.lane_options import LaneOptions, TrialOptions
from cotune.sharing.wire import Kind
from cotune.sharing.zygote import CLOSES_WITHIN, ZygoteHandle
from cotune.trial import TrialSpec

PATIENCE = 30


def trainable(config):
    """Starts a process of its own, if it should, tells both process ids and never ends."""
    import json
    import logging
    import multiprocessing.util
    import os
    import subprocess
    import sys
    import tempfile
    import threading

    import cotune

    child = None
    if "child" in config:
        child = subprocess.Popen([sys.executable, "-c", config["child"]], stdout=subprocess.PIPE)
        child.stdout.readline()
    threads = [os.environ["OMP_NUM_THREADS"], os.environ["LOKY_MAX_CPU_COUNT"]]
    told = {"lane": os.getpid(), "child": child.pid if child else None, "threads": threads}
    told |= {"arenas": os.environ["MIMALLOC_ARENA_EAGER_COMMIT"]}
    told |= {"backend": os.environ["MPLBACKEND"], "root": bool(logging.getLogger().handlers)}
    told |= {"level": logging.getLogger("cotune-test").level, "argv": sys.argv}
    told |= {"scratch": multiprocessing.util.get_temp_dir(), "is_tmp_known": tempfile.tempdir is not None}
    cotune.report({"loss": 0.0, "told": json.dumps(told)})
    threading.Event().wait()


# Each says that it is there, and then lasts.
STAYS = "import time; print(flush=True); time.sleep(1000)"
LEAVES_SESSION = f"import os; os.setsid(); {STAYS}"
IGNORES_SIGNALS = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {LEAVES_SESSION}"


class Process:
    """Any process, watched until it ends."""

    def __init__(self, pid):
        self.pid = pid
        self.fd = os.pidfd_open(pid)

    def is_gone(self, timeout=PATIENCE):
        return bool(select.select([self.fd], [], [], timeout)[0])


@pytest.fixture
def watch():
    watched = []

    def start(pid):
        watched.append(Process(pid))
        return watched[-1]

    yield start
    for process in watched:
        os.close(process.fd)


class World:
    """A zygote and its lanes, with a limit on every wait."""

    def __init__(self, folder, blob=None, script=MappingProxyType({})):
        self.folder = folder
        self.series = Series(trainable, "it")
        blob = self.series.first if blob is None else blob
        modules, log = ["cotune.sharing.inside.lane_main"], folder / "zygote.log"
        self.zygote = ZygoteHandle(modules, blob, 3, log, settings=script)
        self.lanes = []

    def options(self, lane):
        return LaneOptions(
            lane=lane,
            device="cpu:0",
            uuid="",
            cores=1,
            quota=GIB,
            threads=1,
            trials=TrialOptions("loss"),
            log=self.folder / f"lane-{lane}.log",
        )

    def message(self, wanted):
        """The next message of this kind from the zygote."""
        while True:
            assert select.select([self.zygote], [], [], PATIENCE)[0], f"no {wanted!r}: {self.zygote.last_words()}"
            got = self.zygote.receive()
            assert got is not None, self.zygote.last_words()
            if got[0] == wanted:
                return got

    def open(self, lane=0, dismiss=None):
        """A lane that is ready, and its process id."""
        handle = LaneHandle(self.zygote, self.options(lane), dismiss)
        self.lanes.append(handle)
        what, number, pid = self.message("forked")
        assert (what, number) == ("forked", lane)
        self.frame(handle, Kind.READY)
        return handle, pid

    def frame(self, handle, wanted):
        """The payload of the next frame of this kind from a lane."""
        while True:
            assert select.select([handle], [], [], PATIENCE)[0], f"lane {handle.lane} said no {wanted.name}"
            received = handle.receive()
            assert received is not None, f"lane {handle.lane} ended: {self.zygote.last_words()}"
            for kind, payload in received:
                if kind == wanted:
                    return payload

    def run(self, handle, **config):
        """Starts a trial; gives what it tells about itself."""
        folder = self.folder / "trial"
        handle.start(TrialSpec(handle.lane, 0, config, 0, folder))
        report = wire.decode_report(self.frame(handle, Kind.REPORT))
        return json.loads(json.loads(report.line)["metrics"]["told"])

    def close(self):
        self.zygote.close()
        for handle in self.lanes:
            handle.close()


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    made.close()


def test_the_zygote_says_when_it_is_up(world):
    assert world.message("up")[1] == world.zygote.pid


def test_lanes_are_forked_on_request_each_a_process_of_its_own(world, watch):
    (_, first), (_, second) = world.open(0), world.open(1)
    assert len({first, second, world.zygote.pid, os.getpid()}) == 4
    assert not watch(first).is_gone(0)
    assert not watch(second).is_gone(0)


def test_a_lane_is_a_process_group_of_its_own(world):
    _, pid = world.open()
    assert os.getpgid(pid) == pid
    assert os.getpgid(world.zygote.pid) != pid


def test_a_lane_asked_for_before_the_zygote_is_up_is_forked_when_it_is(tmp_path):
    world = World(tmp_path)
    handle = LaneHandle(world.zygote, world.options(7))
    world.lanes.append(handle)
    assert world.message("up")
    assert world.message("forked")[1] == 7
    world.close()


def test_lanes_have_the_threads_that_the_zygote_was_told(world):
    handle, _ = world.open()
    assert world.run(handle)["threads"] == ["3", "3"]


@pytest.mark.parametrize("is_set_up", [True, False])
def test_lanes_log_what_the_driver_would_show(tmp_path, monkeypatch, is_set_up):
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()] * is_set_up)
    monkeypatch.setattr(logging.getLogger("cotune-test"), "level", logging.DEBUG)
    world = World(tmp_path, script=settings.of_script())
    try:
        handle, _ = world.open()
        told = world.run(handle)
        assert (told["root"], told["level"]) == ((True, logging.DEBUG) if is_set_up else (False, logging.NOTSET))
    finally:
        world.close()


@pytest.mark.parametrize(
    ("told", "variable", "chosen", "used"),
    [
        # An allocator makes no more memory writable than it uses.
        ("arenas", "MIMALLOC_ARENA_EAGER_COMMIT", None, "0"),
        ("arenas", "MIMALLOC_ARENA_EAGER_COMMIT", "1", "1"),
        # Pyplot draws without a window.
        ("backend", "MPLBACKEND", None, "agg"),
        ("backend", "MPLBACKEND", "pdf", "pdf"),
    ],
)
def test_libraries_of_a_lane_are_set_up_for_lanes_unless_told_otherwise(
    tmp_path, monkeypatch, told, variable, chosen, used
):
    monkeypatch.delenv(variable, raising=False)
    if chosen:
        monkeypatch.setenv(variable, chosen)
    world = World(tmp_path)
    try:
        handle, _ = world.open()
        assert world.run(handle)[told] == used
    finally:
        world.close()


def test_lanes_have_the_arguments_of_the_script(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--width", "64 wide"])
    world = World(tmp_path)
    handle, _ = world.open()
    assert world.run(handle)["argv"] == ["train.py", "--width", "64 wide"]
    world.close()


def test_a_path_of_the_script_that_is_no_string_is_no_harm(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])
    World(tmp_path).close()


def test_where_the_script_was_started_may_be_gone(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    (tmp_path / "gone").rmdir()
    world = World(tmp_path)
    handle, pid = world.open()
    assert world.run(handle)["lane"] == pid
    world.close()


def test_a_driver_may_have_more_than_1023_files_open(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 2048:
        pytest.skip(f"this process may have {before[1]} files open at most")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, before[1]))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1024)]
    world = World(tmp_path)
    try:
        assert world.zygote.receive()[0] == "up"
        world.zygote.rehearse(-1, files[0], files[0])
        assert (world.zygote.receive() or ["dead"])[0] == "forked", world.zygote.last_words()
    finally:
        for fd in files:
            os.close(fd)
        world.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_killed_lane_is_gone_with_its_signal(world, watch):
    _, pid = world.open(4)
    process = watch(pid)
    world.zygote.kill(4)
    _, lane, status = world.message("gone")
    assert lane == 4
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert process.is_gone()


def test_killing_a_lane_leaves_the_others_alone(world, watch):
    world.open(0)
    other, second = world.open(1)
    world.zygote.kill(0)
    assert world.message("gone")[1] == 0
    assert not watch(second).is_gone(0)
    assert world.run(other)["lane"] == second


def test_killing_a_lane_that_is_not_there_is_no_harm(world):
    world.zygote.kill(99)
    world.open(0)


def test_a_lane_that_leaves_is_gone_with_status_0(world):
    handle, _ = world.open(2)
    handle.exit()
    assert world.message("gone") == ("gone", 2, 0)


def test_a_lane_whose_driver_has_closed_its_socket_leaves(world):
    handle, _ = world.open(2)
    world.open(3)
    handle._sock.shutdown(2)
    assert world.message("gone") == ("gone", 2, 0)


def test_a_lane_that_crashes_is_gone_with_the_signal_it_died_of(world):
    _, pid = world.open(2)
    os.kill(pid, signal.SIGSEGV)
    _, lane, status = world.message("gone")
    assert lane == 2
    assert os.WTERMSIG(status) == signal.SIGSEGV


def test_killing_a_lane_takes_the_processes_of_its_trial_with_it(world, watch):
    handle, _ = world.open()
    child = watch(world.run(handle, child=STAYS)["child"])
    world.zygote.kill(0)
    assert child.is_gone()


@pytest.mark.parametrize("how", ["lane killed", "lane died", "run over"])
def test_shared_memory_of_a_killed_trial_is_removed(world, watch, tmp_path, how):
    (tmp_path / "made").mkdir()
    # Until it has begun its own program, the tracker is a process like any other.
    code = f"""
from multiprocessing import resource_tracker, shared_memory; import os, time
made = shared_memory.SharedMemory(create=True, size=1)
tracker = resource_tracker._resource_tracker._pid
while b"resource_tracker" not in open(f"/proc/{{tracker}}/cmdline", "rb").read():
    os.sched_yield()
os.mkdir("{tmp_path}/made/" + made.name)
os.mkdir(f"{tmp_path}/made/{{tracker}}")
print(flush=True); time.sleep(1000)
"""
    handle, pid = world.open()
    world.run(handle, child=code)
    name, tracker = sorted(os.listdir(tmp_path / "made"), key=str.isdecimal)
    assert os.path.exists(f"/dev/shm/{name}")
    watched = watch(int(tracker))
    if how == "lane killed":
        world.zygote.kill(handle.lane)
    elif how == "lane died":
        os.kill(pid, signal.SIGKILL)
    else:
        world.zygote.close()
    assert watched.is_gone()
    assert not os.path.exists(f"/dev/shm/{name}")


@pytest.mark.parametrize("is_killed", [False, True], ids=["closed", "killed"])
def test_where_multiprocessing_keeps_its_sockets_is_removed_at_the_end(world, is_killed):
    handle, _ = world.open()
    told = world.run(handle)
    scratch = told["scratch"]
    assert os.path.isdir(scratch)
    # A trial may name another place for what is its own.
    assert not told["is_tmp_known"]
    if is_killed:
        os.kill(world.zygote.pid, signal.SIGKILL)
    world.zygote.close()
    assert not os.path.exists(scratch)


def test_a_lane_that_dies_takes_the_processes_of_its_trial_with_it(world, watch):
    handle, pid = world.open()
    child = watch(world.run(handle, child=STAYS)["child"])
    os.kill(pid, signal.SIGKILL)
    assert world.message("gone")[1] == 0
    assert child.is_gone()


@pytest.mark.parametrize(
    "child",
    [None, STAYS, LEAVES_SESSION, IGNORES_SIGNALS],
    ids=["none", "in its group", "in a session of its own", "ignoring signals"],
)
def test_the_end_of_the_control_socket_takes_lanes_and_their_processes_with_it(world, watch, child):
    handle, pid = world.open()
    told = world.run(handle, **({"child": child} if child else {}))
    processes = [watch(pid)] + ([watch(told["child"])] if child else [])
    world.zygote.close()
    assert [process.is_gone() for process in processes] == [True] * len(processes)


def test_the_end_of_the_control_socket_takes_daemons_that_a_trial_left_behind(world, watch, tmp_path):
    handle, _ = world.open()
    marker = tmp_path / "daemon"
    os.mkfifo(marker)
    daemon = (
        f"import os\nif os.fork():\n    print(flush=True); os._exit(0)\nos.setsid()\nif os.fork():\n    os._exit(0)\n"
        f"open({str(marker)!r}, 'w').write(str(os.getpid()))\n{STAYS}"
    )
    world.run(handle, child=daemon)
    process = watch(int(marker.read_text()))
    world.zygote.close()
    assert process.is_gone()


def test_several_lanes_end_together(world, watch):
    processes = [watch(world.open(number)[1]) for number in range(4)]
    world.zygote.close()
    assert all(process.is_gone() for process in processes)


def test_a_terminated_zygote_takes_its_lanes_with_it(world, watch):
    handle, pid = world.open()
    processes = [watch(pid), watch(world.run(handle, child=LEAVES_SESSION)["child"])]
    os.kill(world.zygote.pid, signal.SIGTERM)
    assert all(process.is_gone() for process in processes)


def test_a_killed_zygote_takes_its_lanes_with_it(world, watch):
    processes = [watch(world.open(number)[1]) for number in range(2)]
    os.kill(world.zygote.pid, signal.SIGKILL)
    assert all(process.is_gone() for process in processes)


def test_what_trials_have_started_does_not_outlive_a_killed_zygote(world, watch):
    handle, _ = world.open()
    child = watch(world.run(handle, child=STAYS)["child"])
    os.kill(world.zygote.pid, signal.SIGKILL)
    world.zygote.close()
    assert child.is_gone()


def test_a_zygote_whose_driver_died_while_it_started_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    zygote = ZygoteHandle([], b"", 1, tmp_path / "zygote.log")
    zygote._sock.close()
    assert zygote._process.wait(PATIENCE) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["zygote.log"]


@pytest.mark.parametrize("fails", ["os.memfd_create", "subprocess.Popen"])
def test_a_zygote_that_cannot_be_started_leaves_no_file_open(tmp_path, monkeypatch, fails):
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(fails, mock.Mock(side_effect=OSError(errno.EMFILE, os.strerror(errno.EMFILE))))
    # As long as the error is kept, so are the variables of its frames.
    with pytest.raises(OSError, match=os.strerror(errno.EMFILE)) as refused:
        ZygoteHandle([], b"", 1, tmp_path / "zygote.log")
    assert os.listdir("/proc/self/fd") == before
    assert refused.tb is not None


def test_the_driver_sees_a_killed_zygote_as_the_end_of_messages(world):
    world.message("up")
    os.kill(world.zygote.pid, signal.SIGKILL)
    assert select.select([world.zygote], [], [], PATIENCE)[0]
    assert world.zygote.receive() is None


def test_a_lane_is_dismissed_by_its_device_once_and_killed_when_that_is_done(world, watch):
    told, may_go = [], threading.Event()

    def dismiss(process):
        told.append(process)
        assert may_go.wait(PATIENCE)

    handle, pid = world.open(dismiss=dismiss)
    process = watch(pid)
    for _ in range(2):
        handle.kill()
    assert not process.is_gone(0)
    may_go.set()
    assert process.is_gone()
    assert told == [pid]


def test_what_is_left_of_a_lane_that_dies_by_itself_is_not_killed_by_us(world):
    handle, _ = world.open()
    handle.bury()
    assert not handle.is_killed
    handle.kill()
    assert handle.is_killed


def test_asking_a_dead_zygote_is_no_error(world, watch):
    world.message("up")
    process = watch(world.zygote.pid)
    os.kill(world.zygote.pid, signal.SIGKILL)
    assert process.is_gone()
    world.zygote.kill(0)
    world.lanes.append(LaneHandle(world.zygote, world.options(0)))


def test_a_zygote_does_not_hear_ctrl_c(world):
    world.message("up")
    os.kill(world.zygote.pid, signal.SIGINT)
    world.open()


def test_closing_leaves_no_process(world, watch):
    world.open()
    process = watch(world.zygote.pid)
    world.zygote.close()
    assert process.is_gone(0)


def test_closing_does_not_wait_for_what_it_imports(tmp_path, monkeypatch, watch):
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    (tmp_path / "never_imported.py").write_text(
        f"import subprocess, sys, time\nchild = subprocess.Popen([sys.executable, '-c', {STAYS!r}])\n"
        f"open({str(ready)!r}, 'w').write(str(child.pid))\ntime.sleep(1000)"
    )
    monkeypatch.syspath_prepend(tmp_path)
    zygote = ZygoteHandle(["never_imported"], b"", 1, tmp_path / "zygote.log")
    process, child = watch(zygote.pid), watch(int(ready.read_text()))
    closing = threading.Thread(target=zygote.close)
    closing.start()
    assert process.is_gone(CLOSES_WITHIN / 2)
    assert child.is_gone()
    closing.join()


def test_a_module_that_cannot_be_imported_is_no_harm(tmp_path):
    zygote = ZygoteHandle(["no_such_module_at_all"], b"", 1, tmp_path / "zygote.log")
    assert select.select([zygote], [], [], PATIENCE)[0]
    assert zygote.receive()[:2] == ("up", zygote.pid)
    zygote.close()


def test_its_last_words_are_the_end_of_its_log(world, tmp_path):
    (tmp_path / "zygote.log").write_text("one\ntwo\nthree\nMemoryError\n")
    assert world.zygote.last_words() == "two | three | MemoryError"


def test_a_trainable_that_cannot_be_loaded_fails_its_trial_and_not_the_lane(tmp_path):
    world = World(tmp_path, b"no pickle")
    handle, _ = world.open()
    handle.start(TrialSpec(0, 0, {}, 0, tmp_path / "trial"))
    trial, outcome, _, name, *_ = pickle.loads(world.frame(handle, Kind.ENDED))
    assert (trial, outcome, name) == (0, "failed", "NotPicklable")
    handle.resize(2 * GIB)
    assert pickle.loads(world.frame(handle, Kind.RESIZED)) == (2 * GIB,)
    world.close()


def test_a_config_that_cannot_be_loaded_fails_its_trial_and_not_the_lane(world):
    class Unloadable:
        def __reduce__(self):
            return int, ("no number",)

    handle, _ = world.open()
    spec = TrialSpec(0, 0, {"x": Unloadable()}, 0, world.folder / "trial")
    handle.start(wire.sendable(spec, world.series))
    trial, outcome, *_ = pickle.loads(world.frame(handle, Kind.ENDED))
    assert (trial, outcome) == (0, "failed")


def test_a_lane_has_neither_the_zygotes_sockets_nor_those_of_other_lanes(world):
    world.open(0)
    handle, pid = world.open(1)
    world.run(handle)
    links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    assert len([link for link in links if link.startswith("socket:")]) == 1


def test_a_trials_subprocess_does_not_hold_the_lanes_socket_open(world):
    handle, _ = world.open()
    child = world.run(handle, child=STAYS)["child"]
    links = [os.readlink(f"/proc/{child}/fd/{fd}") for fd in os.listdir(f"/proc/{child}/fd")]
    assert not [link for link in links if link.startswith("socket:")]


def test_a_fork_that_fails_is_told_and_costs_no_other_lane_anything(world, monkeypatch):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    zygote = zygote_main.Zygote(ours, 0, memoryview(b""), None)
    given = os.eventfd(0)

    def refused():
        raise BlockingIOError(errno.EAGAIN, "try again")

    monkeypatch.setattr(os, "fork", refused)
    zygote._fork(7, "cotune lane 7", zygote._serve_lane, [given])
    assert pickle.loads(theirs.recv(4096)) == ("gone", 7, -errno.EAGAIN)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(given)
    assert "no process could be started for it" in ended_how(-errno.EAGAIN, world.folder / "no.log")
    ours.close()
    theirs.close()


def test_however_many_lanes_a_driver_asks_for_at_once_it_and_the_zygote_do_not_wait_for_each_other(
    tmp_path, monkeypatch
):
    made = socket.socketpair

    def narrow(*kind):
        pair = made(*kind)
        for side in pair:
            # The least that there can be: room for a few messages.
            side.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        return pair

    def ask():
        for lane in range(40):
            ours, theirs = made()
            with ours, theirs:
                world.zygote.fork(lane, theirs, page, [])

    monkeypatch.setattr(socket, "socketpair", narrow)
    world, page = World(tmp_path), os.memfd_create("page")
    os.ftruncate(page, 4096)
    asking = threading.Thread(target=ask)
    asking.start()
    asking.join(PATIENCE)
    try:
        assert not asking.is_alive()
        assert sorted(world.message("gone")[1] for _ in range(40)) == list(range(40))
    finally:
        world.close()
        asking.join()
        os.close(page)


def test_a_driver_that_is_sent_no_sigchld_hears_of_a_lane_that_dies(tmp_path):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        world = World(tmp_path)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    _, pid = world.open()
    os.kill(pid, signal.SIGKILL)
    assert world.message("gone")[1] == 0
    world.close()


def test_time_limits_of_a_scripts_own_sockets_are_not_those_of_lanes(tmp_path):
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(10.0)
    try:
        world = World(tmp_path)
        handle, _ = world.open()
    finally:
        socket.setdefaulttimeout(before)
    assert world.zygote._sock.gettimeout() is None
    assert handle._sock.gettimeout() is None
    # Set by one end, the other end has it too.
    assert not fcntl.fcntl(handle.fileno(), fcntl.F_GETFL) & os.O_NONBLOCK
    world.close()


def test_a_json_py_of_the_project_is_not_taken_for_pythons(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise ImportError('mine')")
    monkeypatch.chdir(tmp_path)
    world = World(tmp_path)
    world.open()
    world.close()


def test_what_a_lane_does_not_read_yet_holds_up_nobody(world):
    ballast = "x" * (16 << 20)
    handle, _ = world.open()
    # Its main thread is stopped, and its socket takes two of these at most.
    os.kill(world.zygote.process_of(0), signal.SIGSTOP)
    handle.start(TrialSpec(0, 0, {"ballast": ballast}, 0, world.folder / "trial"))
    handle.tell(Kind.STOP, 0)
    os.kill(world.zygote.process_of(0), signal.SIGCONT)
    world.frame(handle, Kind.ENDED)


def test_closing_a_lane_that_reads_nothing_ends_the_thread_that_sends(world):
    handle, _ = world.open()
    os.kill(world.zygote.process_of(0), signal.SIGSTOP)
    before = set(threading.enumerate())
    handle.start(TrialSpec(0, 0, {"ballast": "x" * (16 << 20)}, 0, world.folder / "trial"))
    (sender,) = set(threading.enumerate()) - before
    world.lanes.remove(handle)
    handle.close()
    sender.join(PATIENCE)
    assert not sender.is_alive()


def test_multiprocessing_forks_in_lanes_where_nobody_chooses(monkeypatch):
    processes = multiprocessing.context._default_context
    monkeypatch.setattr(
        processes, "_default_context", multiprocessing.get_context("forkserver")
    )  # as Python 3.14 has it
    monkeypatch.setattr(processes, "_actual_context", None)
    zygote_main.fork_by_default()
    assert multiprocessing.get_start_method(allow_none=True) is None  # it can still be chosen
    assert multiprocessing.get_context().get_start_method() == "fork"


def test_a_cached_property_is_computed_for_two_objects_at_once_as_from_python_3_12_on(monkeypatch):
    monkeypatch.setattr(functools, "RLock", threading.RLock, raising=False)
    zygote_main.unlock_cached_properties()
    both = threading.Barrier(2)

    class Experiment:
        @functools.cached_property
        def trained(self):
            return both.wait(PATIENCE)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = [pool.submit(getattr, Experiment(), "trained") for _ in range(2)]
        assert sorted(one.result() for one in found) == [0, 1]
