"""What is left of the machine."""

import os
from pathlib import Path

import pytest

from cotune.demand import GIB
from cotune.sharing.machine import available_cores, available_memory


def test_the_available_memory_is_some_of_what_the_machine_has():
    lines = Path("/proc/meminfo").read_text().splitlines()
    total = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal"))
    assert 0 < available_memory() <= max(total, GIB // 4)


@pytest.mark.parametrize(
    ("membership", "group", "names"),
    [
        ("0::/slurm/job_7/step_0", "slurm/job_7", ("memory.max", "memory.current")),
        ("0::/", "", ("memory.max", "memory.current")),
        ("0::/user.slice", "user.slice", ("memory.high", "memory.current")),
        ("4:cpu,memory:/docker/7f", "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")),
        ("4:memory:/jobs/7", "memory/jobs/7", ("memory.limit_in_bytes", "memory.usage_in_bytes")),
    ],
    ids=["v2 job", "v2 container", "v2 throttled", "v1 container", "v1 job"],
)
def test_the_available_memory_is_what_the_tightest_control_group_leaves(tmp_path, membership, group, names):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {64 * GIB // 1024} kB\n")
    (tmp_path / "proc/self/cgroup").write_text(f"1:name=systemd:/other\n{membership}\nodd\n")
    limited = tmp_path / "sys/fs/cgroup" / group
    for place, limit in ((limited, 8 * GIB), (limited / "step_0", "max")):
        place.mkdir(parents=True)
        for name, value in zip(names, (limit, 3 * GIB), strict=True):
            (place / name).write_text(f"{value}\n")
        (place / "memory.stat").write_text(f"active_file 5\ninactive_file {GIB}\n")
    assert available_memory(tmp_path) == 6 * GIB


def test_the_cores_are_those_that_this_process_may_run_on():
    assert 1 <= available_cores() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("membership", "group", "files"),
    [
        ("0::/pod", "pod", {"cpu.max": "{quota} 100000"}),
        ("4:cpu,cpuacct:/pod", "cpu/pod", {"cpu.cfs_quota_us": "{quota}", "cpu.cfs_period_us": "100000"}),
    ],
)
def test_a_control_group_leaves_as_many_cores_as_its_time_is_worth(tmp_path, monkeypatch, membership, group, files):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)))
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{membership}\n")
    limited = tmp_path / "sys/fs/cgroup" / group
    limited.mkdir(parents=True)

    def cores(quota):
        for name, text in files.items():
            (limited / name).write_text(text.format(quota=quota) + "\n")
        return available_cores(tmp_path)

    assert [cores(200_000), cores(250_000), cores(50_000), cores(9_900_000)] == [2, 3, 1, 64]
    assert cores("max") == cores(-1) == 64
