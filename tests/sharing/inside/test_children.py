"""Processes that a trial starts, to which the cap of its lane does not apply."""

import os
import resource
import subprocess
import sys

from cotune.sharing.cpu import CpuMemory
from cotune.sharing.inside.children import uncap_children

SHOW = "import resource; print(resource.getrlimit(resource.RLIMIT_DATA)[0])"


def soft():
    return resource.getrlimit(resource.RLIMIT_DATA)[0]


def told_by_child(work):
    """What a function returns in a process that has called `uncap_children` and has a cap, forked for that."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            memory = CpuMemory(1)
            memory.start()
            memory.set_quota(memory.held() + (256 << 20))
            uncap_children(memory)
            os.write(write, repr((soft(), work(memory), soft())).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as pipe:
        capped, found, after = eval(pipe.read())
    os.waitpid(child, 0)
    assert capped == after != resource.RLIM_INFINITY
    return found


def program(_memory=None):
    return int(subprocess.run([sys.executable, "-S", "-c", SHOW], capture_output=True, check=True).stdout)


def test_a_program_has_no_cap():
    assert told_by_child(program) == resource.RLIM_INFINITY


def test_a_forked_process_has_no_cap_and_gets_none_by_what_it_starts_and_loads_itself():
    def fork(memory):
        read, write = os.pipe()
        if (child := os.fork()) == 0:
            program()
            with memory.loading():
                pass
            os.write(write, str(soft()).encode())
            os._exit(0)
        os.close(write)
        with open(read) as pipe:
            found = int(pipe.read())
        os.waitpid(child, 0)
        return found

    assert told_by_child(fork) == resource.RLIM_INFINITY
