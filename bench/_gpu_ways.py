"""The figures of `gpu.py` about computing in parallel: slices of time, MPS, streams; and what MPS costs."""

from __future__ import annotations

import json
import time
from typing import Any

from _gpu_models import MIB
from _gpu_parallel import SECONDS, WIDTHS, processes, streams
from _gpu_raw import CONTEXT, Holding, watch_gpu

Found = dict[str, Any]


# ---- ways to be parallel


def parallel(options: Found, environ: dict[str, str]) -> Found:
    dry = options["dry"]
    return processes(dry, environ, (1, 2) if dry else WIDTHS, 0.2 if dry else SECONDS)


def slices(options: Found) -> Found:
    return parallel(options, {})


def on_streams(options: Found) -> Found:
    return streams(options["dry"], (1, 2) if options["dry"] else WIDTHS, 0.2 if options["dry"] else SECONDS)


def with_mps(options: Found) -> Found:
    from cotune.sharing import cuda
    from cotune.sharing.mps import MpsDaemon

    daemon = MpsDaemon(cuda.visible_gpus()[0].uuid)
    try:
        return parallel(options, daemon.environment())
    finally:
        daemon.close()


_FAULT = """
import json, sys
import torch
x = torch.ones(1000, device="cuda")
torch.cuda.synchronize()
print(json.dumps("up"), flush=True)
for line in sys.stdin:
    try:
        if line == "fail\\n":
            torch.zeros(4, device="cuda")[torch.tensor([100], device="cuda")].sum().item()
        said = float(x.sum())
    except Exception as error:
        said = f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
    print(json.dumps(said), flush=True)
"""


def mps(_options: Found) -> Found:
    """How long a daemon takes, what limits do, and what a fatal fault of one client does to another."""
    from cotune.sharing import cuda
    from cotune.sharing.mps import MpsDaemon

    began = time.monotonic()
    daemon = MpsDaemon(cuda.visible_gpus()[0].uuid)
    found: Found = {"up_and_tried_ms": round(1e3 * (time.monotonic() - began))}
    watch = watch_gpu()
    try:
        base = watch.used() or 0
        held = Holding(CONTEXT, count=4, **daemon.environment())
        found["client"] = held.told[0] | {"mib_by_nvml_of_4": ((watch.used() or 0) - base) // MIB}
        held.close()
        pair = Holding(_FAULT, count=2, **daemon.environment())
        for process, order, who in ((0, "fail", "faulty"), (1, "go on", "beside it"), (1, "go on", "again")):
            pipe = pair.all[process]
            assert pipe.stdin is not None
            assert pipe.stdout is not None
            pipe.stdin.write(order + "\n")
            pipe.stdin.flush()
            found[f"after a fault, {who}"] = json.loads(pipe.stdout.readline() or '"died"')
        pair.close()
        after = Holding(CONTEXT, **daemon.environment())
        found["a client after the fault"] = after.told[0]
        after.close()
    finally:
        began = time.monotonic()
        daemon.close()
        found["closed_ms"] = round(1e3 * (time.monotonic() - began))
    return found
