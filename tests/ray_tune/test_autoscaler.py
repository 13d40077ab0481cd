"""Clusters that an autoscaler grows and shrinks: Ray's own, with nodes that are processes of this machine.

python -m pytest -m slow tests/ray_tune/test_autoscaler.py
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

ray = pytest.importorskip("ray")

from ray import tune

import cotune
from cotune.ray_tune import slots

# By a signal, after which fixtures still end what they have started.
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(180, method="signal")]

HEAD = "f" * 51 + "00000"


@dataclass(frozen=True)
class Growing:
    """Where the cluster is found, and where it puts its files."""

    address: str
    place: Path

    def said(self) -> str:
        """What users are told by the autoscaler."""
        return (self.place / "session_latest/logs/events/event_AUTOSCALER.log").read_text()


@pytest.fixture
def growing(request, in_ray, wait_gone, tmp_path):
    """A cluster without a GPU, to which up to two nodes with one each are added as they are asked for.

    Its head has one CPU, or as many as the test says.
    """
    cores = getattr(request, "param", 1)
    # This process can be in one cluster only.
    in_ray.leave()
    with socket.socket() as free:
        free.bind(("", 0))
        address = f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"
    gpu = {"CPU": 1, "GPU": 1, "object_store_memory": 100 << 20}
    # Ray insists on all of these.
    nothing_to_do = (
        "initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands", "rsync_exclude",
        "head_start_ray_commands", "worker_start_ray_commands", "cluster_synced_files", "rsync_filter",
    )  # fmt: skip
    plan = {
        **{name: [] for name in nothing_to_do},
        **{name: {} for name in ("auth", "docker", "file_mounts")},
        "cluster_name": "growing",
        # By its name Ray would look for a file of defaults that it does not bring along.
        "provider": {
            "type": "external",
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "launch_multiple": True,
            "head_node_id": HEAD,
            # Or nodes look for their cluster at the usual port.
            "gcs_address": address,
        },
        "max_workers": 2,
        "idle_timeout_minutes": 0.05,
        "upscaling_speed": 1.0,
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": cores}, "node_config": {}, "max_workers": 0},
            "gpu": {"resources": gpu, "node_config": {}, "min_workers": 0, "max_workers": 2},
        },
    }
    plan_path = tmp_path / "cluster.json"
    plan_path.write_text(json.dumps(plan))
    environment = os.environ | {
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_FAKE_CLUSTER": "1",
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": HEAD,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD,
        # Or a token is asked for where the user has one, and drivers that name an address do not show it by themselves.
        "RAY_AUTH_MODE": "disabled",
    }
    # A path of its own, since names of sockets are short.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as place:
        command = [
            sys.executable, "-u", "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats",
            f"--port={address.rpartition(':')[2]}", f"--temp-dir={place}", f"--autoscaling-config={plan_path}",
            f"--num-cpus={cores}", "--num-gpus=0", "--object-store-memory=100000000", "--include-dashboard=false",
            "--dashboard-agent-listen-port=0",
        ]  # fmt: skip
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        head = subprocess.Popen(command, env=environment, start_new_session=True, **pipe)
        try:
            said = ""
            while "runtime started" not in said:
                line = head.stdout.readline()
                assert line, f"the head has ended: {said}"
                said += line
            yield Growing(address, Path(place))
        finally:
            in_ray.leave()
            while started := session_of(head.pid):
                for pid in started:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                wait_gone(started)
            head.stdout.close()
            head.wait()


def session_of(leader: int) -> list[int]:
    """Processes that run in this session: what the leader and its descendants have started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(session) == leader and state != "Z":
            found.append(int(path.parent.name))
    return found


def alive() -> int:
    return sum(node["Alive"] for node in ray.nodes())


def check_not_called_impossible(growing):
    """That users are not told, every second, that no node fits: but for a moment when Ray does not know better."""
    # Before that, what tells that a group has its place is itself a task that waits for the place.
    if tuple(map(int, ray.__version__.split(".")[:2])) >= (2, 60):
        assert growing.said().count("No available node types") <= 1, growing.said()


def waits(meeting):
    """What says that it has come, and waits until it is let go."""
    arrived, go = meeting.arrived, meeting.go

    def train(config):
        os.write(os.open(arrived, os.O_WRONLY), b"%d\n" % os.getpid())
        os.read(os.open(go, os.O_RDONLY), 1)
        # Without Ray Tune there is no Ray in a trial.
        tune.report({"done": 1, "node": ray.get_runtime_context().get_node_id() if ray.is_initialized() else ""})

    return train


def test_under_tune_a_cluster_grows_as_gpus_are_asked_for_and_idle_nodes_go(growing, meeting, run_config, monkeypatch):
    monkeypatch.setattr(slots, "IDLE_AFTER", 1.0)
    ray.init(address=growing.address, log_to_driver=False, logging_level="ERROR")
    assert ray.cluster_resources().get("GPU", 0) == 0

    def let_all_but_one_go():
        """How many nodes there were when two trials ran at once, and when one was left."""
        try:
            meeting.wait_for(2)
            at_work = alive()
            meeting.let_go(5)
            until = time.monotonic() + 60
            while alive() == at_work and time.monotonic() < until:
                time.sleep(0.2)
            return at_work, alive()
        finally:
            meeting.let_go(6)

    with ThreadPoolExecutor(1) as beside:
        seen = beside.submit(let_all_but_one_go)
        results = tune.Tuner(
            tune.with_resources(waits(meeting), {"cpu": 0.5, "gpu": 1}),
            param_space={"x": tune.grid_search(list(range(6)))},
            tune_config=tune.TuneConfig(scheduler=cotune.colocate(gpus=2, lanes=1)),
            run_config=run_config(),
        ).fit()
    assert seen.result() == (3, 2)
    # Of a trial that has failed as Tune sees it there would be an error, since max_failures is 0.
    assert results.num_errors == 0
    assert [result.metrics["done"] for result in results] == [1] * 6
    assert len({result.metrics["node"] for result in results}) == 2
    assert "Adding 2 node(s) of type gpu" in growing.said()
    check_not_called_impossible(growing)


@pytest.mark.parametrize("growing", [0], indirect=True)
def test_a_cluster_whose_head_runs_nothing_is_asked_for_a_node_of_cpus(growing, run_config):
    ray.init(address=growing.address, log_to_driver=False, logging_level="ERROR")
    assert ray.cluster_resources().get("CPU", 0) == 0
    results = tune.Tuner(
        lambda config: tune.report({"x": config["x"]}),
        param_space={"x": tune.grid_search([0, 1, 2])},
        tune_config=tune.TuneConfig(scheduler=cotune.colocate(gpus=0)),
        run_config=run_config(),
    ).fit()
    assert [result.metrics["x"] for result in results] == [0, 1, 2]
    assert "Adding 1 node(s)" in growing.said()
    check_not_called_impossible(growing)


def test_run_waits_for_the_gpus_it_has_asked_for(growing, meeting, tmp_path):
    def let_all_go():
        try:
            meeting.wait_for(2)
        finally:
            meeting.let_go(6)

    with ThreadPoolExecutor(1) as beside:
        seen = beside.submit(let_all_go)
        results = cotune.run(
            waits(meeting),
            {"x": cotune.uniform(0, 1)},
            metric="done",
            trials=6,
            gpus=2,
            lanes=1,
            cluster=growing.address,
            storage=tmp_path,
            dashboard=False,
        )
    seen.result()
    assert [trial.state for trial in results] == ["done"] * 6
    assert len({trial.device for trial in results}) == 2
    check_not_called_impossible(growing)
