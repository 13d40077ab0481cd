"""Runs a command, or the tests that need a GPU, on a GPU that is not there: `device.hpp` says what it can do.

python tests/pretend_gpu/run.py [command ...]

What runs is torch's own CUDA build: its allocator, its caps and counters, its streams, its errors. What comes out of
kernels means nothing, so tests that compare such numbers are left out. It needs g++, nm, a torch built for CUDA 13 and
CUDA's headers (nvidia-cuda-crt has those that torch does not bring); `make pretend-gpu` sees to the packages.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

NOT_SUPPORTED = 801

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

# They look at what kernels have computed, or use CuPy, which has a CUDA runtime of its own inside.
COMPUTING = (
    "test_streams_change_no_number",
    "test_memory_that_runs_out_on_streams_changes_no_number",
    "test_a_scaler_that_steps_within_a_loop_on_streams_finds_all_gradients",
    "test_parking_frees_the_memory_of_the_gpu_and_brings_it_back",
    "test_residents_of_one_lane_compute_the_same_bits_as_trials_alone",
    "test_residents_whose_models_are_compiled_with_cuda_graphs_compute_the_same_bits_as_alone",
    "test_a_process_that_imported_torch_and_asked_for_cuda_can_still_fork_lanes",
    "test_two_processes_forked_from_one_use_the_gpu_at_once",
    "test_the_last_trial_is_lent_idle_memory_and_computes_the_same",
    "cupy",
)

# Convolutions then take torch's own way, through cuBLAS.
WITHOUT_CUDNN = """
from cotune.sharing.inside.after_import import after_import
after_import("torch.backends.cudnn", lambda _: __import__("torch")._C._set_cudnn_enabled(False))
"""

NVIDIA_SMI = """#!{python}
import sys, pynvml as nvml
nvml.nvmlInit()
fields = next(part for part in sys.argv if part.startswith("--query-gpu=")).partition("=")[2].split(",")
for index in range(nvml.nvmlDeviceGetCount()):
    device = nvml.nvmlDeviceGetHandleByIndex(index)
    told = dict(index=index, uuid=nvml.nvmlDeviceGetUUID(device), name=nvml.nvmlDeviceGetName(device))
    told["memory.total"] = nvml.nvmlDeviceGetMemoryInfo(device).total >> 20
    print(", ".join(str(told[field]) for field in fields))
"""


def symbols(path: Path, *options: str) -> set[str]:
    told = subprocess.run(["nm", *options, str(path)], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].partition("@")[0] for line in told.splitlines()}


def build(folder: Path) -> None:
    """Makes the library, and what stands for the programs and libraries of a driver."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        sys.exit("error: torch is not installed")
    packages = Path(torch.origin).parents[1]
    libraries = packages / "torch" / "lib"
    if not (libraries / "libtorch_cuda.so").exists():
        sys.exit("error: this torch was built without CUDA; pip gets one with it from PyPI")
    include = packages / "nvidia" / "cu13" / "include"
    if not (include / "crt" / "host_defines.h").exists():
        sys.exit(f"error: no CUDA 13 headers in {include}: pip install 'nvidia-cuda-crt==13.0.*'")
    sources = sorted(map(str, HERE.glob("*.cpp")))
    command = ["g++", "-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", f"-I{include}", "-c", *sources]
    subprocess.run(command, check=True, cwd=folder)
    objects = sorted(folder.glob("*.o"))
    made = set().union(*(symbols(made, "--defined-only") for made in objects))
    wanted = symbols(libraries / "libtorch_cuda.so", "-D", "--undefined-only")
    wanted |= symbols(libraries / "libcaffe2_nvrtc.so", "-D", "--undefined-only")
    returned = {name: 0 for name in wanted - made if name.startswith("cublas")}
    returned |= {name: NOT_SUPPORTED for name in wanted - made if re.match("cu(?!File)[A-Z]", name)}
    stubs, library = folder / "stubs.cpp", folder / "libpretend.so"
    stubs.write_text("".join(f'extern "C" long {name}() {{ return {value}; }}\n' for name, value in returned.items()))
    subprocess.run(["g++", "-fPIC", "-shared", *objects, stubs, "-o", library, "-ldl"], check=True)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (folder / name).symlink_to(library)
    (folder / "sitecustomize.py").write_text(WITHOUT_CUDNN)
    (folder / "nvidia-smi").write_text(NVIDIA_SMI.format(python=sys.executable))
    (folder / "nvidia-smi").chmod(0o755)


def environment(folder: Path) -> dict[str, str]:
    def before(name: str, *first: str) -> str:
        return os.pathsep.join([*first, *filter(None, [os.environ.get(name)])])

    return os.environ | {
        "LD_PRELOAD": str(folder / "libpretend.so"),
        "LD_LIBRARY_PATH": before("LD_LIBRARY_PATH", str(folder)),
        "PATH": before("PATH", str(folder)),
        "PYTHONPATH": before("PYTHONPATH", str(folder), str(ROOT)),
        "PRETEND_GPU": str(folder / "memory"),
    }


def main() -> int:
    not_computing = " and ".join(f"not {name}" for name in COMPUTING)
    tests = [sys.executable, "-m", "pytest", "-m", "gpu", "-k", not_computing, str(ROOT / "tests")]
    command = sys.argv[1:] or tests
    with tempfile.TemporaryDirectory(prefix="pretend-gpu-") as name:
        build(Path(name))
        return subprocess.run(command, env=environment(Path(name)), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
