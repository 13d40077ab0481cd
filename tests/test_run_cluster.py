"""`cotune.run(cluster=...)` on real Ray clusters of several nodes, all on this machine."""

import os
import select
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

import cotune
from cotune.demand import GIB
from cotune.engines import ray as engine
from cotune.engines import ray_roster

pytestmark = pytest.mark.ray

OPTIONS = {"cluster": "auto", "gpus": 0, "devices": None}


@pytest.fixture
def cluster(in_ray):
    """Two nodes, one of them with GPUs in name only; this process is connected."""
    return in_ray.start(gpus=2)


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:1", "ray://127.0.0.1:1"])
def test_a_cluster_that_is_not_there_is_named(address, in_ray, tmp_path):
    # A process is in one cluster only.
    in_ray.leave()
    with pytest.raises(cotune.DeviceError, match=address) as caught:
        cotune.run(lambda config: None, {"x": 1}, metric="loss", trials=1, cluster=address, storage=tmp_path)
    assert "ray start" in caught.value.hint


def test_a_cluster_that_the_environment_names_and_that_is_not_there_is_told_at_once(in_ray, monkeypatch, tmp_path):
    in_ray.leave()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    # Ray would try for 80 s, and then end the process.
    monkeypatch.delattr("ray.init")
    with pytest.raises(cotune.DeviceError, match=r"at '127.0.0.1:1': .*refused"):
        cotune.run(lambda config: None, {"x": 1}, metric="loss", trials=1, cluster="auto", storage=tmp_path)


def test_a_cluster_that_asks_for_a_token_says_so(in_ray, monkeypatch, tmp_path):
    import ray

    def init(**options):
        # As Ray 2.60 does.
        cause = RuntimeError("Failed to connect to GCS.\nray.exceptions.AuthenticationError: InvalidAuthToken")
        raise ConnectionError("Failed to connect to Ray cluster") from cause

    in_ray.leave()
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(cotune.DeviceError, match="token") as caught:
        cotune.run(lambda config: None, {"x": 1}, metric="loss", trials=1, cluster="auto", storage=tmp_path)
    assert "RAY_AUTH_MODE" in caught.value.hint


def meet(arrived, go):
    """The trial's side of a `Meeting`."""
    os.write(os.open(arrived, os.O_WRONLY), b"%d\n" % os.getpid())
    os.read(os.open(go, os.O_RDONLY), 1)


def test_a_sweep_runs_on_all_nodes_at_once(run, cluster, meeting):
    arrived, go = meeting.arrived, meeting.go

    def train(config):
        import ray

        meet(arrived, go)
        assert not ray.is_initialized()
        cotune.report({"loss": config["x"]})

    def let_two_go_together():
        meeting.wait_for(2)
        meeting.let_go(6)

    thread = threading.Thread(target=let_two_go_together)
    thread.start()
    results = run(train, {"x": cotune.uniform(0, 1)}, trials=6, lanes=1)
    thread.join()
    assert [trial.state for trial in results] == ["done"] * 6
    assert len({trial.device for trial in results}) == 2
    assert all(trial.device.endswith("/cpu:0") for trial in results)
    assert results.best.metrics["loss"] == min(trial.config["x"] for trial in results)


def test_a_gpu_in_name_only_is_a_share_of_its_nodes_cpu(run, cluster):
    def train(config):
        cotune.report({"loss": 1.0, "device": cotune.device()})

    results = run(train, {"x": 1}, trials=3, gpus=None)
    assert {trial.metrics["device"] for trial in results} == {"cpu"}
    assert {trial.device.rpartition("/")[2] for trial in results} <= {"cpu:0", "cpu:1"}


@pytest.mark.parametrize("is_there", [True, False])
def test_trials_begin_where_the_run_was_started_if_their_node_has_that(is_there, run, cluster, tmp_path, monkeypatch):
    import ray

    def train(config):
        cotune.report({"loss": 0.0, "directory": os.getcwd()})

    outside = ray.get(ray.remote(num_cpus=0)(lambda: os.getcwd()).remote())
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    if not is_there:
        monkeypatch.setattr(ray_roster, "working_directory", lambda: str(tmp_path / "of another machine"))
    results = run(train, {"x": 1}, trials=1)
    assert results[0].metrics["directory"] == (str(tmp_path / "mine") if is_there else outside)


