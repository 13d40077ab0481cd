"""Every figure about cotune on one GPU, the most important first, as many as fit the time.

python bench/gpu.py [--budget 480] [--only handover,turns] [--out FILE] [--dry]

Each section runs in a fresh process, so that one that fails or hangs costs the others nothing; after each of them the
JSON is written anew. `--dry` shows on a CPU that all of it works; its figures mean nothing. `docs/gpu.md` says what
each section answers.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _gpu_packing as packing
import _gpu_raw as raw
import _gpu_runs as runs
import _gpu_ways as ways
from _common import ROOT, Bystanders, PeerFailed, describe, machine, run_peer, serve_peer, write_json

Found = dict[str, Any]

# Where cotune is not installed, this process and all that it starts use it from here.
sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


@dataclass(frozen=True)
class Section:
    """A group of figures.

    Attributes:
        measure: Takes them.
        longest: Seconds after which it is given up.
        dry: Whether it makes sense without a GPU.
    """

    measure: Callable[[Found], Found]
    longest: float
    dry: bool = False


SECTIONS = {
    "handover": Section(runs.handover, 60, dry=True),
    "turns": Section(runs.turns, 60, dry=True),
    "counters": Section(runs.counters, 60, dry=True),
    "oom": Section(packing.oom, 90, dry=True),
    "light": Section(packing.light, 120, dry=True),
    "heavy": Section(packing.heavy, 100, dry=True),
    "lane_start": Section(runs.lane_start, 60, dry=True),
    "slices": Section(ways.slices, 90, dry=True),
    "mps": Section(ways.mps, 90),
    "light_mps": Section(packing.light_mps, 60),
    "with_mps": Section(ways.with_mps, 90),
    "streams": Section(ways.on_streams, 90, dry=True),
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
    lost, naive = _at(found, "oom", "cotune", "lost"), _at(found, "oom", "naive", "lost")
    lights = _at(found, "light") or {}
    tried = [*lights.values(), *(_at(found, "light_mps") or {}).values()]
    best = max((way["speedup"] for way in tried if isinstance(way, dict)), default=None)
    stop = _at(found, "handover", "stop_to_first_kernel_ms", "p50")
    return [
        row("stop -> next trial's first kernel, p50", "<= 5 ms", stop, lambda v: v <= 5, " ms"),
        row("turn change, p50", "<= 1 ms", _at(found, "turns", "turn_change_ms", "p50"), lambda v: v <= 1, " ms"),
        row("counters off known allocations by", "<= 1%", None if off is None else 100 * off, lambda v: v <= 1, "%"),
        row("trials lost by naive packing", ">= 1", naive, lambda v: v >= 1),
        row("trials lost by cotune", "0", lost, lambda v: v == 0),
        row("60 small trials, width found", ">= 5x", _at(lights, "width found", "speedup"), lambda v: v >= 5, "x"),
        row("60 small trials, best way", ">= 5x", best, lambda v: v >= 5, "x"),
        row(
            "compute-bound trials, width found", ">= 0.97x", _at(found, "heavy", "width found", "speedup"),
            lambda v: v >= 0.97, "x",
        ),
    ]  # fmt: skip


def show(found: Found, left_out: Found) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 140)
    table = Table("what", "goal", "measured", "met", title="What must be shown")
    for what, goal, value, met in goals(found):
        table.add_row(what, goal, value, "-" if met is None else "yes" if met else "NO")
    console.print(table)
    shown = [name for name in ("slices", "with_mps", "streams") if name in found]
    if shown:
        table = Table("model", "way", title="Steps a second of all together, by width")
        widths = list(next(iter(found[shown[0]].values())))
        for width in widths:
            table.add_column(str(width), justify="right")
        for model in found[shown[0]]:
            for way in shown:
                table.add_row(model, way, *(f"{found[way][model][width]:g}" for width in widths))
        console.print(table)
    for name, figures in found.items():
        if name not in shown:
            console.print(f"{name}: {figures}", highlight=False)
    for name, why in left_out.items():
        last = [line for line in why.splitlines() if not line.strip().startswith("hint:")][-1]
        console.print(f"{name}: none ({last[:200]})", highlight=False)


# ---- the run


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=480.0, help="seconds for all of it")
    parser.add_argument("--only", help="these sections, with commas in between")
    parser.add_argument("--out", help="the JSON file; bench/results/gpu-<device>.json if left out, or below $OUT")
    parser.add_argument("--dry", action="store_true", help="on a CPU, small, to see that it works")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else list(SECTIONS)
    unknown = [name for name in wanted if name not in SECTIONS]
    if unknown:
        parser.error(f"no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    if not options.dry:
        from cotune.sharing.cuda import torch_has_cuda, visible_gpus

        if not visible_gpus() or not torch_has_cuda():
            print("needs a CUDA device and a torch that can use it; --dry shows on a CPU that the rest works")
            return 2
    device = device_facts(options.dry)
    slug = "-".join(device["name"].lower().replace(",", "").split()[-2:])
    out = options.out or str(Path(os.environ.get("OUT") or ROOT / "bench/results") / f"gpu-{slug}.json")
    until, bystanders, facts = time.monotonic() + options.budget, Bystanders(), machine() | {"gpu": device}
    found: Found = {}
    left_out: Found = {}
    took: Found = {}
    for name in wanted:
        section, began = SECTIONS[name], time.monotonic()
        if options.dry and not section.dry:
            left_out[name] = "needs a GPU"
        elif until - began < 10:
            left_out[name] = "no time left"
        else:
            bystanders.look(0.1)
            asked = {"dry": options.dry, "free": device.get("free", 2 << 30), "before": found}
            try:
                found[name] = run_peer(__file__, name, asked, min(section.longest, until - began))
            except PeerFailed as error:
                left_out[name] = str(error)
            took[name] = round(time.monotonic() - began, 1)
            print(f"{name}: {took[name]} s{' FAILED' if name in left_out else ''}", flush=True)
        facts["others_cores"] = bystanders.cores()
        write_json(out, {"machine": facts, "figures": found, "none": left_out, "seconds": took})
    show(found, left_out)
    print(f"{device}; {describe(facts)}; {out}")
    return 0


if __name__ == "__main__" and not serve_peer({name: section.measure for name, section in SECTIONS.items()}):
    sys.exit(main())
