import subprocess
import sys
import textwrap


def test_children_of_every_thread_are_killed():
    # In a process of its own, since all of its children end.
    script = textwrap.dedent(
        """
        import subprocess, threading
        from cotune.sharing.process_groups import kill_children
        begun, kept = threading.Event(), []

        def start():
            # It ends with this process, at the latest.
            kept.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE))
            begun.set()
            # A child of a thread that has ended is the main thread's.
            threading.Event().wait()

        threading.Thread(target=start, daemon=True).start()
        begun.wait()
        kill_children()
        print("killed")
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == "killed\n"
