"""Every figure about cotune on one GPU, the most important first, as many as fit the time; before them the tests.

python bench/gpu.py [--tests] [--budget 530] [--only handover,turns] [--out FILE] [--dry]

Each section runs in a fresh process, so that one that fails or hangs costs the others nothing; after each of them the
JSON is written anew. What a section, or the tests, had found when they were cut short is in it as well; if this
program itself is killed, it lies beside it as `FILE.partial`. `--dry` shows on a CPU that all of it works; its figures
mean nothing. `docs/gpu.md` says what each section answers.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _gpu_packing as packing
import _gpu_parallel as parallel
import _gpu_raw as raw
import _gpu_runs as runs
import _gpu_tests as tests
import _gpu_ways as ways
from _common import ROOT, Bystanders, PeerFailed, describe, machine, run_peer, serve_peer, write_json

Found = dict[str, Any]

# Where cotune is not installed, this process and all that it starts use it from here.
sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
# Where what is compiled is not kept, as in many containers, every process would compile torch for itself: seconds each.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    os.environ["PYTHONPYCACHEPREFIX"] = os.path.join(tempfile.gettempdir(), f"cotune-bench-{os.getuid()}")


@dataclass(frozen=True)
class Section:
    """A group of figures.

    Attributes:
        measure: Takes them.
        longest: Seconds after which it is given up.
        dry: Whether it makes sense without a GPU.
        mps: Whether it is left out once MPS was refused, which can take half a minute each time.
    """

    measure: Callable[[Found], Found]
    longest: float
    dry: bool = False
    mps: bool = False


SECTIONS = {
    "handover": Section(runs.handover, 60, dry=True),
    "turns": Section(runs.turns, 60, dry=True),
    "counters": Section(runs.counters, 60, dry=True),
    "oom": Section(packing.oom, 90, dry=True),
    "heavy": Section(packing.heavy, 100, dry=True),
    "light": Section(packing.light, 120, dry=True),
    "in_slices": Section(packing.in_slices, 90),
    "streams": Section(ways.on_streams, 90, dry=True),
    "with_mps": Section(ways.with_mps, 90, mps=True),
    "slices": Section(ways.slices, 90, dry=True),
    "lane_start": Section(runs.lane_start, 60, dry=True),
    "mps": Section(ways.mps, 90, mps=True),
    "context": Section(raw.context, 60),
    "growth": Section(raw.growth, 90),
    "allocators": Section(raw.allocators, 60),
    "workspaces": Section(raw.workspaces, 40),
    "costs": Section(raw.costs, 40),
    "accumulation": Section(raw.accumulation, 90),
}


# ---- what must be shown


def _at(found: Found, *keys: Any) -> Any:
    """A figure deep in the JSON, or None."""
    for key in keys:
        if not isinstance(found, dict) or key not in found:
            return None
        found = found[key]
    return found


def goals(found: Found) -> list[tuple[str, str, str, bool | None]]:
    """What, the goal, the figure, whether it is met; None where there is no figure."""

    def row(what: str, goal: str, value: float | None, met: Callable[[float], bool], unit: str = "") -> Any:
        return what, goal, "-" if value is None else f"{value:g}{unit}", None if value is None else met(value)

    counters = _at(found, "counters", "measured_over_known")
    off = max(abs(share - 1) for share in counters.values()) if counters else None
    lost, naive = _at(found, "oom", "cotune", "lost"), _at(found, "oom", "naive", "out_of_memory")
    stop = _at(found, "handover", "stop_to_first_kernel_ms", "p50")
    return [
        row("stop -> next trial's first kernel, p50", "<= 5 ms", stop, lambda v: v <= 5, " ms"),
        row("turn change, p50", "<= 1 ms", _at(found, "turns", "turn_change_ms", "p50"), lambda v: v <= 1, " ms"),
        row("counters off known allocations by", "<= 1%", None if off is None else 100 * off, lambda v: v <= 1, "%"),
        row("trials lost by naive packing", ">= 1", naive, lambda v: v >= 1),
        row("trials lost by cotune", "0", lost, lambda v: v == 0),
        row(
            "60 small trials, width found", ">= 5x", _at(found, "light", "width found", "speedup"),
            lambda v: v >= 5, "x",
        ),
        row(
            "compute-bound trials, width found", ">= 0.97x", _at(found, "heavy", "width found", "speedup"),
            lambda v: v >= 0.97, "x",
        ),
    ]  # fmt: skip


WAYS = ("slices", "with_mps", "streams")


def show(found: Found, left_out: Found, tested: Found | None) -> None:
    """What matters, from the least to the most: whoever reads a log reads its end."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False, markup=False)
    shown = {name: found[name] for name in WAYS if name in found}
    if shown:
        table = Table("model", "way", title="Steps a second of all together, by width")
        for width in parallel.WIDTHS:
            table.add_column(str(width), justify="right")
        for model in parallel.SIZES:
            for way in shown:
                rates = [_at(shown, way, model, str(width)) for width in parallel.WIDTHS]
                table.add_row(model, way, *("-" if rate is None else f"{rate:g}" for rate in rates))
        console.print(table)
    for name, why in left_out.items():
        last = [line for line in why.splitlines() if not line.strip().startswith("hint:")][-1]
        console.print(f"{name}: {'cut short' if name in found else 'none'} ({last[:200]})")
    if tested is not None:
        for test, why in tested["failed"].items():
            console.print(f"FAILED {test}: {why.splitlines()[0] if why else ''}"[:160])
        for why, count in Counter(tested["skipped"].values()).items():
            console.print(f"skipped {count}: {why}"[:160])
        counts = ", ".join(f"{len(tested[name])} {name}" for name in ("passed", "failed", "skipped"))
        console.print(f"of {tested['collected']} tests: {counts}; exit status {tested['status']}")
    table = Table("what", "goal", "measured", "met", title="What must be shown")
    for what, goal, value, met in goals(found):
        table.add_row(what, goal, value, "-" if met is None else "yes" if met else "NO")
    console.print(table)


