"""Drivers as processes of their own: killed, interrupted, resumed, two at once, started from any kind of script."""

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import cotune
from cotune.driver.signals import ECHO

ROOT = Path(cotune.__file__).parents[1]

# No `if __name__ == "__main__"`, on purpose. Each trial waits at step 3 until the file `go` is there.
SCRIPT = """
import json, os, select, sys
import cotune

folder = sys.argv[1]
options = json.loads(sys.argv[2])

def train(config):
    start = 0
    if (saved := cotune.restore()) is not None:
        start = int((saved / "step").read_text()) + 1
    for step in range(start, 6):
        if step == 3 and cotune.trial_id() >= 2 and not os.path.exists(folder + "/go"):
            print("waiting", cotune.trial_id(), flush=True)
            with open(folder + "/waiting", "w") as pipe:
                pipe.write(f"{cotune.trial_id()} {os.getpid()}\\n")
            while not os.path.exists(folder + "/go"):
                select.select([], [], [], 0.05)
                if options.get("boundaries"):
                    cotune.report({"loss": 9.0}, step=2)
        cotune.report({"loss": config["x"] + 1 / (step + 1), "pid": os.getpid()}, step=step)
        with cotune.checkpoint() as path:
            (path / "step").write_text(str(step))

results = cotune.run(
    train, {"x": cotune.uniform(0, 1)}, metric="loss", trials=6, devices=["cpu:0@4GiB"], lanes=2,
    storage=folder, name="it", resume=True, dashboard=options.get("dashboard", False), seed=7,
)
print(json.dumps({
    "interrupted": results.interrupted,
    "trials": [[t.id, str(t.state), t.attempts, [h["step"] for h in t.history], t.config["x"]] for t in results],
}))
"""


