import json
import subprocess
import sys
import textwrap

from cotune.demand import MIB


def test_threads_of_python_and_of_native_code_get_small_stacks_but_a_trials_own_a_full_one():
    # In a process of its own, since the size is that of the whole process.
    script = textwrap.dedent(
        """
        import ctypes, json, queue, threading
        from cotune.sharing.inside.stacks import Stacks
        libc, told, done = ctypes.CDLL(None), queue.Queue(), threading.Event()
        libc.pthread_self.restype = ctypes.c_ulong

        def tell(*_):
            attributes, size = ctypes.create_string_buffer(128), ctypes.c_size_t()
            libc.pthread_getattr_np(ctypes.c_ulong(libc.pthread_self()), attributes)
            libc.pthread_attr_getstacksize(attributes, ctypes.byref(size))
            told.put(size.value)
            # glibc would use its stack for the next thread.
            done.wait()

        def python():
            threading.Thread(target=tell).start()
            return told.get()

        run = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(tell)

        def native():
            libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, run, None)
            return told.get()

        found, stacks = {"before": [python(), native()]}, Stacks()
        with stacks.full():
            found["full before"] = python()
        stacks.shrink()
        found["small"] = [python(), native()]
        with stacks.full():
            found["full"] = python()
        found["small again"] = [python(), native()]
        threading.stack_size(16 << 20)
        found["set"] = python()
        print(json.dumps(found))
        done.set()
        """
    )
    command = ["bash", "-c", 'ulimit -Ss 8192; exec "$0" -c "$1"', sys.executable, script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == {
        "before": [8 * MIB] * 2,
        "full before": 8 * MIB,
        "small": [2 * MIB] * 2,
        "full": 8 * MIB,
        "small again": [2 * MIB] * 2,
        "set": 16 * MIB,
    }
