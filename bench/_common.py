"""What both benchmarks share: peers in fresh processes, traces, machine facts, tables."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import logging
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_SUBREAPER = 36
# Seconds.
_DIES_WITHIN = 10


class PeerFailed(Exception):
    """A peer's process failed or took too long."""


# ---- the parent's side


def run_peer(script: str, peer: str, options: dict[str, Any] | None = None, timeout: float = 300.0) -> dict[str, Any]:
    """Runs one peer of a benchmark script in a fresh process and gives what it measured.

    The process gets the path of an empty folder and `began`, the `time.monotonic()` just before it was started.
    Whatever it leaves running is killed, and its folder removed.

    Raises:
        PeerFailed: With the end of what the peer wrote.
    """
    # Not TMPDIR: Ray's sockets need a short path.
    with tempfile.TemporaryDirectory(prefix="bench-", dir="/tmp") as name:
        folder = Path(name)
        environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
        environment |= {"RAY_AIR_NEW_OUTPUT": "0", "RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0"}
        environment |= {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "PYTHONWARNINGS": "ignore"}
        with open(folder / "output.txt", "wb") as output:
            asked = json.dumps({**(options or {}), "folder": name, "began": time.monotonic()})
            command = [sys.executable, script, "--peer", peer, asked]
            code = run_to_end(command, timeout, env=environment, stdout=output, stderr=output)
        result = folder / "result.json"
        if code != 0 or not result.exists():
            words = (folder / "output.txt").read_text(errors="replace").strip().splitlines()
            raise PeerFailed(f"{peer}: exit status {code}: " + "\n".join(words[-15:]))
        found: dict[str, Any] = json.loads(result.read_text())
        return found


def run_to_end(command: list[str], timeout: float, **how: Any) -> int:
    """The exit status of a command. It is killed if it takes longer, and so is whatever it leaves running."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    process = subprocess.Popen(command, **how)
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        return -signal.SIGKILL
    finally:
        if process.poll() is None:
            process.kill()
            # What hangs in a driver cannot be waited for.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_DIES_WITHIN)
        _end_leftovers()


def _end_leftovers() -> None:
    """Kills what an ended peer left behind, which is this process's by now and nobody else's."""
    until = time.monotonic() + _DIES_WITHIN
    while time.monotonic() < until:
        try:
            pids = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        except OSError:
            # Not every kernel tells; then nothing can be ended.
            return
        if not pids:
            return
        for pid in map(int, pids):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.005)


def has_ray() -> bool:
    return importlib.util.find_spec("ray") is not None


# ---- the peer's side


def serve_peer(peers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]]) -> bool:
    """Runs the peer that the command line asks for; False if it asks for none."""
    if len(sys.argv) < 4 or sys.argv[1] != "--peer":
        return False
    options = json.loads(sys.argv[3])
    found = peers[sys.argv[2]](options)
    (Path(options["folder"]) / "result.json").write_text(json.dumps(found))
    return True


def keep(options: dict[str, Any], found: dict[str, Any]) -> None:
    """Puts down what a peer has found so far, where it is asked to, should it not come to its end."""
    write_json(options.get("keep"), found)


@contextlib.contextmanager
def ray_session(folder: str) -> Iterator[None]:
    """Ray on this machine with two CPUs, whatever else of Ray is running."""
    import ray

    ray.init(
        "local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=128 << 20,
        _temp_dir=f"{folder}/ray",
    )
    try:
        yield
    finally:
        ray.shutdown()


# ---- figures


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of `values` lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median(values: Sequence[float]) -> float:
    return float(statistics.median(values))


def machine() -> dict[str, Any]:
    """What the figures of a run depend on."""
    model = next((line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "")
    memory = next((int(line.split()[1]) << 10 for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "device": "cpu",
        "processor": model or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": memory,
        "system": platform.platform(),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("cotune", "torch", "ray", "optuna", "numpy", "scikit-learn")},
        "commit": _git("rev-parse", "HEAD"),
        "changed_files": len(_git("status", "--porcelain").splitlines()),
    }


class Bystanders:
    """How many cores other programs keep busy, looked at while nothing of ours runs."""

    def __init__(self) -> None:
        self._seen: list[float] = []

    def look(self, seconds: float = 0.3) -> None:
        before, began = self._busy(), time.monotonic()
        time.sleep(seconds)
        self._seen.append((self._busy() - before) / (time.monotonic() - began))

    def cores(self) -> float:
        return statistics.fmean(self._seen) if self._seen else 0.0

    def _busy(self) -> float:
        fields = [int(field) for field in _lines("/proc/stat")[0].split()[1:]]
        return sum(fields[:3] + fields[5:7]) / float(os.sysconf("SC_CLK_TCK"))


def describe(facts: dict[str, Any]) -> str:
    """The machine in a line, for below a table."""
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items() if number)
    commit = f"commit {facts['commit'][:10]}" if facts["commit"] else "no commit"
    if facts["changed_files"]:
        commit += f" + {facts['changed_files']} changed files"
    hardware = f"{facts['processor']}, {facts['cores']} cores, {facts['memory'] / 2**30:.0f} GiB"
    load = f"other programs kept {facts['others_cores']:.1f} cores busy in between"
    return f"{hardware}, {load}; Python {facts['python']}, {versions}; {commit}"


def write_json(path: str | None, value: Any) -> None:
    """Writes a file in one step: whoever is killed while writing leaves what was there."""
    if path:
        Path(f"{path}.new").write_text(json.dumps(value, indent=1) + "\n")
        os.replace(f"{path}.new", path)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        found = ROOT / name / "__init__.py"
        quoted = [line.split('"')[1] for line in _lines(str(found)) if line.startswith("__version__")]
        return quoted[0] if quoted else ""


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
