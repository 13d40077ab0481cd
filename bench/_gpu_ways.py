"""The figures of `gpu.py` about computing in parallel: slices of time, MPS, streams; and what MPS costs."""

from __future__ import annotations

import contextlib
import json
import select
import time
from typing import Any

from _common import keep
from _gpu_models import MIB
from _gpu_parallel import SECONDS, WIDTHS, processes, streams
from _gpu_raw import CONTEXT, Holding, watch_gpu

Found = dict[str, Any]


# ---- ways to be parallel


def parallel(options: Found, environ: dict[str, str]) -> Found:
    return processes(options, environ, *_sizes(options))


def _sizes(options: Found) -> tuple[tuple[int, ...], float]:
    return ((1, 2), 0.2) if options["dry"] else (WIDTHS, SECONDS)


def slices(options: Found) -> Found:
    return parallel(options, {})


def on_streams(options: Found) -> Found:
    return streams(options, *_sizes(options))


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


def _answer(process: Any, within: float) -> Any:
    """What a process says next: a client whose context was broken may never say anything again."""
    if not select.select([process.stdout], [], [], within)[0]:
        return f"no answer in {within:g} s"
    return json.loads(process.stdout.readline() or '"died"')


def mps(options: Found) -> Found:
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
        keep(options, found)
        pair = Holding(_FAULT, count=2, **daemon.environment())
        for process, order, who in ((0, "fail", "faulty"), (1, "go on", "beside it"), (1, "go on", "again")):
            pipe = pair.all[process]
            assert pipe.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it has died, which its answer says
                pipe.stdin.write(order + "\n")
                pipe.stdin.flush()
            found[f"after a fault, {who}"] = _answer(pipe, within=10)
            keep(options, found)
        pair.close()
        after = Holding(CONTEXT, **daemon.environment())
        found["a client after the fault"] = after.told[0]
        after.close()
    finally:
        began = time.monotonic()
        daemon.close()
        found["closed_ms"] = round(1e3 * (time.monotonic() - began))
    return found