class Driver:
    def __init__(self, folder, **options):
        folder.mkdir(exist_ok=True)
        self.folder = folder
        script = folder / "script.py"
        script.write_text(SCRIPT)
        pipe = folder / "waiting"
        if not pipe.exists():
            os.mkfifo(pipe)
        self._pipe = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(folder), json.dumps(options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def wait_until_waiting(self, count):
        """Until that many trials wait at step 3; gives their pids."""
        heard = ""
        while heard.count("\n") < count:
            assert select.select([self._pipe], [], [], 60)[0], self.process.communicate(timeout=5)
            try:
                chunk = os.read(self._pipe, 4096).decode()
            except BlockingIOError:
                continue
            if not chunk:
                select.select([], [], [], 0.02)  # nobody has opened the other end
            heard += chunk
        return [int(line.split()[1]) for line in heard.splitlines()]

    def go(self):
        (self.folder / "go").touch()

    def finish(self):
        out, err = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, err
        return json.loads(out.splitlines()[-1])

    @property
    def events(self):
        return [json.loads(line) for line in (self.folder / "it" / "events.jsonl").read_text().splitlines()]


def test_after_kill_9_no_process_is_left_and_resume_repeats_no_finished_trial(tmp_path, wait_gone):
    driver = Driver(tmp_path / "run")
    lanes = driver.wait_until_waiting(2)
    driver.process.kill()
    driver.process.communicate()
    wait_gone(lanes)
    ended = [event["trial"] for event in driver.events if event["event"] == "end"]
    assert sorted(ended) == [0, 1]
    driver.go()
    again = Driver(tmp_path / "run").finish()
    assert [trial[:2] for trial in again["trials"]] == [[n, "done"] for n in range(6)]
    assert [trial[2] for trial in again["trials"]] == [1, 1, 2, 2, 1, 1]
    assert all(trial[3] == list(range(6)) for trial in again["trials"])
    assert len({trial[4] for trial in again["trials"]}) == 6
    events = driver.events
    assert [event["trial"] for event in events if event["event"] == "end"].count(0) == 1
    resumed = [e["step"] for e in events if e["event"] == "report" and e["trial"] == 2]
    assert resumed == list(range(6)), "it went on from its checkpoint"


def test_ctrl_c_once_stops_at_the_next_boundary_and_returns_what_there_is(tmp_path, wait_gone):
    driver = Driver(tmp_path / "run", boundaries=True)
    lanes = driver.wait_until_waiting(2)
    os.killpg(driver.process.pid, signal.SIGINT)
    result = driver.finish()
    assert result["interrupted"]
    assert [trial[1] for trial in result["trials"]][:4] == ["done", "done", "interrupted", "interrupted"]
    wait_gone(lanes)
    driver.go()
    again = Driver(tmp_path / "run").finish()
    assert not again["interrupted"]
    assert [trial[1] for trial in again["trials"]] == ["done"] * 6


def test_ctrl_c_twice_ends_at_once_and_can_be_resumed(tmp_path, wait_gone):
    driver = Driver(tmp_path / "run", dashboard=None)
    lanes = driver.wait_until_waiting(2)
    driver.process.send_signal(signal.SIGINT)
    while "press again" not in driver.process.stderr.readline():
        pass
    time.sleep(ECHO)
    driver.process.send_signal(signal.SIGINT)
    _, err = driver.process.communicate(timeout=20)
    assert "KeyboardInterrupt" in err
    wait_gone(lanes)
    driver.go()
    assert [t[1] for t in Driver(tmp_path / "run").finish()["trials"]] == ["done"] * 6


def test_sigterm_stops_trials_in_order_and_then_ends_the_process(tmp_path, wait_gone):
    driver = Driver(tmp_path / "run", boundaries=True)
    lanes = driver.wait_until_waiting(2)
    driver.process.send_signal(signal.SIGTERM)
    driver.process.communicate(timeout=20)
    assert driver.process.returncode == -signal.SIGTERM
    wait_gone(lanes)
    driver.go()
    assert [t[1] for t in Driver(tmp_path / "run").finish()["trials"]] == ["done"] * 6


def test_a_second_sigterm_ends_the_process_at_once_and_is_no_ctrl_c(tmp_path, wait_gone):
    driver = Driver(tmp_path / "run", dashboard=None)
    lanes = driver.wait_until_waiting(2)
    driver.process.send_signal(signal.SIGTERM)
    while "press again" not in driver.process.stderr.readline():
        pass
    driver.process.send_signal(signal.SIGTERM)
    _, err = driver.process.communicate(timeout=20)
    assert driver.process.returncode == -signal.SIGTERM, err
    wait_gone(lanes)


def test_two_runs_at_once_do_not_touch_each_other_and_a_name_is_taken(tmp_path):
    first, second = Driver(tmp_path / "a"), Driver(tmp_path / "b")
    for driver in (first, second):
        driver.wait_until_waiting(2)
    third = Driver(tmp_path / "a")
    _, err = third.process.communicate(timeout=60)
    assert third.process.returncode != 0
    assert "RunNameInUse" in err
    assert str(first.process.pid) in err
    for driver in (first, second):
        driver.go()
    for driver in (first, second):
        assert [trial[1] for trial in driver.finish()["trials"]] == ["done"] * 6


def test_a_finished_run_is_not_run_again(tmp_path):
    driver = Driver(tmp_path / "run")
    driver.go()
    first = driver.finish()
    assert Driver(tmp_path / "run").finish() == first


def test_a_trainable_from_standard_input_works(tmp_path):
    script = textwrap.dedent(
        f"""
        import cotune
        def helper(x):
            return x * 2
        class Model:
            def __init__(self, x): self.x = x
        def train(config):
            cotune.report({{"loss": helper(Model(config["x"]).x)}})
        r = cotune.run(train, {{"x": cotune.choice([1, 2])}}, metric="loss", sampler="grid",
                       devices=["cpu:0@2GiB"], storage={str(tmp_path)!r}, dashboard=False)
        print(r.best.metrics["loss"], len(r.errors))
        """
    )
    done = subprocess.run(
        [sys.executable, "-"],
        input=script,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.split() == ["2", "0"]


def imported(tmp_path, name, **modules):
    """Has a fresh process import a module, beside others."""
    for module, text in modules.items():
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(text))
    return subprocess.run(
        [sys.executable, "-c", f"import {name}"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}", "COTUNE_STORAGE": str(tmp_path / "runs")},
    )


SWEEP = """
    import cotune
    def train(config):
        return config["x"]
    r = cotune.run(train, {"x": cotune.uniform(0, 1)}, metric="loss", trials=3, devices=["cpu:0@2GiB"], dashboard=False)
    print(len(r), r.errors)
"""


def test_a_module_may_run_a_sweep_of_its_own_function_while_it_is_imported(tmp_path):
    done = imported(tmp_path, "sweep", sweep=SWEEP)
    assert done.stdout == "3 []\n", done.stderr


def test_a_sweep_begins_no_other_in_a_lane_that_imports_it(tmp_path):
    model = """
        def train(config):
            import sweep
            return config["x"]
    """
    done = imported(
        tmp_path, "sweep", sweep=SWEEP.replace("def train", "from model import train\n    def other"), model=model
    )
    assert "run() was called while a lane imported the module 'sweep'" in done.stdout + done.stderr
    assert len(list((tmp_path / "runs").glob("*/events.jsonl"))) == 1


def test_a_pool_that_a_trial_forks_finds_the_functions_of_the_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import functools, multiprocessing, cotune
            def double(x):
                return 2 * x
            def train(config, more):
                with multiprocessing.get_context("fork").Pool(1) as pool:
                    cotune.report({{"loss": sum(pool.map(double, [config["x"], more]))}})
            r = cotune.run(functools.partial(train, more=5), {{"x": cotune.choice([1, 2])}}, metric="loss",
                           sampler="grid", devices=["cpu:0@2GiB"], lanes=1, residents=2,
                           storage={str(tmp_path)!r}, dashboard=False)
            print(sorted(trial.metrics["loss"] for trial in r))
            """
        )
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=True, env=env)
    assert done.stdout.strip() == "[12, 14]"


def test_a_trial_finds_the_source_of_the_scripts_classes_and_what_it_spawns_does_not_run_the_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import concurrent.futures, inspect, multiprocessing, pathlib, cotune
            with open({str(tmp_path / "ran")!r}, "a") as file:
                file.write("once ")
            class Pair:
                first = 1
            def train(config):
                found = inspect.getsource(Pair)
                for way in ("spawn", "forkserver"):
                    processes = multiprocessing.get_context(way)
                    with processes.Pool(1) as pool:
                        pool.map(abs, [1])
                    with concurrent.futures.ProcessPoolExecutor(1, mp_context=processes) as pool:
                        list(pool.map(abs, [1]))
                cotune.report({{"loss": 0.0, "found": found, "file": pathlib.Path(__file__).name}})
            if __name__ == "__main__":
                r = cotune.run(train, {{"x": 1}}, metric="loss", trials=1, devices=["cpu:0@2GiB"],
                               storage={str(tmp_path)!r}, dashboard=False)
                print(r[0].metrics["file"], r[0].metrics["found"])
            """
        )
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False, env=env)
    assert done.stdout == "script.py class Pair:\n    first = 1\n\n", done.stderr
    assert (tmp_path / "ran").read_text() == "once "


