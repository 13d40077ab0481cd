"""The figures of `gpu.py` that whole runs of cotune give: from a verdict to a kernel, turns, packing, makespans."""

from __future__ import annotations

import os
import time
from array import array
from itertools import pairwise
from pathlib import Path
from typing import Any

from _common import keep, median, percentile
from _gpu_models import MIB, device_of, settle, training

Found = dict[str, Any]
DRY_DEVICE = ["cpu:0@4GiB"]


def tuned(trainable: Any, space: Found, options: Found, **more: Any) -> Any:
    """One run on the device."""
    import cotune

    where: Found = {"devices": DRY_DEVICE} if options["dry"] else {"gpus": 1}
    how = {"metric": "loss", "storage": options["folder"], "dashboard": False, "seed": 0, **where, **more}
    return cotune.run(trainable, space, **how)


def spread(values: list[float]) -> Found:
    """Milliseconds from seconds."""
    if not values:
        return {"count": 0, "p50": None, "p90": None, "p99": None}
    return {"count": len(values)} | {f"p{n}": round(1e3 * percentile(values, n / 100), 3) for n in (50, 90, 99)}


def note(config: Found, *what: object) -> None:
    fd = os.open(config["trace"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(fd, (" ".join(map(str, what)) + "\n").encode())
    os.close(fd)


# ---- from the end of a trial to the first kernel of the next


def kernel_first(config: Found) -> None:
    """Computes something at once, and waits for it; then trains until it is stopped."""
    import torch

    import cotune

    device = device_of(config["dry"])
    float(torch.ones(1024, device=device).sum())
    note(config, "kernel", os.getpid(), time.monotonic(), cotune.trial_id())
    step = training("mlp", config["dry"])
    for number in range(4):
        for _ in range(5):
            step()
        cotune.report({"loss": 1.0}, step=number)
    settle(device)
    note(config, "end", os.getpid(), time.monotonic(), cotune.trial_id())


def handover(options: Found) -> Found:
    """Of trials one after the other in a warm lane, every second is stopped in the middle."""
    from optuna.pruners import BasePruner

    import cotune

    class EverySecond(BasePruner):
        def prune(self, study: Any, trial: Any) -> bool:
            stops = trial.number % 2 == 1 and len(trial.intermediate_values) >= 2
            if stops:
                note(config, "stop", 0, time.monotonic(), trial.number)
            return bool(stops)

    config = {"trace": f"{options['folder']}/trace", "dry": options["dry"]}
    space = {"lr": cotune.uniform(0, 1), **config}
    tuned(kernel_first, space, options, trials=60, lanes=1, sampler="random", pruner=EverySecond())
    kernels: list[tuple[str, float, int]] = []
    over: dict[int, tuple[str, float]] = {}
    for line in Path(config["trace"]).read_text().splitlines():
        what, process, at, trial = line.split()
        if what == "kernel":
            kernels.append((process, float(at), int(trial)))
        else:
            over.setdefault(int(trial), (what, float(at)))
    found: dict[str, list[float]] = {"stop": [], "end": []}
    for (process, _, trial), (following, at, _) in pairwise(kernels):
        if process == following and trial in over:
            found[over[trial][0]].append(at - over[trial][1])
    return {f"{what}_to_first_kernel_ms": spread(values) for what, values in found.items()}


# ---- turns


def stepping(config: Found) -> None:
    """Notes when the device was done with each iteration, and when the next began."""
    import cotune

    device, stamps = device_of(config["dry"]), array("d")
    step = training("mlp", config["dry"])

    def boundary(*_: Any) -> None:
        settle(device)
        stamps.append(time.monotonic())

    # Runs just before cotune's hook: between the two stamps there is nothing but that.
    step.optimizer.register_step_post_hook(boundary)
    for _ in range(config["steps"]):
        step()
        stamps.append(time.monotonic())
    Path(f"{config['trace']}-{config['index']}").write_bytes(stamps.tobytes())
    cotune.report({"loss": 1.0})


def turns(options: Found) -> Found:
    """Between two residents: from the end of one's last iteration to the beginning of the other's first."""
    from overheads import turn_changes

    import cotune

    steps = 500 if options["dry"] else 2000
    config = {"trace": f"{options['folder']}/trace", "dry": options["dry"], "steps": steps}
    space = {"index": cotune.choice([0, 1]), **config}
    tuned(stepping, space, options, sampler="grid", lanes=1, residents=2)
    return {"turn_change_ms": spread([change / 1e6 for change in turn_changes(options["folder"])])}


# ---- counters


def holding(config: Found) -> None:
    """Known bytes, some kept and some within an iteration."""
    import torch

    import cotune

    device, bytes = device_of(config["dry"]), config["mib"] * MIB
    kept = torch.ones(bytes, dtype=torch.uint8, device=device)
    for step in range(4):
        scratch = torch.ones(bytes // 2, dtype=torch.uint8, device=device)
        cotune.report({"loss": float(kept[0] + scratch[0])}, step=step)
        del scratch
        cotune.report({"loss": 1.0}, step=step)


def counters(options: Found) -> Found:
    """What was measured of trials that hold known bytes, as a share of those."""
    import cotune

    sizes = [64, 256] if options["dry"] else [64, 1024, 8192]
    results = tuned(holding, {"mib": cotune.choice(sizes), "dry": options["dry"]}, options, sampler="grid", lanes=1)
    measured = {trial.config["mib"]: trial.persistent + trial.ephemeral for trial in results}
    return {"measured_over_known": {mib: round(bytes / (1.5 * mib * MIB), 5) for mib, bytes in measured.items()}}


# ---- lanes


def lane_start(options: Found) -> Found:
    """From the order to open lanes to their being ready, and what each takes of the device."""
    from cotune.engines.local import LocalEngine
    from cotune.engines.local_options import LocalOptions
    from cotune.packer import CloseLane, LaneLost, LaneReady, OpenLane
    from cotune.script.pickling import pack
    from cotune.sharing import cuda
    from cotune.sharing.devices import find_devices
    from cotune.sharing.lane_options import TrialOptions

    (info,) = find_devices(devices=DRY_DEVICE) if options["dry"] else find_devices(gpus=1)
    watch = None if options["dry"] else cuda.GpuWatch(info.uuid)

    def used() -> int:
        return (watch.used() or 0) if watch else 0

    def wait(engine: Any, kind: type, count: int) -> list[float]:
        heard: list[float] = []
        contexts.clear()
        while len(heard) < count:
            for event in engine.poll(1.0):
                if isinstance(event, kind):
                    heard.append(time.monotonic())
                    contexts.append(getattr(event, "context", 0))
        return heard

    found: Found = {}
    contexts: list[int] = []
    engine = LocalEngine(pack(holding), [info], Path(options["folder"]), LocalOptions(TrialOptions("loss")))
    try:
        engine.start()
        number = 0
        for count in (1, 1, 4) if options["dry"] else (1, 1, 4, 16):
            before, began = used(), time.monotonic()
            lanes = list(range(number, number + count))
            number += count
            for lane in lanes:
                engine.execute(OpenLane(lane, info.name, info.capacity // count))
            ready = [at - began for at in wait(engine, LaneReady, count)]
            took, bare = used() - before, median([float(context) for context in contexts])
            killed = time.monotonic()
            for lane in lanes:
                engine.execute(CloseLane(lane, kill=True))
            wait(engine, LaneLost, count)
            gone = time.monotonic() - killed
            while used() - before > 32 * MIB and time.monotonic() < killed + 10:
                time.sleep(0.002)
            # The first waits for the zygote's imports, too.
            found[f"{count} lanes" if number > 1 else "first"] = {
                "ready_ms": {"first": round(1e3 * ready[0], 1), "last": round(1e3 * ready[-1], 1)},
                "mib_a_lane_by_nvml": round(took / count / MIB, 1),
                "mib_a_lane_as_told": round(bare / MIB, 1),
                "killed_and_reaped_ms": round(1e3 * gone, 1),
                "bytes_back_ms": round(1e3 * (time.monotonic() - killed), 1),
            }
            keep(options, found)
    finally:
        engine.close()
        if watch:
            watch.close()
    return found
