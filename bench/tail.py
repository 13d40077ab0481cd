"""How long a sweep with one very long trial takes: first come first served, longest first, and with idle room lent.

python bench/tail.py [--short 11] [--steps 200] [--out tail.json]

The same trials on two CPU lanes, each peer in a fresh process. `bench/README.md` says more.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from _common import Bystanders, describe, machine, run_peer, serve_peer, write_json

Found = dict[str, Any]
PEERS = {
    "fifo": {"policy": "fifo", "grants": False},
    "makespan": {"policy": "makespan", "grants": False},
    "makespan + grants": {"policy": "makespan", "grants": True},
}


def train(config: Found) -> None:
    """Some steps of a classifier on random data, each batch as four micro-batches."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    import cotune

    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(512, 1024), torch.randint(0, 10, (512,))
    at_once: dict[int, int] = {}
    for _ in range(config["steps"]):
        optimizer.zero_grad()
        loss = cotune.micro_batches((x, y), 128).backward(lambda x, y: F.cross_entropy(model(x), y))
        optimizer.step()
        session = cotune.session.current()
        now = session.micro_batches(4).concurrency if session is not None else 1
        at_once[now] = at_once.get(now, 0) + 1
    cotune.report({"loss": loss, "at_once": " ".join(f"{n}:{steps}" for n, steps in sorted(at_once.items()))})


def sweep(options: Found) -> Found:
    import cotune

    short = [6 + n for n in range(options["short"])]
    began = time.monotonic()
    results = cotune.run(
        train,
        {"steps": cotune.choice([*short, options["steps"]])},
        metric="loss",
        sampler="grid",
        # With this order, which is Optuna's, the long trial is the last but one to be proposed.
        seed=2,
        devices=["cpu:0@2GiB"],
        lanes=2,
        storage=options["folder"],
        dashboard=False,
        policy=options["policy"],
        grants=options["grants"],
    )
    if results.errors:
        raise RuntimeError(str(results.errors[0].error))
    longest = max(results, key=lambda trial: trial.config["steps"])
    return {
        "seconds": time.monotonic() - began,
        "makespan": results.makespan,
        "longest": longest.end - longest.start,
        "started": sorted(trial.config["steps"] for trial in results if trial.start < longest.start),
        "at_once": longest.metrics["at_once"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", type=int, default=11, help="short trials, of 6 to 16 steps")
    parser.add_argument("--steps", type=int, default=200, help="of the long one")
    parser.add_argument("--out", help="a file for the JSON")
    options = parser.parse_args()
    facts, bystanders, found = machine(), Bystanders(), {}
    print(f"{'':20} {'makespan':>9} {'of fifo':>8} {'long trial':>11} {'began after':>12}  steps by how many at once")
    for name, how in PEERS.items():
        bystanders.look()
        row = run_peer(__file__, "sweep", {**how, "short": options.short, "steps": options.steps})
        found[name] = row
        ratio = row["makespan"] / found["fifo"]["makespan"]
        print(
            f"{name:20} {row['makespan']:7.1f} s {ratio:8.2f} {row['longest']:9.1f} s {len(row['started']):5} trials"
            f"  {row['at_once']}",
            flush=True,
        )
    facts["others_cores"] = bystanders.cores()
    print(f"\n{describe(facts)}")
    write_json(options.out, {"machine": facts, "peers": found})


if __name__ == "__main__" and not serve_peer({"sweep": sweep}):
    main()