def test_processes_that_a_trial_spawns_know_the_functions_and_classes_of_the_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import concurrent.futures, dataclasses, multiprocessing, cotune
            STEP, BIAS = 3, 0
            def bias(by):
                global BIAS
                BIAS = by
            @dataclasses.dataclass
            class Sample:
                x: int
            def up(sample):
                assert type(sample) is Sample
                return Sample(sample.x + STEP + BIAS)
            def put(queue, sample):
                queue.put(up(sample))
            def look(sample):
                return next(ITEMS)
            def train(config):
                global ITEMS
                found, ITEMS = [], (sample for sample in [Sample(7)])
                for way in ("spawn", "forkserver", "fork"):
                    processes = multiprocessing.get_context(way)
                    queue = processes.Queue()
                    one = processes.Process(target=put, args=(queue, Sample(1)))
                    one.start()
                    found.append(queue.get())
                    one.join()
                    with processes.Pool(1, bias, (10,)) as pool:
                        found += pool.map(up, [Sample(2)])
                    with concurrent.futures.ProcessPoolExecutor(1, mp_context=processes) as pool:
                        found += pool.map(up, [Sample(3)])
                # No process gets a generator, but a forked one has it.
                with multiprocessing.get_context("fork").Pool(1) as pool:
                    found += pool.map(look, [Sample(4)])
                assert {{type(sample) for sample in found}} == {{Sample}}
                cotune.report({{"loss": 0.0, "found": str([sample.x for sample in found])}})
            if __name__ == "__main__":
                r = cotune.run(train, {{"x": 1}}, metric="loss", trials=2, lanes=1, devices=["cpu:0@2GiB"],
                               storage={str(tmp_path)!r}, dashboard=False)
                print(*(trial.metrics.get("found", trial.error) for trial in r))
            """
        )
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=True, env=env)
    assert done.stdout.strip() == " ".join(["[4, 15, 6, 4, 15, 6, 4, 15, 6, 7]"] * 2)


def test_output_that_is_not_a_terminal_gets_plain_lines(tmp_path):
    script = textwrap.dedent(
        f"""
        import cotune
        cotune.run(lambda c: 1.0, {{"x": 1}}, metric="loss", trials=2, devices=["cpu:0@2GiB"],
                   storage={str(tmp_path)!r}, name="plain")
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout == ""
    assert "\x1b" not in done.stderr
    assert "plain" in done.stderr.splitlines()[-1]
    assert "2/2 trials" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("content", [b"not json\n", b'{"event":"run","time":1,"version":99}\n'])
