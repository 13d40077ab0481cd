"""The figures of `gpu.py` about packing: what naive packing loses, how long explorations take."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from _common import keep
from _gpu_models import device_of, settle, training
from _gpu_runs import tuned

Found = dict[str, Any]


# ---- out of memory


def heavy_memory(config: Found) -> None:
    """Takes a share of the device, kept and passing by turns, and computes a little."""
    import torch

    import cotune
    from cotune import session

    device = device_of(config["dry"])
    kept = torch.zeros(int(config["share"] * config["bytes"] * 0.4), dtype=torch.uint8, device=device)
    for step in range(config["steps"]):
        scratch = torch.ones(int(config["share"] * config["bytes"] * 0.6), dtype=torch.uint8, device=device)
        kept[: 1 << 16] += scratch[: 1 << 16]
        loss = float(kept[0])
        del scratch
        if session.current() is not None:
            cotune.report({"loss": loss}, step=step)


SHARES = [0.02, 0.05, 0.08, 0.12, 0.2, 0.3]


def oom(options: Found) -> Found:
    """A set with cotune; and where eight run at once, whatever they need, so that some die of out-of-memory."""
    import cotune

    fixed = {"dry": options["dry"], "bytes": options["free"], "steps": 10 if options["dry"] else 40}
    configs = [{"share": share, **fixed} for share in SHARES for _ in range(2 if options["dry"] else 4)]
    found: Found = {"trials": len(configs)}
    space = {"share": cotune.choice(SHARES), "copy": cotune.choice(list(range(len(configs) // len(SHARES)))), **fixed}
    began = time.monotonic()
    results = tuned(heavy_memory, space, options, sampler="grid")
    found["cotune"] = {
        "seconds": round(time.monotonic() - began, 2),
        "makespan": round(results.makespan, 2),
        "lost": len(results.errors),
        "done": sum(str(trial.state) == "done" for trial in results),
        "tried_again": sum(trial.attempts - 1 for trial in results),
    }
    keep(options, found)
    found["naive"] = _naive(configs, at_once=2 if options["dry"] else 8)
    return found


# Not only torch's own error: a context, or a handle of cuBLAS, that finds the device full says so in another.
_NAIVE = """
import json, sys
import torch
from _gpu_models import device_of
from _gpu_packing import heavy_memory
from cotune.sharing.raised import out_of_memory
torch.zeros(1, device=device_of(%r))
print("ready", flush=True)
for line in sys.stdin:
    try:
        heavy_memory(json.loads(line))
        print("done", flush=True)
    except Exception as error:
        print("out of memory" if out_of_memory(error)[0] else f"{type(error).__name__}: {error}"[:200], flush=True)
"""


def _naive(configs: list[Found], at_once: int) -> Found:
    """Processes that each take their share of the list, one after the other, with no idea of each other."""
    code = _NAIVE % configs[0]["dry"]
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", code], cwd=Path(__file__).parent, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for _ in range(at_once)
    ]  # fmt: skip
    # Together: imports and contexts come up one after the other, and who is ready first would have the device alone.
    for process in workers:
        assert process.stdout is not None
        process.stdout.readline()
    began = time.monotonic()
    for number, process in enumerate(workers):
        assert process.stdin is not None
        # From the largest down, as dealt: every worker begins with a large one.
        mine = sorted(configs, key=lambda config: -config["share"])[number::at_once]
        with contextlib.suppress(BrokenPipeError):  # it has died
            process.stdin.write("".join(json.dumps(config) + "\n" for config in mine))
            process.stdin.close()
    said = Counter(line.strip() for process in workers if process.stdout is not None for line in process.stdout)
    for process in workers:
        process.wait()
    counts = {"done": said.pop("done", 0), "out_of_memory": said.pop("out of memory", 0)}
    # Of those that a worker had still before it when it died, nothing is said.
    counts["never_ended"] = len(configs) - sum(counts.values()) - sum(said.values())
    return {"seconds": round(time.monotonic() - began, 2), **counts, "other_errors": dict(said)}


# ---- explorations


def exploring(config: Found) -> None:
    """So many steps of one of the models, with a report now and then."""
    import cotune

    device = device_of(config["dry"])
    step = training(config["model"], config["dry"])
    for epoch in range(10):
        for _ in range(config["steps"] // 10):
            step()
        settle(device)
        cotune.report({"loss": 1.0}, step=epoch)


def steps_for(options: Found, model: str, seconds: float) -> Found:
    """How many steps take so long alone."""
    one = tuned(exploring, {"dry": options["dry"], "model": model, "steps": 50}, options, trials=1, lanes=1)[0]
    times = [report["time"] for report in one.history]
    # Without the first tenth, in which everything is done for the first time.
    step_seconds = max((times[-1] - times[0]) / 45, 1e-5)
    return {"steps": max(10, int(seconds / step_seconds) // 10 * 10), "step_ms": round(1e3 * step_seconds, 3)}


def explorations(options: Found, model: str, sizes: Found, ways: dict[str, Found]) -> Found:
    """The same trials in each way, the first of which is one at a time, unless that is known already."""
    import cotune

    found = dict(sizes)
    alone: float | None = sizes.get("alone")
    for way, more in ways.items():
        space = {"dry": options["dry"], "model": model, "steps": sizes["steps"], "x": cotune.uniform(0, 1)}
        results = tuned(exploring, space, options, trials=sizes["trials"], sampler="random", **more)
        alone = alone or results.makespan
        found[way] = {
            "makespan": round(results.makespan, 2),
            "speedup": round(alone / results.makespan, 3),
            "lanes": len({trial.lane for trial in results}),
            "lost": len(results.errors),
        }
        found["alone"] = alone
        keep(options, found)
    return found


def light(options: Found) -> Found:
    sizes = {"trials": 6 if options["dry"] else 60} | steps_for(options, "mlp", 0.1 if options["dry"] else 0.6)
    wide = 2 if options["dry"] else 16
    return explorations(
        options, "mlp", sizes, {"one at a time": {"lanes": 1}, "width found": {}, "wide": {"lanes": wide}}
    )


def in_slices(options: Found) -> Found:
    """The same trials as in `light` and `heavy`, with lanes that take slices of time instead of computing at once."""
    found: Found = {}
    for name, model in (("light", "mlp"), ("heavy", "heavy cnn")):
        if name not in options["before"]:
            raise RuntimeError(f"needs the figures of {name}")
        sizes = {what: options["before"][name][what] for what in ("trials", "steps", "alone")}
        found[name] = explorations(options, model, sizes, {"width found": {"mps": False}})
        keep(options, found)
    return found


def heavy(options: Found) -> Found:
    sizes = {"trials": 3 if options["dry"] else 8} | steps_for(options, "heavy cnn", 0.1 if options["dry"] else 2.0)
    return explorations(options, "heavy cnn", sizes, {"one at a time": {"lanes": 1}, "width found": {}})