# ---- the run

LEAST = 10  # seconds that are too few to begin with a section


def device_facts(dry: bool) -> Found:
    if dry:
        return {"name": "cpu, dry run"}
    import pynvml

    from cotune.sharing.cuda import visible_gpus

    gpu = visible_gpus()[0]
    pynvml.nvmlInit()
    try:
        driver, version = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlSystemGetCudaDriverVersion()
    finally:
        pynvml.nvmlShutdown()
    return {
        "name": gpu.name,
        "memory": gpu.total,
        "free": gpu.total - gpu.used,
        "driver": driver,
        "cuda_of_driver": f"{version // 1000}.{version % 1000 // 10}",
    }


class Run:
    """What was found so far, which is written down after each part.

    Args:
        out: The JSON file.
        until: The end of the time there is, by the monotonic clock.
        dry: Nothing is measured; what needs a GPU is left out.
        device: What is known about it.
    """

    def __init__(self, out: str, until: float, dry: bool, device: Found) -> None:
        self.found: Found = {}
        self.left_out: Found = {}
        self.tested: Found | None = None
        self.facts = machine() | {"gpu": device, "others_cores": 0.0}
        self._out, self._until, self._dry = out, until, dry
        self._free = device.get("free", 2 << 30)
        self._partial = Path(f"{out}.partial")
        self._took: Found = {}
        self._bystanders = Bystanders()

    def test(self, seconds: float) -> None:
        began = time.monotonic()
        self._partial.unlink(missing_ok=True)
        try:
            self.tested = tests.run_tests(seconds, self._partial)
        except KeyboardInterrupt:
            self.tested = tests.outcomes(self._partial) | {"status": -signal.SIGINT}
            self._until = time.monotonic()
        self._done("tests", began)

    def measure(self, name: str) -> None:
        section, began = SECTIONS[name], time.monotonic()
        if self._dry and not section.dry:
            self.left_out[name] = "needs a GPU"
            return
        if self._until - began < LEAST:
            self.left_out[name] = "no time left"
            return
        refused = [why for why in self.left_out.values() if "MPS cannot be used" in why]
        if section.mps and refused:
            self.left_out[name] = refused[0]
            return
        asked = {"dry": self._dry, "free": self._free, "before": self.found, "keep": str(self._partial)}
        try:
            self._bystanders.look(0.1)
            self.found[name] = run_peer(__file__, name, asked, min(section.longest, self._until - began))
        except PeerFailed as error:
            self.left_out[name] = str(error)
        except KeyboardInterrupt:
            self.left_out[name] = "interrupted"
            self._until = time.monotonic()
        if name in self.left_out and self._partial.exists():
            self.found[name] = json.loads(self._partial.read_text())
        self._done(name, began)
        figures = "in a table below" if name in WAYS else self.found.get(name, "")
        print(f"{name}: {self._took[name]} s{' FAILED' if name in self.left_out else ''} {figures}", flush=True)

    def _done(self, name: str, began: float) -> None:
        self._took[name] = round(time.monotonic() - began, 1)
        self.facts["others_cores"] = self._bystanders.cores()
        self.write()
        self._partial.unlink(missing_ok=True)

    def write(self) -> None:
        figures = {"figures": self.found, "none": self.left_out, "seconds": self._took, "tests": self.tested}
        write_json(self._out, {"machine": self.facts, **figures})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", action="store_true", help="first the tests that need a GPU, in half of the time")
    parser.add_argument("--budget", type=float, default=530.0, help="seconds for all of it")
    parser.add_argument("--only", help="these sections, with commas in between")
    parser.add_argument("--out", help="the JSON file; bench/results/gpu-<device>.json if left out, or below $OUT")
    parser.add_argument("--dry", action="store_true", help="on a CPU, small, to see that it works")
    options = parser.parse_args()
    began = time.monotonic()
    wanted = options.only.split(",") if options.only else list(SECTIONS)
    unknown = [name for name in wanted if name not in SECTIONS]
    if unknown:
        parser.error(f"no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    if lacks := tests.lacking(options.tests):
        print("\n".join(["not all that is needed is there:", *lacks]))
        return 2
    if not options.dry:
        from cotune.sharing.cuda import torch_has_cuda, visible_gpus

        if not visible_gpus() or not torch_has_cuda():
            print("needs a CUDA device and a torch that can use it; --dry shows on a CPU that the rest works")
            return 2
    device = device_facts(options.dry)
    slug = "-".join(re.findall(r"[a-z0-9]+", device["name"].lower()))
    out = options.out or str(Path(os.environ.get("OUT") or ROOT / "bench/results") / f"gpu-{slug}.json")
    # Whoever wants an end of it, by either signal, gets what there is; the second time at once.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    run = Run(out, began + options.budget, options.dry, device)
    if options.tests:
        run.test(options.budget / 2)
    for name in wanted:
        run.measure(name)
    run.write()
    show(run.found, run.left_out, run.tested)
    print(f"{device}; {describe(run.facts)}; {out}")
    return 1 if run.tested and (run.tested["failed"] or run.tested["status"]) else 0


if __name__ == "__main__" and not serve_peer({name: section.measure for name, section in SECTIONS.items()}):
    sys.exit(main())