def test_a_foreign_events_file_is_refused_and_left_alone(tmp_path, content):
    folder = tmp_path / "strange"
    folder.mkdir()
    (folder / "events.jsonl").write_bytes(content)
    with pytest.raises(cotune.StorageError):
        cotune.run(
            lambda c: 1.0, {"x": 1}, metric="loss", trials=1, storage=tmp_path, name="strange", resume=True,
            devices=["cpu:0@2GiB"], dashboard=False,
        )  # fmt: skip
    assert (folder / "events.jsonl").read_bytes() == content


def test_a_run_may_begin_in_a_thread_when_the_main_thread_has_ended():
    begin = "threading.main_thread().join(); import cotune.driver.assembly; print('fine')"
    script = f"import threading, cotune; threading.Thread(target=exec, args=({begin!r}, globals())).start()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "fine\n", done.stderr


def test_what_a_script_imports_for_what_that_does_is_there_in_lanes(tmp_path):
    (tmp_path / "registry.py").write_text("MODELS = {}\n")
    (tmp_path / "large.py").write_text("import registry\nregistry.MODELS['large'] = 7.0\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import cotune\nimport registry\nimport large  # registers itself\n"
        "results = cotune.run(lambda config: registry.MODELS['large'], {'x': 1}, metric='loss', trials=1,\n"
        "                     devices=['cpu:0@4GiB'], storage='runs', dashboard=False)\n"
        "print(results.best.metrics['loss'])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, timeout=60)
    assert done.stdout == b"7.0\n", done.stderr.decode()


def test_processes_are_called_what_they_are_where_ps_lists_them(tmp_path):
    def train(config):
        names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in (os.getpid(), os.getppid())]
        return {"loss": 0.0, "names": names}

    results = cotune.run(
        train, {"x": 1}, metric="loss", trials=2, lanes=1, devices=["cpu:0@1GiB"], storage=tmp_path, dashboard=False
    )
    assert [trial.metrics["names"] for trial in results] == [
        [f"cotune lane {it.lane}", "cotune zygote"] for it in results
    ]
