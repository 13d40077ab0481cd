"""What `cotune doctor` says of a machine, and when it says that something must be fixed."""

from __future__ import annotations

import resource
from collections import namedtuple

import pytest

from cotune.cli import doctor, main
from cotune.demand import GIB
from cotune.errors import DeviceError
from cotune.sharing import cuda

Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """No GPU, enough of everything else."""
    monkeypatch.setattr(cuda, "gpus", list)
    monkeypatch.setattr(cuda, "torch_has_cuda", lambda: False)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: Usage(0, 0, 100 * GIB))
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda kind: (4096, resource.RLIM_INFINITY))
    monkeypatch.setattr(doctor, "_threads", lambda: 100)
    monkeypatch.setenv("COTUNE_STORAGE", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return monkeypatch


@pytest.fixture
def gpu(machine):
    """One GPU, and a torch that can use it; an MPS daemon could be started."""
    found = [cuda.Gpu(0, "GPU-1111", "H200", 140 * GIB, GIB)]
    machine.setattr(cuda, "gpus", lambda: found)
    machine.setattr(cuda, "torch_has_cuda", lambda: True)

    class Daemon:
        def __init__(self, uuid):
            assert uuid == "GPU-1111"

        def close(self): ...

    machine.setattr(doctor, "MpsDaemon", Daemon)
    return found


def said(capsys, *arguments, code=0):
    assert main(["doctor", *arguments]) == code
    return capsys.readouterr().out


def test_a_machine_without_a_gpu_is_fine(capsys):
    out = said(capsys)
    assert "!!" not in out
    assert "none (no NVIDIA driver answers)" in out
    assert "cpu:0" in out
    assert "a run without gpus= or devices= uses it" in out
    assert "optuna" in out


def test_a_machine_with_a_gpu_says_what_it_has_and_what_a_run_would_use(gpu, capsys):
    out = said(capsys)
    assert "H200, 139 GiB free of 140 GiB, GPU-1111" in out
    assert "cuda:0" in out
    assert "139 GiB for trials" in out
    assert "lanes compute at the same time, unless mps=False" in out


def test_why_mps_is_not_to_be_had_is_no_fault(gpu, machine, capsys):
    def refuse(uuid):
        raise DeviceError("MPS cannot be used: nvidia-cuda-mps-control is not installed")

    machine.setattr(doctor, "MpsDaemon", refuse)
    assert "nvidia-cuda-mps-control is not installed" in said(capsys)
    machine.setattr(doctor, "MpsDaemon", None)
    assert "not tried" in said(capsys, "--no-mps")


def test_a_gpu_that_torch_cannot_use_must_be_fixed(gpu, machine, capsys):
    machine.setattr(cuda, "torch_has_cuda", lambda: False)
    assert "install a CUDA build of torch" in said(capsys, code=1)


def test_a_gpu_in_exclusive_mode_or_in_use_is_said_to_be(gpu, capsys):
    gpu[:] = [
        cuda.Gpu(0, "GPU-1111", "H200", 140 * GIB, GIB, exclusive=True),
        cuda.Gpu(1, "GPU-2222", "H200", 140 * GIB, 70 * GIB),
    ]
    out = said(capsys)
    assert "its compute mode admits one process" in out
    assert "others use it" in out


def test_hidden_gpus_are_said_to_be_hidden(gpu, machine, capsys):
    machine.setenv("CUDA_VISIBLE_DEVICES", "")
    out = said(capsys)
    assert "CUDA_VISIBLE_DEVICES='' hides every GPU" in out
    assert "cpu:0" in out


def test_a_gpu_that_is_full_must_be_freed(gpu, capsys):
    gpu[:] = [cuda.Gpu(0, "GPU-1111", "H200", 140 * GIB, 139 * GIB)]
    assert "!!  cuda:0" in said(capsys, code=1)


def test_slices_of_a_gpu_are_refused_with_what_to_do(gpu, machine, capsys):
    machine.setenv("CUDA_VISIBLE_DEVICES", "MIG-1234")
    out = said(capsys, code=1)
    assert "names a slice of a GPU (MIG)" in out
    assert "name whole GPUs" in out


def test_limits_that_are_too_low_come_with_what_raises_them(machine, capsys):
    machine.setattr(doctor.resource, "getrlimit", lambda kind: (256, GIB))
    machine.setattr(doctor.shutil, "disk_usage", lambda path: Usage(0, 0, 1 << 20))
    out = said(capsys, code=1)
    for word in ("ulimit -n", "ulimit -Hd", "ulimit -u", "--shm-size", "COTUNE_STORAGE"):
        assert word in out


def test_this_machine_can_be_looked_at(monkeypatch, capsys):
    monkeypatch.undo()
    assert main(["doctor", "--no-mps"]) in (0, 1)
    assert "run folders" in capsys.readouterr().out