def test_trials_of_a_node_that_is_lost_go_on_elsewhere_from_their_checkpoints(run, cluster, meeting):
    import ray

    extra = cluster.add_node(num_cpus=1, memory=2 * GIB, resources={"extra": 1})
    cluster.wait_for_nodes()
    arrived, go = meeting.arrived, meeting.go

    def train(config):
        saved = cotune.restore()
        start = int((saved / "epoch").read_text()) + 1 if saved else 0
        for epoch in range(start, 3):
            cotune.report({"loss": float(epoch), "start": start}, step=epoch)
            with cotune.checkpoint() as path:
                (path / "epoch").write_text(str(epoch))
            if epoch == 1 and start == 0:
                meet(arrived, go)

    def lose_a_node():
        watched = [os.pidfd_open(pid) for pid in meeting.wait_for(3)]
        cluster.remove_node(extra)
        assert select.select(watched, [], [], 30)[0], "no trial has gone with its node"
        meeting.let_go(2)
        for fd in watched:
            os.close(fd)

    thread = threading.Thread(target=lose_a_node)
    thread.start()
    results = run(train, {"x": 1}, trials=3, lanes=1)
    thread.join()
    assert [trial.state for trial in results] == ["done"] * 3
    assert sorted(trial.attempts for trial in results) == [1, 1, 2]
    moved = max(results, key=lambda trial: trial.attempts)
    assert [report["start"] for report in moved.history] == [0, 0, 2]
    assert ray.is_initialized()


def test_when_the_driver_is_killed_nothing_of_it_stays_on_the_cluster(cluster, tmp_path, wait_gone):
    pipe = tmp_path / "running"
    os.mkfifo(pipe)
    code = f"""
    import os, time, cotune

    def train(config):
        with open({str(pipe)!r}, "w") as file:
            file.write(f"{{os.getpid()}}\\n")
        time.sleep(600)

    cotune.run(train, {{"x": 1}}, metric="loss", trials=2, cluster={cluster.address!r}, gpus=0, lanes=1,
               storage={str(tmp_path)!r}, name="killed", dashboard=False)
    """
    environment = {**os.environ, "PYTHONPATH": str(Path(cotune.__file__).parents[1])}
    driver = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], env=environment)
    running = ""
    while running.count("\n") < 2:
        running += pipe.read_text()
    driver.kill()
    driver.wait()
    wait_gone(map(int, running.split()))


def test_what_was_killed_is_resumed(cluster, run, tmp_path):
    calls = tmp_path / "calls"

    def train(config):
        with open(calls, "a") as file:
            file.write(f"{cotune.trial_id()}\n")
        if cotune.trial_id() == 1 and calls.read_text().count("1") == 1:
            cotune.report({"loss": 1.0})
            raise KeyboardInterrupt
        cotune.report({"loss": 2.0})

    run(train, {"x": 1}, trials=2, lanes=1, name="again")
    results = run(train, {"x": 1}, trials=3, lanes=1, name="again", resume=True)
    assert len(results) == 3
    assert calls.read_text().split().count("0") == 1


def test_more_gpus_than_are_there_begin_with_those_that_are(run, cluster, monkeypatch):
    monkeypatch.setattr(engine, "SETTLE", 0.0)
    results = run(lambda config: cotune.report({"loss": 0.0}), {"x": 1}, trials=1, gpus=3)
    assert results[0].state == "done"


def test_gpus_that_were_asked_for_and_are_not_there_yet_are_waited_for(run, in_ray, monkeypatch):
    cluster = in_ray.start(gpus=0)
    gather = engine.RayEngine._gather
    # There is no GPU, and the time within which one that is there has to answer is over.
    monkeypatch.setattr(engine, "JOIN_WITHIN", -1.0)

    def one_comes(self, timeout):
        monkeypatch.undo()
        monkeypatch.setattr(engine, "SETTLE", 0.0)
        cluster.add_node(num_cpus=1, num_gpus=1, memory=2 * GIB)
        return gather(self, timeout)

    monkeypatch.setattr(engine.RayEngine, "_gather", one_comes)
    results = run(lambda config: cotune.report({"loss": 0.0}), {"x": 1}, trials=1, gpus=3)
    assert results[0].state == "done"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cluster": 3}, "cluster=3"),
        ({"devices": ["cpu:0"], "gpus": None}, "devices="),
        ({"gpus": [0, 1]}, "not a count"),
        ({"gpus": -1}, "not a count"),
    ],
)
def test_a_cluster_is_asked_for_in_words_it_understands(run, options, said):
    with pytest.raises(cotune.InputError, match=said) as caught:
        run(lambda config: None, {"x": 1}, trials=1, **options)
    assert caught.value.hint
